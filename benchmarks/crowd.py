"""Many stream tables at once: how old are they, and what do idle ones cost?"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import psycopg

from benchmarks.report import Answer, Grid, Target
from benchmarks.stack import Bench
from benchmarks.timing import median, percentile

SCHEMA = "crowd"
RATE = 100
"""Transactions per second, over all sources."""
SHAPES = (
    "SELECT k, count(*) AS n, sum(x) AS s FROM {source} GROUP BY k",
    "SELECT k, count(*) AS n, max(x) AS m FROM {source} GROUP BY k",
    "SELECT 1 AS n, id, x FROM {source} WHERE x >= 0",
    "SELECT d.name, count(*) AS n, sum(x) AS s FROM {source} t JOIN crowd.d ON d.k = t.k GROUP BY d.name",
    "SELECT x % 10 AS digit, count(*) AS n FROM {source} GROUP BY 1",
)


@dataclass
class Crowd:
    """Stream tables over sources, and what is seen of them."""

    sources: Sequence[str]
    tables: dict[str, int]
    """Each with the number of the source that it reads."""
    commits: dict[int, list[float]] = field(default_factory=dict)
    """When each transaction on a source was committed."""
    staleness: list[float] = field(default_factory=list)


def run(bench: Bench) -> Answer:
    """A hundred that are busy; ten that are, alone and among many that are not."""
    seconds = 10 if bench.quick else 40
    size = (4, 20, 40) if bench.quick else (10, 100, 500)
    sources, tables, idle = size
    bench.start_engine()
    rows = []
    _prepare(bench, sources)
    busy = _create(bench, range(sources), tables)
    rows.append(_row(f"{tables} busy tables over {sources} sources", *_measure(bench, busy, seconds)))
    worst = rows[-1][3]
    for name in list(busy.tables)[10:]:
        bench.client.drop_stream_table(name)
        del busy.tables[name]
    rows.append(_row("10 busy tables", *_measure(bench, busy, seconds)))
    still = _create(bench, [sources], idle - 10, "idle")
    rows.append(_row(f"10 busy tables among {idle}", *_measure(bench, busy, seconds)))
    wrong = [name for name in [*busy.tables][:10] if not bench.client.verify(name).ok]
    assert not wrong, wrong
    for name in [*busy.tables, *still.tables]:
        bench.client.drop_stream_table(name)
    return Answer(
        question="Many stream tables at once",
        setup=(
            f"Schedule `1s`, {RATE} transactions of one row each per second, dealt out to the sources of busy tables; "
            f"{seconds} s. Groups, joins and plain rows in turn. A table is as old as the oldest commit that it does "
            "not show, looked at twice a second; processor time is that of engine, Spark and server."
        ),
        grid=Grid(("stream tables", "p50", "p95", "p99", "refreshes per s", "cores used"), rows),
        targets=(Target(f"age of {tables} busy tables, p95", "at most 3 s", worst, float(worst.split()[0]) <= 3),),
    )


def _row(what: str, ages: Sequence[float], refreshes: float, cores: float) -> list[str]:
    p95, p99 = percentile(ages, 0.95), percentile(ages, 0.99)
    return [what, f"{median(ages):.2f} s", f"{p95:.2f} s", f"{p99:.2f} s", f"{refreshes:.1f}", f"{cores:.2f}"]


def _prepare(bench: Bench, sources: int) -> None:
    bench.conn.execute(f"CREATE SCHEMA {SCHEMA}".encode())
    bench.conn.execute("CREATE TABLE crowd.d (k int PRIMARY KEY, name text)")
    bench.conn.execute("INSERT INTO crowd.d SELECT k, 'name ' || k FROM generate_series(0, 99) k")
    for number in range(sources + 1):
        # The last one is for those that are idle.
        bench.conn.execute(f"CREATE TABLE crowd.t{number} (id int, k int, x int)".encode())


def _create(bench: Bench, sources: Sequence[int], count: int, prefix: str = "st") -> Crowd:
    crowd = Crowd([f"crowd.t{n}" for n in sources], {})
    for number in range(count):
        source = sources[number % len(sources)]
        name = f"crowd.{prefix}_{number}"
        query = SHAPES[number // len(sources) % len(SHAPES)].format(source=f"crowd.t{source}")
        bench.client.create_stream_table(name, query, "1s")
        crowd.tables[name] = source
    return crowd


def _measure(bench: Bench, crowd: Crowd, seconds: int) -> tuple[list[float], float, float]:
    """Ages of all tables at many moments, refreshes per second, and cores used."""
    sources = sorted(set(crowd.tables.values()))
    crowd.commits = {n: [] for n in sources}
    crowd.staleness = []
    before = {name: _seen(bench.conn, [name])[name] for name in crowd.tables}
    until = threading.Event()
    writer = threading.Thread(target=_write, args=(bench.dsn, crowd, sources, until))
    writer.start()
    # The first seconds make plans and temporary tables.
    time.sleep(min(10, seconds / 2))
    refreshes, used, began = _refreshes(bench), _processor_time(bench), time.monotonic()
    with psycopg.connect(bench.dsn, autocommit=True) as reader:
        while time.monotonic() - began < seconds:
            _look(reader, crowd, before)
            time.sleep(0.5)
    spent = time.monotonic() - began
    measured = (_refreshes(bench) - refreshes) / spent, (_processor_time(bench) - used) / spent
    until.set()
    writer.join()
    return crowd.staleness, *measured


def _write(dsn: str, crowd: Crowd, sources: Sequence[int], until: threading.Event) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        began, number = time.monotonic(), 0
        while not until.is_set():
            time.sleep(max(0.0, began + number / RATE - time.monotonic()))
            source = sources[number % len(sources)]
            values = (number, number % 100, number)
            conn.execute(f"INSERT INTO crowd.t{source} VALUES (%s, %s, %s)".encode(), values)
            crowd.commits[source].append(time.monotonic())
            number += 1


def _look(conn: psycopg.Connection[Any], crowd: Crowd, before: dict[str, int]) -> None:
    now = time.monotonic()
    for name, rows in _seen(conn, list(crowd.tables)).items():
        commits = crowd.commits[crowd.tables[name]]
        shown = rows - before[name]
        missing = commits[shown : shown + 1]
        crowd.staleness.append(max(0.0, now - missing[0]) if missing else 0.0)


def _seen(conn: psycopg.Connection[Any], tables: Sequence[str]) -> dict[str, int]:
    """How many rows of its source each table shows."""
    each = " UNION ALL ".join(f"SELECT '{name}', coalesce(sum(n), 0)::int8 FROM {name}" for name in tables)
    return dict(conn.execute(each.encode()).fetchall())


def _refreshes(bench: Bench) -> int:
    row = bench.conn.execute("SELECT coalesce(max(refresh_id), 0) FROM pgtrickle.pgt_refresh_history").fetchone()
    return int(row[0]) if row else 0


def _processor_time(bench: Bench) -> float:
    """Seconds of engine, JVM and server, with those of processes that have ended."""
    assert bench.engine is not None
    server = int((bench.server.home.data / "postmaster.pid").read_text().splitlines()[0])
    roots = [psutil.Process(bench.engine.pid), psutil.Process(server)]
    total = 0.0
    for root in roots:
        for process in [root, *root.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
    return total
