"""When is it better to compute the change, and when the whole?"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report import Answer, Grid
from benchmarks.shop import open_shop
from benchmarks.stack import Bench
from benchmarks.timing import breakdown, count, median, ms, timed, timed_refresh
from runnel.client import Refresh

SHARES = (0.001, 0.01, 0.1)


def run(bench: Bench) -> Answer:
    """At the size of the page."""
    return measure(bench, 100_000 if bench.quick else 1_000_000, 2 if bench.quick else 5)


def measure(bench: Bench, size: int, rounds: int, shares: Sequence[float] = SHARES) -> Answer:
    """The same changes reach three copies of the same result."""
    shop = open_shop(bench, size)
    bench.start_engine()
    schema = shop.schema
    bench.client.create_stream_table(f"{schema}.by_change", shop.revenue, "@yearly", "DIFFERENTIAL")
    bench.client.create_stream_table(f"{schema}.whole", shop.revenue, "@yearly", "FULL")
    bench.conn.execute(f"CREATE MATERIALIZED VIEW {schema}.matview AS {shop.revenue}".encode())
    rows = []
    steps: dict[str, list[tuple[float, Refresh]]] = {}
    for share in shares:
        number = int(size * share)
        spent: dict[str, list[float]] = {"by_change": [], "whole": [], "matview": []}
        for round_ in range(rounds + 1):
            # Orders everywhere in the table change in price and turn from shipped to pending or back.
            bench.conn.execute(
                f"UPDATE {schema}.orders SET total_usd = total_usd + 1, "
                "status = CASE status WHEN 'shipped' THEN 'pending' ELSE 'shipped' END "
                f"WHERE (id + %s) %% {size // number} = 0".encode(),
                (round_,),
            )
            for name in ("by_change", "whole"):
                taken = timed_refresh(bench.client, f"{schema}.{name}")
                if round_:
                    spent[name].append(taken[0])
                    label = "DIFFERENTIAL" if name == "by_change" else "FULL"
                    steps.setdefault(f"{label}, {share:.1%}", []).append(taken)
            refresh = f"REFRESH MATERIALIZED VIEW {schema}.matview".encode()
            once = timed(lambda statement=refresh: bench.conn.execute(statement))  # type: ignore[misc]
            if round_:
                spent["matview"].append(once)
        middle = {name: median(values) for name, values in spent.items()}
        rows.append(
            [
                f"{share:.1%} ({count(number)})",
                *(ms(v) for v in middle.values()),
                f"{middle['whole'] / middle['by_change']:.1f}x",
                f"{middle['matview'] / middle['by_change']:.1f}x",
            ]
        )
    for name in ("by_change", "whole"):
        assert bench.client.verify(f"{schema}.{name}").ok
        bench.client.drop_stream_table(f"{schema}.{name}")
    bench.conn.execute(f"DROP MATERIALIZED VIEW {schema}.matview".encode())
    return Answer(
        question="DIFFERENTIAL, FULL and REFRESH MATERIALIZED VIEW on the same changes",
        setup=(
            f"revenue_by_day over {count(size)} orders; one UPDATE changes price and status of a share of all orders, "
            f"scattered over the table; median of {rounds}. An updated order is two captured rows. A materialized "
            "view is computed by PostgreSQL alone and locks its readers out meanwhile; FULL is computed on Spark, "
            "writes only the rows that differ, and keeps the state that the next differential refresh needs."
        ),
        grid=Grid(
            ("orders changed", "DIFFERENTIAL", "FULL", "materialized view", "FULL / DIFF.", "matview / DIFF."), rows
        ),
        breakdown=breakdown("refresh", steps),
        notes=("AUTO chooses between the first two by the history of each stream table.",),
    )
