"""`python -m benchmarks.large PART [--orders N ...]`: one part at any size, printed; no page is rewritten."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rich.console import Console

from benchmarks import build, memory, modes
from benchmarks.large import lake_full, sustained, tpch, workers
from benchmarks.report import Answer, print_answer
from benchmarks.stack import Bench, bench_stack

Part = Callable[[Bench, argparse.Namespace], Answer]

PARTS: dict[str, tuple[str, Part]] = {
    "build": ("first build / CREATE MATERIALIZED VIEW", lambda b, o: build.measure(b, o.orders or 5_000_000, o.rounds)),
    "tpch": ("FULL / PostgreSQL's own time for the query", lambda b, o: tpch.measure(b, o.scale, o.query)),
    "change": (
        "a change of 10 % / REFRESH MATERIALIZED VIEW",
        lambda b, o: modes.measure(b, o.orders or 1_000_000, o.rounds, (0.1,)),
    ),
    "sustained": (
        "rows per second through a join and an aggregate to the lake",
        lambda b, o: sustained.measure(b, o.orders or 1_000_000, o.changes, o.batch),
    ),
    "lake": ("FULL over a lake table / DuckDB's own time", lambda b, o: lake_full.measure(b, o.rows, o.rounds)),
    "workers": ("a build on one worker / on two", lambda b, o: workers.measure(b, o.orders or 5_000_000, o.rounds)),
    "memory": ("the engine's memory at a large table", lambda b, o: memory.measure(b, o.orders or 20_000_000)),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    said = "; ".join(f"{name}: {about}" for name, (about, _) in PARTS.items())
    parser.add_argument("part", choices=PARTS, nargs="+", help=said.replace("%", "%%"))
    parser.add_argument("--orders", type=int, help="orders of the shop (5 M; change and sustained: 1 M; memory: 20 M)")
    parser.add_argument("--rounds", type=int, default=3, help="how often; figures are medians (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="tpch: the scale factor (1)")
    parser.add_argument("--query", type=int, action="append", default=[], help="tpch: one query (may be repeated)")
    parser.add_argument("--rows", type=int, default=50_000_000, help="lake: rows of the lake table (50 M)")
    parser.add_argument("--changes", type=int, default=2_000_000, help="sustained: rows that are captured (2 M)")
    parser.add_argument("--batch", type=int, default=20_000, help="sustained: orders per transaction (20 k)")
    chosen = parser.parse_args()
    console = Console(highlight=False, width=140 if not Console().is_terminal else None)
    with bench_stack(console, quick=False) as bench:
        for part in chosen.part:
            print_answer(console, PARTS[part][1](bench, chosen))


if __name__ == "__main__":
    main()
