"""SIGKILL for the engine, `-m immediate` for PostgreSQL, at random moments under continuous writes."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, fields
from typing import Any

import psycopg
import pytest

import runnel
from runnel.server.embedded import EmbeddedServer
from tests.robustness.processes import Process
from tests.robustness.stack import Stack
from tests.robustness.workload import STREAM_TABLES, TABLES, Writers

# Engines that publish to a lake are killed in tests/lake/test_proof_kills.py, so the two share the number.
ENGINE_KILLS = int(os.environ.get("RUNNEL_ENGINE_KILLS", "10"))
STARTING_KILLS = min(3, ENGINE_KILLS)
SERVER_KILLS = int(os.environ.get("RUNNEL_SERVER_KILLS", "5"))


@dataclass(frozen=True)
class Kills:
    """How often what is killed."""

    engine: int
    starting: int
    server: int

    def plan(self) -> list[str]:
        return [field.name for field in fields(self) for _ in range(getattr(self, field.name))]


ONCE = Kills(engine=1, starting=0, server=1)
OFTEN = Kills(engine=ENGINE_KILLS - STARTING_KILLS, starting=STARTING_KILLS, server=SERVER_KILLS)


DECODED = Kills(engine=2, starting=0, server=2)
_CAPTURED = "SELECT bool_and(capture = %s) FROM pgtrickle.pgt_change_tracking"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "capture"),
    [(ONCE, "trigger"), (OFTEN, "trigger"), (DECODED, "wal")],
    ids=["once", "often", "from the WAL"],
)
def test_nothing_is_lost_or_doubled(
    durable: EmbeddedServer, processes: list[Process], kills: Kills, capture: str
) -> None:
    seed = int(os.environ.get("RUNNEL_CRASH_SEED", time.time_ns() % 1_000_000))
    print(f"RUNNEL_CRASH_SEED={seed}")
    stack = Stack(durable, processes, random.Random(seed))
    with psycopg.connect(durable.dsn, autocommit=True) as conn:
        assert conn.execute("SHOW fsync").fetchone() == ("on",)
        conn.execute(TABLES.encode())
        if capture == "wal":
            conn.execute("ALTER SYSTEM SET wal_level = 'logical'")
    if capture == "wal":
        stack.crash_server()
    stack.start_engine()
    with contextlib.closing(runnel.connect(durable.dsn)) as client:
        for name, query in STREAM_TABLES.items():
            client.create_stream_table(name, query, "1s", "DIFFERENTIAL", cdc_mode=capture)
    _captured(durable.dsn, capture)
    writers = Writers(durable.dsn, seed=seed)
    writers.start()
    try:
        _break_things(stack, kills)
    finally:
        writers.stop()
    print(f"{dict(stack.hits)}, {writers.committed} transactions")
    with psycopg.connect(durable.dsn, autocommit=True) as conn:
        _catches_up(conn)
        _check(conn, writers, durable.dsn)
    assert stack.engine.stop() == 0, stack.engine.tail()
    assert not stack.engine.leftovers(), "left behind by an engine that ended well"
    within = sum(n for what, n in stack.hits.items() if "within" in what)
    assert within >= len(kills.plan()) // 3, f"too few crashes hit a refresh: {stack.hits}"


def _captured(dsn: str, capture: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    with psycopg.connect(dsn, autocommit=True) as conn:
        while conn.execute(_CAPTURED, (capture,)).fetchone() != (True,):
            assert time.monotonic() < end, "not all sources are captured as they should be"
            time.sleep(0.1)


def _break_things(stack: Stack, kills: Kills) -> None:
    """Kill in random order. A crashed server keeps its engine: that one has to find its way back."""
    plan = kills.plan()
    stack.chance.shuffle(plan)
    for what in plan:
        with psycopg.connect(stack.server.dsn, autocommit=True) as conn:
            if what == "server":
                stack.await_refresh(conn)
                stack.note(conn, "server")
                stack.crash_server()
                assert stack.engine.alive, f"the engine died with the server:\n{stack.engine.tail()}"
                continue
            if what == "starting":
                # While Spark starts, while it takes the lock, or in the first look at what was missed.
                stack.engine.stop()
                stack.start_engine(wait=False)
                time.sleep(stack.chance.uniform(0.5, 5))
            elif stack.chance.random() < 0.15:
                time.sleep(stack.chance.uniform(0, 2))
            else:
                stack.await_refresh(conn)
            stack.note(conn, what)
            stack.kill_engine()
        stack.start_engine()


def _catches_up(conn: psycopg.Connection[Any], seconds: float = 30.0) -> None:
    """The last engine finds everything that was written by itself, also what nobody has told it."""
    end = time.monotonic() + seconds
    query = "SELECT (SELECT count(*) FROM journal WHERE fate <> 'ignored'), (SELECT count(*) FROM entries)"
    while (counts := conn.execute(query).fetchone()) and counts[0] != counts[1]:
        assert time.monotonic() < end, f"journal and entries after {seconds:.0f} s: {counts}"
        time.sleep(0.1)


def _check(conn: psycopg.Connection[Any], writers: Writers, dsn: str) -> None:
    with contextlib.closing(runnel.connect(dsn)) as client:
        for name in STREAM_TABLES:
            result = client.verify(name)
            assert result.ok, f"{name}: missing {result.missing[:5]}, unexpected {result.unexpected[:5]}"
        assert {s.status for s in client.status()} == {"ACTIVE"}
    # A rebuild would hide what a crash had broken: nobody may have needed one.
    odd = conn.execute(
        "SELECT t.pgt_name, h.start_time::text, h.action, h.status, h.reason, h.error_message "
        "FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables t USING (pgt_id) "
        "WHERE h.status <> 'COMPLETED' OR h.action NOT IN ('INITIAL', 'DIFFERENTIAL') ORDER BY h.refresh_id"
    ).fetchall()
    assert not odd, "\n".join(str(row) for row in odd)
    assert conn.execute("SELECT balance, accounts FROM total").fetchone() == (40_000, 40)
    for writer in writers.all:
        seen = Counter(n for (n,) in conn.execute("SELECT number FROM entries WHERE writer = %s", (writer.number,)))
        assert not [n for n, times in seen.items() if times > 1], "doubled"
        assert not writer.acknowledged - seen.keys(), "lost"
        assert not seen.keys() - writer.acknowledged - writer.unknown, "rolled back, and seen"
