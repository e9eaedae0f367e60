"""A failing refresh records its error, backs off, and in the end stops that table only."""

from __future__ import annotations

import psycopg
import pytest

import runnel
from tests.e2e.helpers import Check, Stream, eventually, rows, script, value


def failing(db: psycopg.Connection, name: str) -> tuple[str, int, str | None]:
    (found,) = rows(
        db,
        "SELECT status, consecutive_errors, last_error FROM pgtrickle.pgt_status() "
        f"WHERE name = format('%I.%I', current_schema(), '{name}')",
    )
    return found[0], found[1], found[2]


def test_division_by_zero_in_the_data_stops_one_table_and_resume_goes_on(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, "CREATE TABLE t (id int, v int); INSERT INTO t VALUES (1, 1)")
    stream("fragile", "SELECT id, 100 / v AS r FROM t", schedule="1s")
    stream("over", "SELECT sum(r) AS s FROM fragile", schedule="1s")
    stream("sturdy", "SELECT count(*) AS n FROM t", schedule="1s")
    db.execute("INSERT INTO t VALUES (2, 0)")
    eventually(lambda: failing(db, "fragile")[1] >= 1)
    assert failing(db, "fragile")[2] == "division by zero"
    eventually(lambda: value(db, "SELECT n FROM sturdy") == 2, what="the others keep going")
    with pytest.raises(runnel.RunnelError, match="division by zero"):
        client.refresh("fragile")
    eventually(lambda: failing(db, "fragile")[0] == "SUSPENDED", 30)
    failed = [h for h in client.history("fragile", 50) if h.status == "FAILED"]
    assert len(failed) == failing(db, "fragile")[1]
    assert {h.error_message for h in failed} == {"division by zero"}
    assert (failing(db, "sturdy")[0], failing(db, "over")[0]) == ("ACTIVE", "ACTIVE")
    assert rows(db, "SELECT * FROM fragile") == [(1, 100)], "the last good rows stay"
    health = dict(rows(db, "SELECT check_name, severity FROM pgtrickle.health_check()"))
    assert health["error_tables"] == "ERROR"
    script(db, "UPDATE t SET v = 50 WHERE id = 2; INSERT INTO t VALUES (3, 25)")
    client.resume("fragile")
    eventually(lambda: value(db, "SELECT s FROM over") == 106)
    assert failing(db, "fragile") == ("ACTIVE", 0, None)
    check("fragile", "over", "sturdy")


@pytest.mark.slow
def test_failures_back_off(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    db.execute(
        b"""CREATE TABLE t (v int);
        CREATE FUNCTION strict_one(v int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
        $f$ BEGIN IF v < 0 THEN RAISE EXCEPTION 'negative: %', v; END IF; RETURN v; END $f$"""
    )
    stream("s", "SELECT strict_one(v) AS v FROM t", schedule="1s")
    db.execute("INSERT INTO t VALUES (-5)")
    eventually(lambda: failing(db, "s")[1] >= 2, 30)
    times = [h.start_time for h in reversed(client.history("s", 50)) if h.status == "FAILED"]
    assert (times[1] - times[0]).total_seconds() > 1.5, "the second try waits longer than the schedule"
    assert failing(db, "s")[2] == "negative: -5"
    db.execute("DELETE FROM t")
    eventually(lambda: failing(db, "s") == ("ACTIVE", 0, None), 30, what="it did not recover by itself")


def test_somebody_writing_to_a_stream_table_is_noticed_and_repaired(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, "CREATE TABLE t (k int, v int); INSERT INTO t VALUES (1, 1), (2, 2)")
    stream("s", "SELECT k, sum(v) AS s FROM t GROUP BY k", schedule="1s")
    db.execute("SET pgtrickle.allow_direct_writes = on")
    db.execute("UPDATE s SET s = 999 WHERE k = 1")
    assert not client.verify("s").ok
    db.execute("UPDATE t SET v = 5 WHERE k = 1")
    eventually(
        lambda: rows(db, "SELECT k, s::int FROM s ORDER BY k") == [(1, 5), (2, 2)], 20, what="it was not rebuilt"
    )
    check("s")
    assert failing(db, "s")[0] == "ACTIVE"


@pytest.mark.parametrize(
    "write",
    ["INSERT INTO s VALUES (3, 3)", "UPDATE s SET s = 0", "DELETE FROM s", "TRUNCATE s", "COPY s FROM PROGRAM 'true'"],
)
def test_direct_writes_are_refused(
    write: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, "CREATE TABLE t (k int, v int); INSERT INTO t VALUES (1, 1), (2, 2)")
    stream("s", "SELECT k, sum(v) AS s FROM t GROUP BY k")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="s is maintained by Runnel") as refused:
        db.execute(write.encode())
    assert "allow_direct_writes" in (refused.value.diag.message_hint or "")
    client.alter_stream_table("s", query="SELECT v AS s, k FROM t")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        db.execute(write.encode())
    db.execute("UPDATE t SET v = 7")
    check("s")
    with db.transaction():
        db.execute("SET LOCAL pgtrickle.allow_direct_writes = on")
        db.execute(write.encode())
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        db.execute(write.encode())


def test_a_failed_first_build_leaves_nothing(db: psycopg.Connection, client: runnel.Client) -> None:
    script(db, "CREATE TABLE t (v int); INSERT INTO t VALUES (0)")
    for mode in ("DIFFERENTIAL", "FULL"):
        with pytest.raises(runnel.RunnelError, match="division by zero"):
            client.create_stream_table("s", "SELECT 1 / v AS r FROM t", schedule="@yearly", refresh_mode=mode)
        assert value(db, "SELECT to_regclass('s')") is None
    assert value(db, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass") == 0


def test_a_row_that_came_and_went_cannot_hurt(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, "CREATE TABLE t (id int, v int); INSERT INTO t VALUES (1, 1)")
    stream("s", "SELECT id, 100 / v AS r FROM t")
    script(db, "INSERT INTO t VALUES (2, 0), (3, 0); UPDATE t SET v = 50 WHERE id = 2; DELETE FROM t WHERE id = 3")
    check("s")
    assert rows(db, "SELECT * FROM s ORDER BY id") == [(1, 100), (2, 2)]
