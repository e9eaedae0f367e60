"""Many at once: a long build keeps nobody waiting, can be seen, and can be stopped without a trace."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import runnel
from runnel.cli.progress import in_words
from tests.conftest import running_engine
from tests.e2e.helpers import Check, eventually, leftovers, rows, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOW = "SELECT id, slow(x) AS x FROM big"
BUILDING = "SELECT phase, rows_done, rows_total, elapsed FROM pgtrickle.pgt_progress WHERE name = 'public.slow_one'"


@pytest.fixture
def big(db: psycopg.Connection) -> None:
    """A table whose every row takes 20 ms: ten seconds."""
    db.execute("CREATE TABLE big (id int, x int)")
    db.execute("INSERT INTO big SELECT i, i FROM generate_series(1, 500) i")
    db.execute(
        "CREATE FUNCTION slow(x int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN PERFORM pg_catalog.pg_sleep(0.02); RETURN x; END $$"
    )


@contextlib.contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[list[Exception]]:
    """Do something beside the test; what went wrong is in the list when the block ends."""
    failed: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield failed
    thread.join(60)
    assert not thread.is_alive(), "it never came back"


def creating(dsn: str, name: str = "slow_one", query: str = SLOW) -> Callable[[], None]:
    """A call that fills a stream table, on a connection of its own."""

    def create() -> None:
        with runnel.connect(dsn) as client:
            client.create_stream_table(name, query, "1s")

    return create


@pytest.mark.slow
@pytest.mark.usefixtures("big")
def test_a_long_build_keeps_nobody_waiting(
    dsn: str, db: psycopg.Connection, client: runnel.Client, check: Check
) -> None:
    db.execute("CREATE TABLE small (id int, x int)")
    client.create_stream_table("quick", "SELECT x, count(*) AS n FROM small GROUP BY x", "200ms")
    client.create_stream_table("other", "SELECT id FROM small", "200ms")
    with in_thread(creating(dsn)) as failed:
        eventually(lambda: rows(db, BUILDING), what="the build is not shown")
        waits = []
        for number in range(5):
            began = time.monotonic()
            db.execute("INSERT INTO small VALUES (%s, %s)", (number, number))
            eventually(lambda n=number: value(db, "SELECT count(*) FROM quick") == n + 1, what="nobody refreshed it")
            waits.append(time.monotonic() - began)
        began = time.monotonic()
        assert "quick" in client.explain("quick")
        client.alter_stream_table("quick", schedule="300ms")
        client.refresh("quick")
        client.drop_stream_table("other")
        calls = time.monotonic() - began
        assert rows(db, BUILDING), "the build was over too soon to tell anything"
        assert value(db, "SELECT severity FROM pgtrickle.health_check() WHERE check_name = 'scheduler_running'") == "OK"
    assert not failed
    assert max(waits) < 3, waits
    assert calls < 5
    assert value(db, "SELECT count(*) FROM slow_one") == 500
    check("quick")
    eventually(lambda: not rows(db, "SELECT name FROM pgtrickle.pgt_progress"), what="progress of nothing is shown")


def by_cancel(_: psycopg.Connection, dsn: str) -> None:
    """Somebody else asks for it."""
    with runnel.connect(dsn) as client:
        assert client.cancel("slow_one")


def by_interrupt(db: psycopg.Connection, _: str) -> None:
    """What Ctrl-C in psql does."""
    db.execute("SELECT pg_cancel_backend(caller_pid) FROM pgtrickle.pgt_progress WHERE name = 'public.slow_one'")


def by_end_of_session(db: psycopg.Connection, _: str) -> None:
    """The caller's session is gone without a word."""
    db.execute("SELECT pg_terminate_backend(caller_pid) FROM pgtrickle.pgt_progress WHERE name = 'public.slow_one'")


@pytest.mark.slow
@pytest.mark.usefixtures("big")
@pytest.mark.parametrize("stop", [by_cancel, by_interrupt, by_end_of_session])
def test_a_build_that_is_stopped_leaves_nothing(
    stop: Callable[[psycopg.Connection, str], None], dsn: str, db: psycopg.Connection, engine: runnel.Engine
) -> None:
    before = leftovers(db)
    with in_thread(creating(dsn)) as failed:
        eventually(lambda: rows(db, BUILDING), what="the build is not shown")
        began = time.monotonic()
        stop(db, dsn)
        eventually(lambda: not engine.pool.running(), 5, what="the work goes on")
        assert time.monotonic() - began < 3
    assert len(failed) == 1
    eventually(lambda: leftovers(db) == before, 10, what="something is left behind")
    creating(dsn, query="SELECT id, x FROM big")()
    assert value(db, "SELECT count(*) FROM slow_one") == 500


@pytest.mark.slow
@pytest.mark.usefixtures("big", "engine")
def test_a_timeout_of_the_caller_stops_the_work(dsn: str, db: psycopg.Connection, engine: runnel.Engine) -> None:
    before = leftovers(db)
    with psycopg.connect(dsn, autocommit=True) as caller:
        caller.execute("SET statement_timeout = '1500ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            caller.execute("SELECT pgtrickle.create_stream_table('slow_one', %s)", (SLOW,))
    eventually(lambda: not engine.pool.running(), 5, what="the work goes on")
    eventually(lambda: leftovers(db) == before, 10, what="something is left behind")


@pytest.mark.slow
@pytest.mark.usefixtures("big")
def test_ctrl_c_in_the_terminal_stops_the_work(dsn: str, db: psycopg.Connection, engine: runnel.Engine) -> None:
    before = leftovers(db)
    command = [sys.executable, "-m", "runnel.cli.main", "create", "slow_one", SLOW, "--dsn", dsn]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as terminal:
        try:
            eventually(lambda: rows(db, BUILDING), 30, what="the build is not shown")
            terminal.send_signal(signal.SIGINT)
            _, said = terminal.communicate(timeout=15)
        finally:
            terminal.kill()
    assert terminal.returncode == 130
    assert "Interrupted: the engine stops the work" in said and "Traceback" not in said
    eventually(lambda: not engine.pool.running(), 5, what="the work goes on")
    eventually(lambda: leftovers(db) == before, 10, what="something is left behind")


@pytest.mark.slow
@pytest.mark.usefixtures("big")
def test_dropping_stops_a_build(dsn: str, db: psycopg.Connection, client: runnel.Client) -> None:
    before = leftovers(db)
    with in_thread(creating(dsn)) as failed:
        eventually(lambda: rows(db, BUILDING), what="the build is not shown")
        with contextlib.suppress(runnel.RunnelError):  # whoever is faster removes it
            client.drop_stream_table("slow_one")
    assert "dropped" in str(failed[0])
    eventually(lambda: leftovers(db) == before, 10, what="something is left behind")


@pytest.mark.slow
@pytest.mark.usefixtures("big")
def test_a_refresh_can_be_stopped_and_is_tried_again(
    db: psycopg.Connection, client: runnel.Client, check: Check
) -> None:
    client.create_stream_table("slow_one", "SELECT id, slow(x) AS x FROM big WHERE x < 0", "200ms")
    db.execute("INSERT INTO big SELECT i, -i FROM generate_series(1, 300) i")
    eventually(lambda: rows(db, BUILDING), what="the refresh is not shown")
    assert client.cancel("slow_one")
    assert value(db, "SELECT count(*) FROM slow_one") == 0
    state = rows(db, "SELECT status, last_error FROM pgtrickle.pgt_stream_tables")[0]
    assert state[0] == "ACTIVE"
    assert "cancelled by" in state[1]
    eventually(lambda: value(db, "SELECT count(*) FROM slow_one") == 300, 40, what="it is not tried again")
    eventually(lambda: not client.cancel("slow_one"), what="there is nothing to stop")


@pytest.mark.slow
@pytest.mark.usefixtures("big")
def test_a_call_tells_how_far_it_is(client: runnel.Client, db: psycopg.Connection) -> None:
    told: list[runnel.client.Progress] = []
    with client.watched(told.append):
        client.create_stream_table("slow_one", f"{SLOW} WHERE id <= 150", "1s")
    assert told
    assert {(each.name, each.command) for each in told} == {("public.slow_one", "create")}
    assert told[-1].elapsed > told[0].elapsed
    assert in_words(told[-1]).endswith("s")
    assert value(db, "SELECT count(*) FROM slow_one") == 150


@pytest.mark.slow
@pytest.mark.usefixtures("big")
def test_recomputing_and_verifying_tell_how_far_they_are(client: runnel.Client, db: psycopg.Connection) -> None:
    db.execute("ANALYZE big")
    client.create_stream_table("slow_one", f"{SLOW} WHERE id <= 120", "@yearly", refresh_mode="FULL")
    told: list[runnel.client.Progress] = []
    with client.watched(told.append):
        db.execute("UPDATE big SET x = x + 1 WHERE id <= 10")
        client.refresh("slow_one")
        refreshed, told[:] = [*told], []
        assert client.verify("slow_one").ok
    assert {each.command for each in refreshed} == {"refresh"}
    compared = [each for each in told if (each.command, each.phase) == ("verify", "verify")]
    # PostgreSQL does not tell how far a statement is, but of how many rows is known.
    assert compared and {(each.rows_done, each.rows_total) for each in compared} == {(None, 500)}
    assert in_words(compared[-1]).startswith("about 500 rows, ")


@pytest.mark.slow
def test_only_who_may_act_as_the_owner_stops_work(dsn: str, db: psycopg.Connection, client: runnel.Client) -> None:
    db.execute("CREATE TABLE t (x int)")
    client.create_stream_table("mine", "SELECT x FROM t", "@yearly")
    db.execute("DO $$ BEGIN CREATE ROLE crowd_stranger LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    with psycopg.connect(dsn, autocommit=True) as stranger:
        stranger.execute("SET ROLE crowd_stranger")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner"):
            stranger.execute("SELECT pgtrickle.cancel('public.mine')")
        with pytest.raises(psycopg.errors.UndefinedTable):
            stranger.execute("SELECT pgtrickle.cancel('public.none')")


TABLES = {
    "by_a": "SELECT k, sum(x) AS s, count(*) AS n FROM a GROUP BY k",
    "by_b": "SELECT k, max(x) AS m, count(DISTINCT x) AS d FROM b GROUP BY k",
    "both": "SELECT a.k, count(*) AS n, sum(a.x + b.x) AS s FROM a JOIN b ON a.k = b.k GROUP BY a.k",
    "kept": "SELECT a.id, a.x, b.x AS y FROM a LEFT JOIN b ON b.id = a.id WHERE a.k < 3",
    "top": "SELECT k, x FROM (SELECT k, x, row_number() OVER (PARTITION BY k ORDER BY x DESC, id) AS r FROM b) q "
    "WHERE r <= 2",
    "above": "SELECT l.k, l.s, r.m FROM by_a l JOIN by_b r ON r.k = l.k",
    "rest": "SELECT k, n FROM by_a WHERE NOT EXISTS (SELECT FROM c WHERE c.k = by_a.k)",
    "total": "SELECT sum(n) AS n FROM rest",
    "twin_1": "SELECT count(*) AS n, sum(x) AS s FROM c",
    "twin_2": "SELECT count(*) AS n, sum(x) AS s FROM c",
    "twins": "SELECT t.n, t.s, u.n AS n2, u.s AS s2 FROM twin_1 t, twin_2 u",
}


def write(dsn: str, seed: int, until: threading.Event) -> None:
    """Transactions over several tables, some of them rolled back."""
    chance = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True) as conn:
        while not until.is_set():
            with contextlib.suppress(psycopg.errors.DeadlockDetected), conn.transaction() as transaction:
                for _ in range(chance.randint(1, 3)):
                    table, key = chance.choice("abc"), chance.randint(0, 6)
                    change = chance.random()
                    if change < 0.5:
                        conn.execute(f"INSERT INTO {table} VALUES (%s, %s, %s)", (chance.randint(0, 99), key, seed))
                    elif change < 0.8:
                        conn.execute(f"UPDATE {table} SET x = x + 1 WHERE k = %s", (key,))
                    else:
                        conn.execute(f"DELETE FROM {table} WHERE k = %s", (key,))
                if chance.random() < 0.1:
                    raise psycopg.Rollback(transaction)


def read_twins(dsn: str, until: threading.Event, torn: list[Any]) -> None:
    """What a reader must never meet: two tables of a unit that differ."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        while not until.is_set():
            with conn.transaction():
                found = conn.execute(
                    "SELECT t, u, w FROM twin_1 t, twin_2 u, twins w WHERE (t.n, t.s) IS DISTINCT FROM (u.n, u.s) "
                    "OR (w.n, w.s) IS DISTINCT FROM (w.n2, w.s2) OR (w.n, w.s) IS DISTINCT FROM (t.n, t.s)"
                ).fetchall()
            torn.extend(found)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_side_by_side_everything_is_exact(dsn: str, db: psycopg.Connection, spark: SparkSession, workers: int) -> None:
    """Tables that share sources and read each other, while definitions come, change and go, and work is cancelled."""
    chance = random.Random(workers)
    for table in "abc":
        db.execute(f"CREATE TABLE {table} (id int, k int, x int)".encode())
        db.execute(f"INSERT INTO {table} SELECT i, i % 7, i FROM generate_series(1, 50) i".encode())
    with running_engine(dsn, spark, workers=workers) as engine, runnel.connect(dsn) as client:
        for name, query in TABLES.items():
            client.create_stream_table(name, query, "100ms")
        until, torn = threading.Event(), list[Any]()
        beside = [
            *(threading.Thread(target=write, args=(dsn, seed, until)) for seed in range(3)),
            threading.Thread(target=read_twins, args=(dsn, until, torn)),
        ]
        for thread in beside:
            thread.start()
        end = time.monotonic() + 20
        at_once = 0
        while time.monotonic() < end:
            name = chance.choice([*TABLES])
            if name.startswith("twin"):
                # What is done to one of them alone would tell them apart.
                assert client.explain(name)
                continue
            match chance.choice(["refresh", "cancel", "create", "alter", "look", "suspend"]):
                case "refresh":
                    client.refresh(name)
                case "cancel":
                    client.cancel(name)
                case "create":
                    query = chance.choice([*TABLES.values()])
                    client.create_stream_table("passing", query, "100ms")
                    time.sleep(chance.random())
                    assert client.verify("passing").ok
                    client.drop_stream_table("passing")
                case "alter":
                    client.alter_stream_table(name, query=TABLES[name], refresh_mode=chance.choice(["FULL", "AUTO"]))
                case "suspend":
                    client.alter_stream_table(name, status="SUSPENDED")
                    client.resume(name)
                case "look":
                    assert client.explain(name)
            at_once = max(at_once, len(engine.pool.running()))
        until.set()
        for thread in beside:
            thread.join(30)
        wrong = {name: found for name in TABLES if not (found := client.verify(name)).ok}
        failed = rows(
            db,
            "SELECT t.pgt_name, h.error_message FROM pgtrickle.pgt_refresh_history h "
            "JOIN pgtrickle.pgt_stream_tables t USING (pgt_id) WHERE h.status = 'FAILED' "
            "AND h.error_message NOT LIKE '%cancelled by%'",
        )
        print(f"{at_once} jobs at once, {value(db, 'SELECT count(*) FROM pgtrickle.pgt_refresh_history')} refreshes")
    assert not wrong
    assert not failed
    assert not torn
    assert at_once > 1


@pytest.mark.slow
def test_a_first_publication_is_seen(dsn: str, db: psycopg.Connection, spark: SparkSession, tmp_path: Path) -> None:
    db.execute("CREATE TABLE big AS SELECT i AS id, md5(i::text) AS t FROM generate_series(1, 1500000) i")
    db.execute("ANALYZE big")
    with running_engine(dsn, spark, home=tmp_path), runnel.connect(dsn) as client:
        client.create_stream_table("half", "SELECT id, t, upper(t) AS u FROM big WHERE id % 2 = 0", "@yearly")
        published = threading.Event()

        def publish() -> None:
            try:
                with runnel.connect(dsn) as caller:
                    caller.alter_stream_table("half", sink="ducklake")
            finally:
                published.set()

        ask = "SELECT phase, rows_done, rows_total FROM pgtrickle.pgt_progress WHERE command = 'alter'"
        seen: list[tuple[str, int | None, int | None]] = []
        with in_thread(publish) as failed:
            while not published.wait(0.05):
                seen += rows(db, ask)
        assert not failed
        assert {phase for phase, _, _ in seen} == {"publish"}
        totals = {total for _, _, total in seen if total is not None}
        assert totals, "nobody said how much there is to do"
        assert all(700_000 < total < 800_000 for total in totals), "the rows of the table, not of what it reads"
        done = [number for _, number, _ in seen if number is not None]
        assert done == sorted(done)
        eventually(lambda: not rows(db, ask), what="progress of nothing is shown")
