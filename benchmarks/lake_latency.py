"""How long from the commit of an order until DuckDB sees it in the lake?"""

from __future__ import annotations

import time
from collections.abc import Sequence

import psycopg

from benchmarks.lake import POLL_SECONDS, watching
from benchmarks.report import Answer, Grid, Target
from benchmarks.shop import PRODUCTS, Shop, open_shop
from benchmarks.stack import Bench
from benchmarks.timing import LAKE_STEPS, breakdown, count, median, ms, percentile
from runnel.client import Refresh

DAY = "1980-01-01"
"""Marks the orders of this benchmark: one writer, so the n-th commit is visible when n of them are counted."""

SCHEDULE = "200ms"
RATES = {1: 1, 100: 1, 1000: 10}
"""Orders per second, and how many of them a transaction has."""


def run(bench: Bench) -> Answer:
    """One writer at a steady rate, and a DuckDB in a process of its own that polls the lake."""
    size = 100_000 if bench.quick else 1_000_000
    seconds = 8 if bench.quick else 60
    shop = open_shop(bench, size)
    bench.start_engine()
    _warm_up(bench, shop, 5 if bench.quick else 30)
    rows, steps, waits = [], {}, {}
    for rate, batch in RATES.items():
        name = f"live_{rate}"
        bench.conn.execute(f"DELETE FROM {shop.schema}.orders WHERE ordered_at = '{DAY}'".encode())
        bench.client.create_stream_table(
            f"{shop.schema}.{name}", shop.revenue, SCHEDULE, "DIFFERENTIAL", sink="ducklake", inline_small_changes=False
        )
        waited, refreshes = _measure(bench, shop, name, rate, batch, seconds)
        assert bench.client.verify(f"{shop.schema}.{name}").ok
        bench.client.drop_stream_table(f"{shop.schema}.{name}")
        label = f"{rate:,} per s"
        waits[label] = waited
        steps[label] = [(r.milliseconds or 0.0, r) for r in refreshes]
        shares = [ms(percentile(waited, share)) for share in (0.5, 0.95, 0.99)]
        rows.append([label, *shares, ms(max(waited)), f"{len(waited):,}", str(len(refreshes))])
    p50 = max(median(each) for each in waits.values())
    p99 = max(percentile(each, 0.99) for each in waits.values())
    return Answer(
        question="Commit of an order to visible in the lake, for DuckDB",
        setup=(
            f"revenue_by_day over {count(size)} orders, schedule `{SCHEDULE}`, `sink => 'ducklake'` in mode merge, as "
            f"Parquet, without inlining, on the file system; {seconds} s at each rate, one order per transaction (ten "
            "at 1,000 per s). A DuckDB client in a process of its own queries the lake every "
            f"{POLL_SECONDS * 1000:.0f} ms. Writer, server, engine and DuckDB share the machine."
        ),
        grid=Grid(("orders", "p50", "p95", "p99", "longest", "orders seen", "refreshes"), rows),
        breakdown=breakdown("orders", steps, LAKE_STEPS),
        targets=(
            Target("commit to lake, p50", "at most 150 ms at every rate", ms(p50), p50 <= 150),
            Target("commit to lake, p99", "at most 2 s at every rate", ms(p99), p99 <= 2000),
        ),
    )


def _warm_up(bench: Bench, shop: Shop, rounds: int) -> None:
    """An engine that has been at work for a while, not one whose code is compiled just now."""
    name = f"{shop.schema}.warm"
    bench.client.create_stream_table(name, shop.revenue, "@yearly", "DIFFERENTIAL", sink="ducklake")
    for _ in range(rounds):
        shop.place_orders(10)
        bench.client.refresh(name)
    bench.client.drop_stream_table(name)


def _measure(
    bench: Bench, shop: Shop, name: str, rate: int, batch: int, seconds: int
) -> tuple[list[float], list[Refresh]]:
    """Milliseconds from commit to sight, per order; and the refreshes meanwhile."""
    total = rate * seconds
    query = f"SELECT sum(order_count) FROM lake.{shop.schema}.{name} WHERE day = '{DAY}'"
    with watching(bench.dsn, query, total) as watcher:
        assert watcher.recv() == "ready"
        before = bench.client.history(f"{shop.schema}.{name}", 1)[0].start_time
        committed = _write(bench.dsn, shop, rate, batch, total)
        if not watcher.poll(60):
            watcher.send("enough")
        seen = watcher.recv()
    refreshes = [r for r in bench.client.history(f"{shop.schema}.{name}", 1000) if r.start_time > before]
    return _waits(committed, seen), [r for r in refreshes if r.changes_read]


def _write(dsn: str, shop: Shop, rate: int, batch: int, total: int) -> list[float]:
    """The moment of each order's commit."""
    statement = (
        f"INSERT INTO {shop.schema}.orders (customer_id, product_id, total_usd, status, ordered_at) "
        f"SELECT 1 + i %% 1000, 1 + i %% {PRODUCTS}, 1, 'shipped', '{DAY}' FROM generate_series(%s::int, %s::int) i"
    ).encode()
    committed: list[float] = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        began = time.perf_counter()
        for number in range(0, total, batch):
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            conn.execute(statement, (number, number + batch - 1))
            committed += [time.perf_counter()] * batch
    return committed


def _waits(committed: Sequence[float], seen: Sequence[tuple[float, int]]) -> list[float]:
    waited: list[float] = []
    for moment, number in seen:
        waited += [(moment - each) * 1000 for each in committed[len(waited) : number]]
    assert len(waited) == len(committed), f"{len(waited)} of {len(committed)} orders became visible in the lake"
    return waited
