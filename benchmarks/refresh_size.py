"""Does the cost of a refresh follow the change, or the table?"""

from __future__ import annotations

from benchmarks.report import Answer, Grid, Target
from benchmarks.shop import open_shop
from benchmarks.stack import Bench
from benchmarks.timing import breakdown, count, median, ms, percentile, timed_refresh
from runnel.client import Refresh

QUESTION = "Refresh of revenue_by_day for a 1,000-row delta"


def run(bench: Bench) -> Answer:
    """Sizes take turns, so that every figure saw the same machine."""
    sizes = (10_000, 100_000) if bench.quick else (100_000, 1_000_000, 5_000_000)
    warm, rounds = (2, 5) if bench.quick else (8, 40)
    shops = {size: open_shop(bench, size) for size in sizes}
    bench.start_engine()
    for shop in shops.values():
        bench.client.create_stream_table(f"{shop.schema}.revenue_by_day", shop.revenue, "@yearly", "DIFFERENTIAL")
    taken: dict[int, list[tuple[float, Refresh]]] = {size: [] for size in sizes}
    for round_ in range(warm + rounds):
        for size, shop in shops.items():
            shop.thousand_changes()
            spent, refresh = timed_refresh(bench.client, f"{shop.schema}.revenue_by_day")
            assert refresh.action == "DIFFERENTIAL" and refresh.changes_read == 1000, refresh
            if round_ >= warm:
                taken[size].append((spent, refresh))
    for shop in shops.values():
        assert bench.client.verify(f"{shop.schema}.revenue_by_day").ok
        bench.client.drop_stream_table(f"{shop.schema}.revenue_by_day")

    p50 = {size: median([spent for spent, _ in samples]) for size, samples in taken.items()}
    p95 = {size: percentile([spent for spent, _ in samples], 0.95) for size, samples in taken.items()}
    small, large = sizes[0], sizes[-1]
    ratio = p50[large] / p50[small]
    rows = [[count(s), ms(p50[s]), ms(p95[s]), f"{p50[s] / p50[small]:.2f}x"] for s in sizes]
    worst = max(p50.values())
    return Answer(
        question=QUESTION,
        setup=(
            "500 orders inserted, 200 updated, 100 deleted in one transaction (an update is two rows), then "
            f"`refresh_stream_table`; {rounds} times after {warm} to warm up. Orders have their primary key and an "
            "index on each foreign key (`customer_id`, `product_id`)."
        ),
        grid=Grid(("orders", "p50", "p95", f"p50 / {count(small)}"), rows),
        breakdown=breakdown("orders", {count(s): taken[s] for s in sizes}),
        targets=(
            Target("p50 of a refresh for 1,000 rows", "at most 70 ms at every size", ms(worst), worst <= 70),
            Target(f"p50 at {count(large)} / {count(small)} orders", "at most 1.3", f"{ratio:.2f}", ratio <= 1.3),
        ),
    )
