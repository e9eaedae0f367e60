"""SIGKILL for an engine that publishes, at random moments under continuous writes: lake and PostgreSQL agree."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any

import psycopg
import pytest

import runnel
from runnel.server.embedded import EmbeddedServer
from tests.e2e.helpers import eventually
from tests.lake.compare import assert_equal, duck_bag, pg_bag
from tests.lake.flaky import Flaky
from tests.lake.health import assert_counts_right, known_files, stored_files
from tests.lake.places import Place
from tests.lake.sizes import FULL, KILLS, chance
from tests.robustness.processes import Process
from tests.robustness.stack import Stack
from tests.robustness.workload import STREAM_TABLES, TABLES, Writers

MODES = {"revenue": "merge", "lifetime": "merge", "balances": "replace", "total": "merge", "entries": "append"}
SLOW = 0.05
"""Seconds that every request to the store takes, so that a kill may hit the middle of a publication."""

UNFINISHED = "SELECT count(*) FROM pgtrickle.pgt_lake_uploads"
PUBLISHED_TWICE = """
SELECT stream_table_name, refresh_id, count(*) FROM pgtrickle.pgt_ducklake_provenance GROUP BY 1, 2 HAVING count(*) > 1
"""
UNSIGNED = """
SELECT snapshot_id FROM ducklake.ducklake_snapshot_changes c WHERE author LIKE 'pg_trickle/%/stream_table/%'
AND NOT EXISTS (SELECT FROM pgtrickle.pgt_ducklake_provenance p WHERE p.ducklake_snapshot_id = c.snapshot_id)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["store", "folder"] if FULL else ["store"])
def test_lake_and_postgres_agree_after_kills(
    durable: EmbeddedServer, processes: list[Process], flaky: Flaky, bucket: str, data_path: str, where: str
) -> None:
    choice = chance(f"kills {where}")
    flaky.be("slow", seconds=SLOW)
    # The engine's way to the store is the slow one, and its credentials come from where they usually come from.
    stack = Stack(durable, processes, choice, env=flaky.s3.environment)
    place = Place(durable.dsn, bucket, flaky.s3) if where == "store" else Place(durable.dsn, data_path)
    with psycopg.connect(durable.dsn, autocommit=True) as conn:
        conn.execute(TABLES.encode())
        stack.start_engine()
        place.attach(conn, credentials=False)
    with contextlib.closing(runnel.connect(durable.dsn)) as client:
        for name, query in STREAM_TABLES.items():
            client.create_stream_table(
                name, query, "1s", "DIFFERENTIAL", sink="ducklake", ducklake_sink_mode=MODES[name]
            )
    writers = Writers(durable.dsn, count=2, pause=0.05, seed=choice.randrange(1_000_000))
    writers.start()
    hits: Counter[str] = Counter()
    try:
        for _ in range(KILLS):
            hits[_kill_somewhere(stack)] += 1
            stack.start_engine()
    finally:
        writers.stop()
    print(f"{KILLS} kills: {dict(hits)}, {dict(stack.hits)}, {writers.committed} transactions")
    flaky.be("none")
    with psycopg.connect(durable.dsn, autocommit=True) as conn:
        _agree(conn, place)
        left = _run_maintenance(conn)
        print(f"{left} uploads were left unfinished before maintenance")
        # What the last kill left is removed by the engine after it, beside its other work.
        eventually(lambda: stored_files(place.data_path, place.s3) <= known_files(conn), 10, what="files are left")
        place.check(conn)
        _agree(conn, place)
    assert stack.engine.stop() == 0, stack.engine.tail()


def _kill_somewhere(stack: Stack) -> str:
    """In a refresh, in an upload or just after one, or at any time; says which."""
    where = stack.chance.choice(("refresh", "upload", "upload", "any"))
    with psycopg.connect(stack.server.dsn, autocommit=True) as conn:
        if where == "any":
            time.sleep(stack.chance.uniform(0, 3))
        elif where == "refresh":
            stack.await_refresh(conn)
        else:
            # A path is written down before its file is.
            with contextlib.suppress(AssertionError):
                eventually(lambda: conn.execute(UNFINISHED).fetchone() != (0,), 20)
            time.sleep(stack.chance.choice((0.0, SLOW / 2, SLOW, SLOW, 2 * SLOW, 4 * SLOW)) * stack.chance.random())
        stack.note(conn, "engine")
        stack.kill_engine()
    return where


def _agree(conn: psycopg.Connection[Any], place: Place) -> None:
    """Every stream table equals its query, and DuckDB equals it."""
    with contextlib.closing(runnel.connect(place.dsn)) as client, place.duck() as duck:
        for name in STREAM_TABLES:
            result = client.verify(name)
            assert result.ok, f"{name}: missing {result.missing[:5]}, unexpected {result.unexpected[:5]}"
        assert {s.status for s in client.status()} == {"ACTIVE"}
        for name, mode in MODES.items():
            assert_equal(duck_bag(conn, duck, name), pg_bag(conn, name), f"{name} ({mode})")
            assert_counts_right(duck, f"{name}__{'log' if mode == 'append' else 'rows'}")
    assert not conn.execute(PUBLISHED_TWICE).fetchall()
    assert not conn.execute(UNSIGNED.encode()).fetchall()


def _run_maintenance(conn: psycopg.Connection[Any]) -> int:
    """Once, by hand; says how many uploads had no end."""
    (before,) = conn.execute(UNFINISHED).fetchone() or (0,)
    conn.execute("SELECT pgtrickle.maintain_ducklake('lake')")
    return int(before)
