"""When refreshes happen: at once after a quiet time, not more often than asked, never for nothing."""

from __future__ import annotations

import time

import psycopg
import pytest

import runnel
from runnel.engine.clocks import SLIP_SECONDS
from tests.e2e.helpers import Stream, eventually, rows, script, value


def refreshes(client: runnel.Client, name: str) -> list[runnel.client.Refresh]:
    """Scheduled refreshes, oldest first."""
    return [h for h in reversed(client.history(name, 100)) if h.initiated_by == "SCHEDULER"]


@pytest.mark.slow
def test_the_first_change_after_a_quiet_time_is_refreshed_at_once(
    db: psycopg.Connection, client: runnel.Client, stream: Stream
) -> None:
    script(db, "CREATE TABLE t (v int)")
    stream("s", "SELECT count(*) AS n FROM t", schedule="4s")
    db.execute("INSERT INTO t VALUES (0)")
    client.refresh("s")  # the first refresh of all also warms Spark up
    time.sleep(4.5)
    began = time.monotonic()
    db.execute("INSERT INTO t VALUES (1)")
    eventually(lambda: value(db, "SELECT n FROM s") == 2)
    assert time.monotonic() - began < 2.5, "well under the schedule"
    began = time.monotonic()
    db.execute("INSERT INTO t VALUES (2)")
    eventually(lambda: value(db, "SELECT n FROM s") == 3)
    assert time.monotonic() - began > 2, "the second change waits"
    first, second = refreshes(client, "s")[-2:]
    assert 3.9 < (second.start_time - first.start_time).total_seconds() < 8


@pytest.mark.slow
def test_a_duration_is_the_least_time_between_refreshes(
    db: psycopg.Connection, client: runnel.Client, stream: Stream
) -> None:
    script(db, "CREATE TABLE t (v int)")
    stream("s", "SELECT count(*) AS n FROM t", schedule="2s")
    until = time.monotonic() + 7
    written = 0
    while time.monotonic() < until:
        db.execute("INSERT INTO t VALUES (1)")
        written += 1
        time.sleep(0.05)
    eventually(lambda: value(db, "SELECT n FROM s") == written)
    starts = [h.start_time for h in refreshes(client, "s")]
    assert len(starts) >= 2
    # A refresh that began a little late does not delay the next one.
    least = 2 - SLIP_SECONDS - 0.01
    assert min((b - a).total_seconds() for a, b in zip(starts, starts[1:], strict=False)) > least
    assert sum(h.changes_read or 0 for h in refreshes(client, "s")) == written


def test_nothing_changed_means_no_history_and_no_spark_job(
    db: psycopg.Connection, client: runnel.Client, stream: Stream
) -> None:
    script(db, "CREATE TABLE t (id int, v int, seen int); INSERT INTO t VALUES (1, 1, 1)")
    stream("s", "SELECT id, v FROM t WHERE v > 0", schedule="1s")
    stream("f", "SELECT id, v FROM t WHERE v > 0", mode="FULL", schedule="1s")
    time.sleep(2.5)
    assert refreshes(client, "s") == refreshes(client, "f") == []
    client.refresh("s")
    assert refreshes(client, "s") == []
    client.refresh("f")  # that a query without a plan has nothing new only the engine can tell
    manual = client.history("f")[0]
    assert (manual.spark_jobs, manual.rows_inserted, manual.rows_deleted) == (0, 0, 0)
    db.execute("UPDATE t SET seen = 2")
    time.sleep(2.5)
    assert not any(h.rows_inserted or h.rows_deleted for h in refreshes(client, "s"))
    stamp = value(db, "SELECT staleness FROM pgtrickle.pgt_status() WHERE name LIKE '%.s'")
    assert stamp.total_seconds() < 5


def test_who_asks_with_nothing_waiting_is_answered_at_once_and_only_then(
    db: psycopg.Connection, client: runnel.Client, stream: Stream
) -> None:
    """The call looks itself; whatever waits anywhere above the stream table goes to the engine."""
    script(db, "CREATE TABLE t (id int, v int, at date); INSERT INTO t VALUES (1, 1); CREATE TABLE u (id int, w int)")
    stream("below", "SELECT v, count(*) AS n FROM t GROUP BY v", schedule="@yearly")
    stream("s", "SELECT b.v, b.n, u.w FROM below b LEFT JOIN u ON u.id = b.v", schedule="@yearly")
    stream("clock", "SELECT id FROM t WHERE at > now() - interval '1 day'", schedule="@yearly")

    def asks(name: str) -> bool:
        row = db.execute("SELECT pgtrickle._nothing_to_do(pgtrickle._find(%s))", (name,)).fetchone()
        assert row is not None
        return not row[0]

    assert not asks("s") and not asks("below")
    assert asks("clock") and asks("nowhere")
    for change in ("INSERT INTO t VALUES (2, 1)", "INSERT INTO u VALUES (1, 7)", "TRUNCATE u", "DELETE FROM t"):
        db.execute(change)
        assert asks("s")
        client.refresh("s")
        assert not asks("s")
        assert client.verify("s").ok
    db.execute("INSERT INTO t VALUES (3, 3)")
    client.refresh("below")
    assert not asks("below")
    assert asks("s"), "what it reads has moved on"
    client.refresh("s")
    db.execute("BEGIN; INSERT INTO t VALUES (4, 4)")
    assert asks("s"), "one's own uncommitted rows: the engine's answer says what to do"
    db.execute("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert asks("s"), "an old snapshot does not show what waits"
    db.execute("ROLLBACK; CREATE FUNCTION plus(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 1'")
    stream("drifts", "SELECT id, plus(v) AS v FROM t", schedule="@yearly")
    assert not asks("drifts")
    db.execute("CREATE OR REPLACE FUNCTION plus(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 2'")
    assert asks("drifts")


def test_cron_fires_at_its_times(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    script(db, "CREATE TABLE t (v int)")
    stream("every_two", "SELECT count(*) AS n FROM t", schedule="*/2 * * * * *")
    stream("yearly", "SELECT count(*) AS n FROM t", schedule="@yearly")
    db.execute("INSERT INTO t VALUES (1)")
    eventually(lambda: value(db, "SELECT n FROM every_two") == 1, 8)
    assert refreshes(client, "every_two")[0].start_time.second % 2 == 0
    assert value(db, "SELECT n FROM yearly") == 0


@pytest.mark.slow
def test_calculated_follows_the_tables_that_read_it(
    db: psycopg.Connection, client: runnel.Client, stream: Stream
) -> None:
    script(db, "CREATE TABLE t (v int)")
    stream("base", "SELECT v FROM t", schedule="calculated")
    stream("slow", "SELECT count(*) AS n FROM base", schedule="1h")
    db.execute("INSERT INTO t VALUES (1)")
    eventually(lambda: value(db, "SELECT n FROM slow") == 1, what="the first change is refreshed at once")
    db.execute("INSERT INTO t VALUES (2)")
    time.sleep(2.5)
    assert rows(db, "SELECT v FROM base") == [(1,)], "nobody needs the second one within the hour"
    stream("fast", "SELECT sum(v) AS s FROM base", schedule="1s")
    db.execute("INSERT INTO t VALUES (3)")
    eventually(lambda: value(db, "SELECT s FROM fast") == 6)


def test_a_refresh_by_hand_is_followed_by_those_who_read_it(db: psycopg.Connection, stream: Stream) -> None:
    script(db, "CREATE TABLE t (x int)")
    stream("above", "SELECT x, count(*) AS n FROM t GROUP BY x", schedule="@yearly")
    stream("below", "SELECT count(*) AS n FROM above", schedule="100ms")
    db.execute("INSERT INTO t VALUES (1), (2)")
    db.execute("SELECT pgtrickle.refresh_stream_table('above')")
    eventually(lambda: value(db, "SELECT n FROM below") == 2)
    db.execute("TRUNCATE t")
    db.execute("SELECT pgtrickle.refresh_stream_table('above')")
    eventually(lambda: value(db, "SELECT n FROM below") == 0)


def test_an_altered_schedule_counts_at_once(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    script(db, "CREATE TABLE t (v int)")
    stream("s", "SELECT count(*) AS n FROM t", schedule="1h")
    db.execute("INSERT INTO t VALUES (1)")
    eventually(lambda: value(db, "SELECT n FROM s") == 1)
    db.execute("INSERT INTO t VALUES (2)")
    time.sleep(1.5)
    assert value(db, "SELECT n FROM s") == 1
    client.alter_stream_table("s", schedule="1s")
    eventually(lambda: value(db, "SELECT n FROM s") == 2, 5)


def test_work_on_other_tables_does_not_hurry_a_table(
    db: psycopg.Connection, client: runnel.Client, stream: Stream
) -> None:
    script(db, "CREATE TABLE t (v int); CREATE TABLE u (v int)")
    stream("s", "SELECT count(*) AS n FROM t", schedule="1h")
    db.execute("INSERT INTO t VALUES (1)")
    eventually(lambda: value(db, "SELECT n FROM s") == 1)
    db.execute("INSERT INTO t VALUES (2)")
    stream("other", "SELECT v FROM u")
    client.alter_stream_table("other", schedule="2s")
    time.sleep(2)
    assert value(db, "SELECT n FROM s") == 1, "the hour is not over"
