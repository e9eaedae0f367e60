"""How fast is a stream table filled at first?"""

from __future__ import annotations

from benchmarks.report import Answer, Grid
from benchmarks.shop import open_shop
from benchmarks.stack import Bench
from benchmarks.timing import breakdown, count, median, ms, timed
from runnel.client import Refresh


def run(bench: Bench) -> Answer:
    """At the size of the page."""
    return measure(bench, 100_000 if bench.quick else 5_000_000, 1 if bench.quick else 3)


def measure(bench: Bench, size: int, rounds: int) -> Answer:
    """Create and drop, a few times; PostgreSQL's own materialized view beside it."""
    shop = open_shop(bench, size)
    bench.start_engine()
    name, view = f"{shop.schema}.first_build", f"{shop.schema}.built_by_postgres"
    taken: list[tuple[float, Refresh]] = []
    plain: list[float] = []
    for _ in range(rounds):
        spent = timed(lambda: bench.client.create_stream_table(name, shop.revenue, "@yearly", "DIFFERENTIAL"))
        taken.append((spent, bench.client.history(name, 1)[0]))
        bench.client.drop_stream_table(name)
        plain.append(timed(lambda: bench.conn.execute(f"CREATE MATERIALIZED VIEW {view} AS {shop.revenue}".encode())))
        bench.conn.execute(f"DROP MATERIALIZED VIEW {view}".encode())
    whole, by_postgres = median([spent for spent, _ in taken]), median(plain)
    rows = [
        ["create_stream_table", ms(whole), f"{size / whole * 1000:,.0f}", f"{whole / by_postgres:.2f}x"],
        ["CREATE MATERIALIZED VIEW", ms(by_postgres), f"{size / by_postgres * 1000:,.0f}", "1.00x"],
    ]
    return Answer(
        question=f"First build of revenue_by_day over {count(size)} orders",
        setup=(
            f"Median of {rounds}. Spark reads the table in slices, in one snapshot; the build also fills the state "
            "that later refreshes need (counters per group, and every distinct customer per group)."
        ),
        grid=Grid(("statement", "time", "orders per second", "ratio"), rows),
        breakdown=breakdown("build", {count(size): taken}),
    )
