"""SIGKILL for relay, engine, PostgreSQL and a broker under load: nothing is lost, nothing is twice."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from runnel.server.embedded import EmbeddedServer
from tests.e2e.helpers import eventually
from tests.lake.duck import Duck
from tests.lake.health import known_files, stored_files
from tests.relay.brokers import redis_server
from tests.robustness.processes import Process
from tests.robustness.stack import Stack

KILLS = int(os.environ.get("RUNNEL_RELAY_KILLS", "12"))
KEYS = 5
LAG = "SELECT count(*) FROM tide.relay_pipeline_lag WHERE lag > 0"


class Writer(threading.Thread):
    """Orders and events, each pair in one transaction; goes on when the server is back."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self.dsn, self.stopping = dsn, threading.Event()

    def run(self) -> None:
        chance = random.Random(1)
        while not self.stopping.is_set():
            try:
                with psycopg.connect(self.dsn, autocommit=True) as conn:
                    while not self.stopping.wait(0.01):
                        self._write(conn, chance.randrange(KEYS))
            except psycopg.Error:
                self.stopping.wait(0.2)

    def _write(self, conn: psycopg.Connection[Any], key: int) -> None:
        with conn.transaction():
            row = conn.execute(
                "UPDATE counters SET n = n + 1 WHERE key = %s RETURNING n", (key,)
            ).fetchone()  # fmt: skip
            assert row is not None
            conn.execute("INSERT INTO orders (region, amount) VALUES (%s, %s)", (f"r{key}", row[0]))
            event = {"key": key, "n": row[0]}
            conn.execute("SELECT tide.outbox_publish('events', %s, %s)", (Jsonb(event), Jsonb({"key": f"k{key}"})))


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_is_twice(
    durable: EmbeddedServer, processes: list[Process], folder: Path, tmp_path: Path
) -> None:
    chance = random.Random(7)
    lake, stream = tmp_path / "lake", tmp_path / "redis"
    lake.mkdir()
    stream.mkdir()
    stack = Stack(durable, processes, chance)
    stack.start_engine()
    with ExitStack() as running:
        redis = running.enter_context(redis_server(stream))
        _prepare(durable.dsn, lake, folder, redis.url)
        relay = _relay(durable.dsn, processes)
        writer = Writer(durable.dsn)
        writer.start()
        killed: Counter[str] = Counter()
        engines = {KILLS // 3, 2 * KILLS // 3}
        for number in range(KILLS):
            time.sleep(chance.random() * 1.5)
            victim = "engine" if number in engines else chance.choice(["relay"] * 4 + ["postgres", "redis"])
            killed[victim] += 1
            if victim == "relay":
                relay.kill()
                relay = _relay(durable.dsn, processes)
            elif victim == "engine":
                stack.kill_engine()
                stack.start_engine()
            elif victim == "postgres":
                stack.crash_server()
            else:
                redis.kill()
                time.sleep(0.3)
                redis.start()
        writer.stopping.set()
        writer.join(30)
        print(f"killed: {dict(killed)}")
        with psycopg.connect(durable.dsn, autocommit=True) as db:
            eventually(lambda: _settled(db), 120)
            counts = dict(db.execute("SELECT key, n FROM counters").fetchall())
            assert min(counts.values()) > 5, "there was no load"
            _files_agree(folder, counts)
            _redis_agrees(redis.url, counts)
            with Duck(durable.dsn) as duck:
                _lake_agrees(db, duck, counts)
            # What killed relays have uploaded in vain is found by the engine.
            eventually(lambda: stored_files(f"{lake}/", None) <= known_files(db), 30)
        assert relay.stop() == 0, relay.tail()
    assert stack.engine.stop() == 0, stack.engine.tail()


def _prepare(dsn: str, lake: Path, folder: Path, redis: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, region text, amount numeric(10,2))")
        db.execute("CREATE TABLE counters (key int PRIMARY KEY, n int NOT NULL)")
        db.execute("INSERT INTO counters SELECT k, 0 FROM generate_series(0, %s) k", (KEYS - 1,))
        db.execute(
            "SELECT pgtrickle.attach_ducklake('lake', catalog_schema => 'ducklake', data_path => %s, "
            "create_if_missing => true, make_default => true)",
            (f"{lake}/",),
        )
        db.execute(
            "SELECT pgtrickle.create_stream_table('revenue', 'SELECT region, sum(amount) AS total, count(*) AS n "
            "FROM orders GROUP BY region', '1s')"
        )
        db.execute("SELECT pgtrickle.attach_outbox('revenue')")
        db.execute("SELECT tide.relay_set_outbox('revenue', 'ducklake')")
        db.execute("SELECT tide.outbox_create('events')")
        for name, sink, config in (
            ("lake", "ducklake", {"table": "events"}),
            ("file", "file", {"path": str(folder)}),
            ("redis", "redis", {"url": redis, "stream": "events", "retry_backoff_max_ms": 500}),
        ):
            wanted = {"name": name, "outbox": "events", "sink_type": sink, "config": config, "batch_size": 20}
            db.execute("SELECT tide.relay_set_outbox_v2(%s)", (Jsonb(wanted),))


def _relay(dsn: str, processes: list[Process]) -> Process:
    started = Process([sys.executable, "-m", "runnel.cli.main", "relay"], env={"RUNNEL_DSN": dsn})
    processes.append(started)
    started.wait_for("at work", 60)
    return started


def _settled(db: psycopg.Connection[Any]) -> bool:
    """Whether the stream table has all orders, and every pipeline all messages."""
    fresh = "SELECT (SELECT sum(n) FROM revenue) = (SELECT count(*) FROM orders)"
    return bool((db.execute(fresh).fetchone() or [False])[0]) and db.execute(LAG).fetchone() == (0,)


def _in_order(messages: list[tuple[str, dict[str, int]]], counts: dict[int, int]) -> None:
    """As a reader sees them that knows keys it has seen: complete, and in order per key."""
    seen: dict[str, dict[str, int]] = {}
    for key, payload in messages:
        seen.setdefault(key, payload)
    by_key: dict[int, list[int]] = defaultdict(list)
    for payload in seen.values():
        by_key[payload["key"]].append(payload["n"])
    assert by_key == {key: list(range(1, n + 1)) for key, n in counts.items()}


def _files_agree(folder: Path, counts: dict[int, int]) -> None:
    lines = [json.loads(line) for file in sorted(folder.glob("*.ndjson")) for line in file.read_text().splitlines()]
    _in_order([(line["dedup_key"], line["payload"]) for line in lines], counts)


def _redis_agrees(url: str, counts: dict[int, int]) -> None:
    import redis

    client = redis.Redis.from_url(url, decode_responses=True)
    entries = client.xrange("events")
    client.close()
    print(f"{len(entries) - sum(counts.values())} of {len(entries)} came to Redis twice")
    _in_order([(fields["dedup_key"], json.loads(fields["payload"])) for _, fields in entries], counts)


def _lake_agrees(db: psycopg.Connection[Any], duck: Duck, counts: dict[int, int]) -> None:
    """Exactly once: also for a reader that knows no keys."""
    offsets = [n for (n,) in duck.rows('SELECT "offset" FROM events ORDER BY 1')]
    assert offsets == list(range(1, sum(counts.values()) + 1))
    query = "SELECT region, total, n FROM revenue"
    assert duck.bag(query) == Counter(db.execute(query).fetchall())
    doubled = duck.rows(
        "SELECT __offset, region, __action, count(*) FROM revenue__log GROUP BY ALL HAVING count(*) > 1"
    )
    assert doubled == []
