"""How much faster is a build on two workers of a cluster than on one?"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.report import Answer, Grid
from benchmarks.shop import Shop, open_shop
from benchmarks.stack import Bench
from benchmarks.timing import breakdown, count, median, ms, timed
from runnel.client import Refresh
from tests.robustness.cluster import standalone
from tests.robustness.processes import none_left


def run(bench: Bench) -> Answer:
    """At the size of the page."""
    return measure(bench, 200_000, 1) if bench.quick else measure(bench, 5_000_000, 3)


def measure(bench: Bench, orders: int, rounds: int) -> Answer:
    """The same table, the same query, clusters of one and of two workers."""
    shop = open_shop(bench, orders)
    bench.stop_engine()
    taken = {f"{count} worker{'s' * (count > 1)}": _builds(bench, shop, count, rounds) for count in (1, 2)}
    one, two = (median([spent for spent, _ in each]) for each in taken.values())
    rows = [[label, ms(median([spent for spent, _ in each]))] for label, each in taken.items()]
    return Answer(
        question=f"First build of revenue_by_day over {count(orders)} orders on one worker and on two",
        setup=(
            f"A standalone cluster on this machine, one core per worker; median of {rounds} after one to warm up. "
            "PostgreSQL, master, workers and engine share the machine's cores, so two workers also take from "
            "each other and from PostgreSQL, which reads and merges for both alike."
        ),
        grid=Grid(("cluster", "build"), [*rows, ["one / two", f"{one / two:.2f}x"]]),
        breakdown=breakdown("build", taken),
    )


def _builds(bench: Bench, shop: Shop, workers: int, rounds: int) -> list[tuple[float, Refresh]]:
    name = f"{shop.schema}.on_a_cluster"
    taken = []
    with (
        tempfile.TemporaryDirectory(prefix="runnel-bench-cluster-", ignore_cleanup_errors=True) as folder,
        none_left([]) as processes,
        standalone(Path(folder), processes, workers=workers, memory="2g") as cluster,
    ):
        bench.start_engine("--master", cluster.address)
        try:
            for round_ in range(rounds + 1):
                spent = timed(lambda: bench.client.create_stream_table(name, shop.revenue, "@yearly", "DIFFERENTIAL"))
                if round_:
                    taken.append((spent, bench.client.history(name, 1)[0]))
                else:
                    assert bench.client.verify(name).ok
                bench.client.drop_stream_table(name)
        finally:
            bench.stop_engine()
    return taken
