"""SIGKILL for an engine while tasks build, refresh and publish: nothing is lost, doubled, or left lying about."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

import runnel
from runnel.server.embedded import EmbeddedServer
from tests.e2e.helpers import eventually
from tests.lake.compare import assert_equal, duck_bag, pg_bag
from tests.lake.health import known_files, stored_files
from tests.lake.places import Place
from tests.robustness.processes import Process
from tests.robustness.stack import Stack

ROWS = 40_000
"""How sessions of Spark's tasks call themselves; those of the engine have names of their own."""

TABLES = f"""
CREATE TABLE products (id int PRIMARY KEY, category text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, product int NOT NULL, total numeric(12,2) NOT NULL, note text);
INSERT INTO products SELECT i, 'category ' || i % 9 FROM generate_series(1, 300) i;
INSERT INTO orders SELECT i, 1 + i % 300, i % 997, repeat('n', i % 60) FROM generate_series(1, {ROWS}) i;
ANALYZE;
"""
QUERIES = {
    "listed": "SELECT o.id, o.total, o.note, p.category FROM orders o JOIN products p ON p.id = o.product",
    "grouped": """SELECT p.category, count(*) AS n, sum(o.total) AS usd, count(DISTINCT o.note) AS notes
                  FROM orders o JOIN products p ON p.id = o.product GROUP BY p.category""",
}

UNLOGGED = "relpersistence = 'u'"

READING = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'runnel-worker-%' AND xact_start IS NOT NULL"
LOADING = "SELECT FROM pg_stat_progress_copy WHERE command = 'COPY FROM' AND tuples_processed > 0"
WRITING = "SELECT FROM pgtrickle.pgt_lake_uploads"
RECORDING = """
SELECT FROM pg_locks WHERE NOT granted AND relation = 'pgtrickle.pgt_refresh_history'::regclass
"""
"""The last thing that a transaction of the engine does: it waits for whoever has locked the history."""


@dataclass(frozen=True)
class Kill:
    """What is under way, and how far it has got."""

    work: str
    moment: str
    reached: str
    """A query that has a row then."""
    held: bool = False
    """Whether the engine is kept from committing: its history is locked."""


KILLS = (
    Kill("build", "while tasks read", READING),
    Kill("build", "while rows are loaded", LOADING),
    Kill("build", "before the commit", RECORDING, held=True),
    Kill("refresh", "while tasks read", READING),
    Kill("refresh", "while rows are loaded", LOADING),
    Kill("refresh", "before the commit", RECORDING, held=True),
    Kill("publish", "while files are written", WRITING),
    Kill("publish a change", "while files are written", WRITING),
    Kill("publish a change", "before the commit", RECORDING, held=True),
)


@pytest.mark.slow
def test_killed_within_large_work(durable: EmbeddedServer, processes: list[Process], tmp_path: Path) -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    env = {"RUNNEL_TASKS_ABOVE": "100"}
    stack = Stack(durable, processes, random.Random(seed), env=env)
    (tmp_path / "lake").mkdir()
    place = Place(durable.dsn, f"{tmp_path / 'lake'}/")
    with psycopg.connect(durable.dsn, autocommit=True) as conn, _client(durable.dsn) as client:
        conn.execute(TABLES.encode())
        stack.start_engine()
        place.attach(conn)
        unlogged = _tables(conn, UNLOGGED)
        client.create_stream_table("grouped", QUERIES["grouped"], "@yearly", "DIFFERENTIAL", sink="ducklake")
        for number, kill in enumerate(KILLS):
            _prepare(conn, client, kill, number)
            _kill_within(stack, conn, kill)
            stack.start_engine()
            _recovered(client, kill)
            _nothing_odd(conn)
        # What the last kill has left goes with the next refresh.
        _change(conn, len(KILLS))
        for name in QUERIES:
            client.refresh(name)
        _same(conn, client, place)
        eventually(lambda: stored_files(place.data_path) <= known_files(conn), 20, what="files are left")
        place.check(conn)
        assert stack.engine.stop() == 0, stack.engine.tail()
        _nothing_left(conn, unlogged)


def _prepare(conn: psycopg.Connection[Any], client: runnel.Client, kill: Kill, number: int) -> None:
    """What must be so before the work begins."""
    there = {s.name: s for s in client.status()}
    match kill.work:
        case "build" if "listed" in there:
            client.drop_stream_table("listed")
        case "refresh" | "publish" | "publish a change" if "listed" not in there:
            client.create_stream_table("listed", QUERIES["listed"], "@yearly", "DIFFERENTIAL")
    if kill.work == "publish a change" and not there["listed"].sink:
        client.alter_stream_table("listed", sink="ducklake")
    if "change" in kill.work or kill.work == "refresh":
        _change(conn, number)


def _change(conn: psycopg.Connection[Any], number: int) -> None:
    """Thousands of rows: moved to another category, deleted, new."""
    moved = "UPDATE orders SET total = total + 1, product = 1 + (product + 7) %% 300 WHERE id %% 9 = %s"
    new = "INSERT INTO orders SELECT %s + i, 1 + i %% 300, i, 'new' FROM generate_series(1, 4000) i"
    conn.execute(moved, (number,))
    conn.execute("DELETE FROM orders WHERE id %% 101 = %s", (number,))
    conn.execute(new, (ROWS + number * 10_000,))


def _kill_within(stack: Stack, conn: psycopg.Connection[Any], kill: Kill) -> None:
    """Begin the work, and end the engine in the middle of it."""
    with _history_locked(stack.server.dsn) if kill.held else contextlib.nullcontext():
        working = threading.Thread(target=_work, args=(stack.server.dsn, kill.work), daemon=True)
        working.start()
        _reached(conn, kill, working)
        stack.kill_engine()
    working.join(60)
    assert not working.is_alive(), f"{kill.work}: the caller was never told that the engine is gone"


def _work(dsn: str, work: str) -> None:
    with _client(dsn) as client, contextlib.suppress(runnel.RunnelError, psycopg.Error):
        if work == "build":
            client.create_stream_table("listed", QUERIES["listed"], "@yearly", "DIFFERENTIAL")
        elif work == "publish":
            client.alter_stream_table("listed", sink="ducklake")
        else:
            client.refresh("listed")


def _reached(conn: psycopg.Connection[Any], kill: Kill, working: threading.Thread, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while conn.execute(kill.reached.encode()).fetchone() is None:
        assert working.is_alive(), f"{kill.work} was over before it was seen {kill.moment}"
        assert time.monotonic() < end, f"{kill.work}: never seen {kill.moment}"
        time.sleep(0.002)


@contextlib.contextmanager
def _history_locked(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE pgtrickle.pgt_refresh_history IN EXCLUSIVE MODE")
        yield


@contextlib.contextmanager
def _client(dsn: str) -> Iterator[runnel.Client]:
    with contextlib.closing(runnel.connect(dsn)) as client:
        yield client


def _recovered(client: runnel.Client, kill: Kill) -> None:
    """If it is there, it equals its query after its next refresh. The other one waits for the end."""
    if any(s.name == "listed" for s in client.status()):
        result = client.verify("listed")
        assert result.ok, f"{kill}: missing {result.missing[:5]}, unexpected {result.unexpected[:5]}"


def _nothing_odd(conn: psycopg.Connection[Any]) -> None:
    """Nobody noticed anything wrong and computed everything anew."""
    odd = conn.execute(
        "SELECT t.pgt_name, h.action, h.status, h.reason, h.error_message FROM pgtrickle.pgt_refresh_history h "
        "JOIN pgtrickle.pgt_stream_tables t USING (pgt_id) "
        "WHERE h.status <> 'COMPLETED' OR h.action NOT IN ('INITIAL', 'DIFFERENTIAL')"
    ).fetchall()
    assert not odd, odd


def _same(conn: psycopg.Connection[Any], client: runnel.Client, place: Place) -> None:
    with place.duck() as duck:
        for name in QUERIES:
            assert client.verify(name).ok, name
            assert_equal(duck_bag(conn, duck, name), pg_bag(conn, name), name)


def _nothing_left(conn: psycopg.Connection[Any], unlogged: set[str]) -> None:
    """No temporary table of a dead session, no staging table, no state of a stream table that is not there."""
    eventually(lambda: not _tables(conn, "relpersistence = 't'"), 10, what="temporary tables are left")
    assert _tables(conn, UNLOGGED) == unlogged, "staging tables are left"
    ids = {str(i) for (i,) in conn.execute("SELECT pgt_id FROM pgtrickle.pgt_stream_tables").fetchall()}
    state = _tables(conn, "relnamespace = 'pgtrickle_state'::regnamespace")
    strangers = {name for name in state if not ids & set(re.findall(r"^[a-z]+_(\d+)", name))}
    assert not strangers, f"tables of stream tables that are not there: {strangers}"


def _tables(conn: psycopg.Connection[Any], which: str) -> set[str]:
    query = f"SELECT relname FROM pg_class WHERE relkind = 'r' AND {which}"
    return {name for (name,) in conn.execute(query.encode()).fetchall()}
