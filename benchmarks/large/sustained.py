"""How many rows per second go from captured tables through a join and an aggregate to the lake, and stay in step?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from benchmarks.lake import duckdb_client
from benchmarks.report import Answer, Grid
from benchmarks.shop import PRODUCTS, Shop, open_shop
from benchmarks.stack import Bench
from benchmarks.timing import LAKE_STEPS, count
from runnel.client import Refresh

SCHEDULE = "1s"
AHEAD = 10
"""So many batches may wait to be refreshed: more would only say how much memory a queue takes."""

ENRICHED = """
SELECT o.id, o.customer_id, p.category, o.total_usd, o.ordered_at
FROM {schema}.orders o JOIN {schema}.products p ON p.id = o.product_id
"""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one stream table has done with the same changes."""

    captured: int
    seconds: float
    """From the first commit until the last row is in the lake."""
    refreshes: Sequence[Refresh]

    @property
    def lake_rows(self) -> int:
        return sum((r.rows_inserted or 0) + (r.rows_deleted or 0) for r in self.refreshes)


def run(bench: Bench) -> Answer:
    """At the size of the page."""
    return measure(bench, 100_000, 50_000, 5_000) if bench.quick else measure(bench, 1_000_000, 2_000_000, 20_000)


def measure(bench: Bench, orders: int, changes: int, batch: int) -> Answer:
    """One stream table after the other has a writer that keeps it busy."""
    shop = open_shop(bench, orders)
    bench.start_engine()
    queries = {"join": ENRICHED.format(schema=shop.schema), "join and aggregate": shop.revenue}
    taken = {
        label: _busy(bench, shop, f"busy_{number}", query, changes, batch)
        for number, (label, query) in enumerate(queries.items())
    }
    rows = [
        [
            label,
            f"{each.captured:,}",
            f"{each.captured / each.seconds:,.0f}",
            f"{each.lake_rows / each.seconds:,.0f}",
            str(len(each.refreshes)),
            f"{_work(each.refreshes) / each.seconds:.0%}",
        ]
        for label, each in taken.items()
    ]
    return Answer(
        question="Sustained: captured rows through a join and an aggregate to the lake",
        setup=(
            f"A shop of {count(orders)} orders. A writer inserts {count(batch)} orders per transaction, updates a "
            f"tenth and deletes a twentieth as many (an update is two rows), and waits only while {AHEAD} batches are "
            f"not in the stream table yet. Schedule `{SCHEDULE}`, `sink => 'ducklake'`. The clock runs until "
            "the lake holds the last change. Writer, server and engine share the machine."
        ),
        grid=Grid(("stream table", "captured", "captured / s", "lake rows / s", "refreshes", "engine busy"), rows),
        breakdown=_shares(taken),
        unit="share of all refreshes",
    )


def _busy(bench: Bench, shop: Shop, name: str, query: str, changes: int, batch: int) -> Traffic:
    table = f"{shop.schema}.{name}"
    bench.client.create_stream_table(table, query, SCHEDULE, "DIFFERENTIAL", sink="ducklake")
    before = bench.client.history(table, 1)[0].start_time
    began = time.perf_counter()
    captured = _write(bench, shop, table, changes, batch)
    seconds = _caught_up(bench, table) - began
    refreshes = [r for r in bench.client.history(table, 10_000) if r.start_time > before and r.changes_read]
    assert all(r.status == "COMPLETED" for r in refreshes), refreshes
    assert bench.client.verify(table).ok, f"{table} differs from its query"
    with duckdb_client(bench) as duck:
        there = duck.execute(f"SELECT count(*) FROM lake.{table}").fetchone()
        assert there == bench.conn.execute(f"SELECT count(*) FROM {table}".encode()).fetchone(), there
    bench.client.drop_stream_table(table)
    return Traffic(captured, seconds, refreshes)


def _write(bench: Bench, shop: Shop, table: str, changes: int, batch: int) -> int:
    """As fast as the stream table follows; the number of captured rows."""
    captured, sent = 0, 0
    with psycopg.connect(bench.dsn, autocommit=True) as conn:
        while captured < changes:
            captured += _transaction(conn, shop, batch)
            sent += 1
            while sent > AHEAD and _pending(bench, table) > AHEAD * batch:
                time.sleep(0.05)
    return captured


def _transaction(conn: psycopg.Connection, shop: Shop, batch: int) -> int:
    """Insert, change earlier orders anywhere, and delete some; how many rows capture sees."""
    orders = f"{shop.schema}.orders"
    some = f"(SELECT id FROM {orders} TABLESAMPLE SYSTEM (2) LIMIT %s)"
    with conn.transaction():
        inserted = conn.execute(
            f"INSERT INTO {orders} (customer_id, product_id, total_usd, status) SELECT 1 + floor(random() * "
            f"{shop.customers})::int, 1 + floor(random() * {PRODUCTS})::int, i %% 500, 'shipped' "
            "FROM generate_series(1, %s) i".encode(),
            (batch,),
        ).rowcount
        updated = conn.execute(
            f"UPDATE {orders} SET total_usd = total_usd + 1 WHERE id IN {some}".encode(), (batch // 10,)
        ).rowcount
        deleted = conn.execute(f"DELETE FROM {orders} WHERE id IN {some}".encode(), (batch // 20,)).rowcount
    return inserted + 2 * updated + deleted


def _pending(bench: Bench, table: str) -> int:
    schema, _, name = table.partition(".")
    return next(s.pending_changes or 0 for s in bench.client.status() if (s.schema, s.name) == (schema, name))


def _caught_up(bench: Bench, table: str, seconds: float = 1800.0) -> float:
    """The moment when nothing waits; a refresh publishes in its own transaction, so the lake has it, too."""
    end = time.perf_counter() + seconds
    while _pending(bench, table):
        assert time.perf_counter() < end, f"{table} did not catch up"
        time.sleep(0.02)
    return time.perf_counter()


def _work(refreshes: Sequence[Refresh]) -> float:
    """Seconds."""
    return sum(r.milliseconds or 0.0 for r in refreshes) / 1000


def _shares(taken: dict[str, Traffic]) -> Grid:
    rows = []
    for label, each in taken.items():
        whole = _work(each.refreshes) * 1000 or 1.0
        spent = [sum((r.timings or {}).get(step, 0.0) for r in each.refreshes) for step in LAKE_STEPS]
        rows.append([label, *(f"{value / whole:.0%}" for value in (*spent, whole - sum(spent)))])
    return Grid(("stream table", *LAKE_STEPS, "rest"), rows)
