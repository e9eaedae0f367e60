"""`python -m benchmarks.beside CHECKOUT`: small refreshes by this tree and by another one, taking turns on one machine.

Each tree has an engine and a server of its own. Every round makes the same change to both and times the refresh of
both, so that whatever else the machine does is seen by both. Say the ratio, not the milliseconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.shop import Shop, open_shop
from benchmarks.stack import Bench, bench_stack
from benchmarks.timing import median, ms, percentile, timed

ORDERS = 100_000

GROUPED = "SELECT status, count(*) AS orders, sum(total_usd) AS usd FROM {schema}.orders GROUP BY status"
NEWEST = """
SELECT customer_id, id, total_usd FROM (
    SELECT o.*, row_number() OVER (PARTITION BY customer_id ORDER BY id DESC) AS r FROM {schema}.orders o) n WHERE r = 1
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A stream table, and a change after which it is refreshed."""

    name: str
    table: str
    query: str
    change: Callable[[Shop], None]
    sink: str | None = None


def _nothing(shop: Shop) -> None:
    """Leave everything as it is."""


QUESTIONS = (
    Question("join and groups, 1,000 rows", "revenue", "", Shop.thousand_changes),
    Question("join and groups, 1 row", "revenue", "", lambda shop: shop.place_orders(1)),
    Question("groups of one table, 1,000 rows", "by_status", GROUPED, Shop.thousand_changes),
    Question("window, 1 row", "newest", NEWEST, lambda shop: shop.place_orders(1)),
    Question("groups published to a lake, 1 row", "shown", GROUPED, lambda shop: shop.place_orders(1), "ducklake"),
    Question("nothing changed", "by_status", GROUPED, _nothing),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="another checkout of the project")
    parser.add_argument("--rounds", type=int, default=30, help="timed rounds per question (30)")
    parser.add_argument("--warm", type=int, default=8, help="rounds before them (8)")
    options = parser.parse_args()
    console = Console()
    with ExitStack() as stack:
        trees = [
            stack.enter_context(bench_stack(console, quick=True, checkout=checkout))
            for checkout in (options.checkout.resolve(), None)
        ]
        shops = [_prepare(bench) for bench in trees]
        table = Table("refresh", "other p50", "this p50", "this / other", "other p95", "this p95")
        for question in QUESTIONS:
            other, this = _measure(question, trees, shops, options.warm, options.rounds)
            ratio = f"{median(this) / median(other):.2f}"
            tails = [ms(percentile(taken, 0.95)) for taken in (other, this)]
            table.add_row(question.name, ms(median(other)), ms(median(this)), ratio, *tails)
        console.print(table)


def _prepare(bench: Bench) -> Shop:
    shop = open_shop(bench, ORDERS)
    bench.start_engine()
    made: set[str] = set()
    for question in QUESTIONS:
        if question.table not in made:
            made.add(question.table)
            query = question.query.format(schema=shop.schema) or shop.revenue
            options = {} if question.sink is None else {"sink": question.sink}
            bench.client.create_stream_table(question.table, query, "@yearly", "DIFFERENTIAL", **options)
    return shop


def _measure(
    question: Question, trees: list[Bench], shops: list[Shop], warm: int, rounds: int
) -> tuple[list[float], list[float]]:
    taken: tuple[list[float], list[float]] = ([], [])
    for round_ in range(warm + rounds):
        turns = list(zip(trees, shops, taken, strict=True))
        # Who comes second finds the machine as the first has left it.
        for bench, shop, spent in turns if round_ % 2 else reversed(turns):
            question.change(shop)
            # The history of the other tree may lack what this one's client asks for.
            milliseconds = timed(partial(bench.client.refresh, question.table))
            if round_ >= warm:
                spent.append(milliseconds)
    for bench in trees:
        assert bench.client.verify(question.table).ok, f"{question.table} differs from its query"
    return taken


if __name__ == "__main__":
    main()
