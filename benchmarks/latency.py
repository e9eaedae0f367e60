"""How long from the commit of an order until readers see it in the stream table?"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from benchmarks.report import Answer, Grid
from benchmarks.shop import PRODUCTS, open_shop
from benchmarks.stack import Bench
from benchmarks.timing import breakdown, count, median, ms, percentile
from runnel.client import Refresh

DAY = "1980-01-01"
"""Marks the orders of this benchmark: one writer, so the n-th commit is visible when n of them are counted."""


def run(bench: Bench) -> Answer:
    """One writer at a steady rate, one reader that polls."""
    size = 100_000 if bench.quick else 1_000_000
    seconds = 8 if bench.quick else 60
    shop = open_shop(bench, size)
    bench.start_engine()
    rows, steps = [], {}
    for rate in (1, 100):
        name = f"{shop.schema}.live_{rate}"
        bench.client.create_stream_table(name, shop.revenue, "1s", "DIFFERENTIAL")
        bench.conn.execute(f"DELETE FROM {shop.schema}.orders WHERE ordered_at = '{DAY}'".encode())
        bench.client.refresh(name)
        before = bench.client.history(name, 1)[0].start_time
        waited = _measure(bench.dsn, shop.schema, name, rate, seconds)
        refreshes = [r for r in bench.client.history(name, 500) if r.start_time > before and r.changes_read]
        steps[f"{rate} per s"] = [(r.milliseconds or 0.0, r) for r in refreshes]
        assert bench.client.verify(name).ok
        bench.client.drop_stream_table(name)
        rows.append(
            [
                f"{rate} per s",
                ms(median(waited)),
                ms(percentile(waited, 0.95)),
                ms(max(waited)),
                str(len(waited)),
                str(len(refreshes)),
            ]
        )
    return Answer(
        question="Commit of an order to visible in the stream table",
        setup=(
            f"revenue_by_day over {count(size)} orders, schedule `1s`, {seconds} s at each rate; one transaction per "
            "order; a reader polls every 5 ms. A schedule is the least time between two refreshes: a lone order is "
            "refreshed at once, a steady flow waits up to a second for its turn."
        ),
        grid=Grid(("orders", "p50", "p95", "longest", "orders seen", "refreshes"), rows),
        breakdown=breakdown("orders", _typed(steps)),
    )


def _typed(steps: dict[str, list[tuple[float, Refresh]]]) -> dict[str, list[tuple[float, Refresh]]]:
    return {label: taken for label, taken in steps.items() if taken}


def _measure(dsn: str, schema: str, name: str, rate: int, seconds: int) -> list[float]:
    """Milliseconds from commit to sight, per order."""
    total = rate * seconds
    committed: list[float] = []
    seen: list[float] = []

    def write(conn: psycopg.Connection[Any]) -> None:
        began = time.perf_counter()
        for number in range(total):
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            conn.execute(
                f"INSERT INTO {schema}.orders (customer_id, product_id, total_usd, status, ordered_at) "
                f"VALUES (%s, %s, 1, 'shipped', '{DAY}')".encode(),
                (1 + number % 1000, 1 + number % PRODUCTS),
            )
            committed.append(time.perf_counter())

    def read(conn: psycopg.Connection[Any]) -> None:
        give_up = time.perf_counter() + seconds + 30
        while len(seen) < total and time.perf_counter() < give_up:
            query = f"SELECT coalesce(sum(order_count), 0)::int8 FROM {name} WHERE day = '{DAY}'"
            row = conn.execute(query.encode()).fetchone()
            now = time.perf_counter()
            seen.extend([now] * (row[0] - len(seen) if row else 0))
            time.sleep(0.005)

    _together(dsn, write, read)
    assert len(seen) == total, f"{len(seen)} of {total} orders became visible"
    return [(s - c) * 1000 for s, c in zip(seen, committed, strict=True)]


def _together(dsn: str, *actions: Callable[[psycopg.Connection[Any]], None]) -> None:
    def connected(action: Callable[[psycopg.Connection[Any]], None]) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            action(conn)

    threads = [threading.Thread(target=connected, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
