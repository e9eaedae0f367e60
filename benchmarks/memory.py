"""How much memory does the engine take while tasks of a cluster build, refresh and publish a large table?"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.lake import duckdb_client
from benchmarks.report import Answer, Grid, Target
from benchmarks.shop import Shop, open_shop
from benchmarks.stack import Bench
from benchmarks.timing import count, ms, timed
from tests.robustness.cluster import standalone
from tests.robustness.processes import none_left

HEAP = "1g"
LIMIT = 2**30
EVERY = 0.1
"""Seconds between two looks."""

BUILD, REFRESH, REFRESH_AND_PUBLISH = "build", "refresh", "refresh, and publish the change"
REFRESHES = (BUILD, REFRESH, REFRESH_AND_PUBLISH)

ROWS = """
SELECT o.id, o.customer_id, p.category, o.quantity, o.total_usd, o.status, o.ordered_at
FROM {schema}.orders o JOIN {schema}.products p ON p.id = o.product_id
"""
DIGEST = "SELECT count(*), sum(total_usd), sum(hashint8(id)::int8), sum(hashtext(category || status)::int8) FROM {}"
LAKE_DIGEST = "SELECT count(*), sum(total_usd) FROM {}"


@dataclass
class Peaks:
    """The largest resident sizes since they were last asked for, in bytes."""

    engine: psutil.Process
    python: int = 0
    jvm: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        while not self._stopping.wait(EVERY):
            with contextlib.suppress(psutil.Error):
                self.python = max(self.python, self.engine.memory_info().rss)
                children = [p.memory_info().rss for p in self.engine.children(recursive=True) if p.name() == "java"]
                self.jvm = max(self.jvm, sum(children))

    def take(self) -> tuple[int, int]:
        """And begin anew."""
        taken, self.python, self.jvm = (self.python, self.jvm), 0, 0
        return taken

    def stop(self) -> None:
        self._stopping.set()


def run(bench: Bench) -> Answer:
    """At the size of the page."""
    return measure(bench, 200_000 if bench.quick else 20_000_000)


def measure(bench: Bench, orders: int) -> Answer:
    """A stream table with a row per order: built, changed, published, and changed again."""
    shop = open_shop(bench, orders)
    bench.stop_engine()
    rows: list[list[str]] = []
    highest = 0
    with _on_a_cluster(bench) as peaks:
        for label, action in _actions(bench, shop).items():
            bench.say(f"memory: {label}")
            peaks.take()
            spent = timed(action)
            python, jvm = peaks.take()
            highest = max(highest, python)
            rows.append(
                [label, ms(spent), _mib(python), _mib(jvm), _longest(bench, shop) if label in REFRESHES else ""]
            )
        _same(bench, shop)
        bench.client.drop_stream_table(f"{shop.schema}.all_orders")
    return Answer(
        question=f"The engine's memory while a stream table of {count(orders)} rows is built, refreshed and published",
        setup=(
            f"A standalone cluster of two workers on this machine, one core each. The driver's heap is {HEAP} "
            f"(`RUNNEL_DRIVER_MEMORY`). Resident sizes are looked at every {EVERY * 1000:.0f} ms; the highest counts."
        ),
        grid=Grid(("step", "time", "engine, Python", "driver, JVM", "longest step"), rows),
        targets=(
            Target("the engine's Python process, peak", "below 1 GiB", _mib(highest), highest < LIMIT),
        ),
    )  # fmt: skip


@contextlib.contextmanager
def _on_a_cluster(bench: Bench) -> Iterator[Peaks]:
    with (
        tempfile.TemporaryDirectory(prefix="runnel-bench-cluster-", ignore_cleanup_errors=True) as folder,
        none_left([]) as processes,
        standalone(Path(folder), processes, memory="2g") as cluster,
    ):
        bench.start_engine("--master", cluster.address, RUNNEL_DRIVER_MEMORY=HEAP)
        assert bench.engine is not None
        peaks = Peaks(psutil.Process(bench.engine.pid))
        threading.Thread(target=peaks.watch, daemon=True).start()
        try:
            yield peaks
        finally:
            peaks.stop()
            bench.stop_engine()


def _actions(bench: Bench, shop: Shop) -> dict[str, Callable[[], object]]:
    name, client = f"{shop.schema}.all_orders", bench.client
    query = ROWS.format(schema=shop.schema)
    change = f"UPDATE {shop.schema}.orders SET total_usd = total_usd + 1 WHERE id %% 10 = %s".encode()
    return {
        BUILD: lambda: client.create_stream_table(name, query, "@yearly", "DIFFERENTIAL"),
        "a tenth of the orders is updated": lambda: bench.conn.execute(change, (1,)),
        REFRESH: lambda: client.refresh(name),
        "publish to the lake": lambda: client.alter_stream_table(name, sink="ducklake"),
        "another tenth is updated": lambda: bench.conn.execute(change, (2,)),
        REFRESH_AND_PUBLISH: lambda: client.refresh(name),
    }


def _longest(bench: Bench, shop: Shop) -> str:
    """The step of the last refresh that took the most time."""
    timings = bench.client.history(f"{shop.schema}.all_orders", 1)[0].timings or {}
    longest = max(timings, key=lambda step: timings[step], default="-")
    return f"{longest} {ms(timings.get(longest, 0.0))}"


def _same(bench: Bench, shop: Shop) -> None:
    """The table, its query, and what DuckDB finds."""
    name = f"{shop.schema}.all_orders"
    mine = bench.conn.execute(DIGEST.format(name).encode()).fetchone()
    query = bench.conn.execute(DIGEST.format(f"({ROWS.format(schema=shop.schema)}) q").encode()).fetchone()
    assert mine == query, f"{name} differs from its query: {mine}, {query}"
    with duckdb_client(bench) as duck:
        there = duck.execute(LAKE_DIGEST.format(f"lake.{name}")).fetchone()
    assert mine is not None
    assert there == mine[:2], f"the lake differs: {there}, {mine}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
