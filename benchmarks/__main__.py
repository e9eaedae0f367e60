"""`python -m benchmarks [--quick] [--only NAME]`: measure, print, and bring docs/benchmarks.md up to date."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from benchmarks import (
    build,
    capture,
    crowd,
    idle,
    lake_changes,
    lake_latency,
    lake_publish,
    lake_source,
    lake_watch,
    latency,
    memory,
    modes,
    propagation,
    refresh_size,
    relay,
    results,
    wal,
)
from benchmarks.large import lake_full, sustained, tpch, workers
from benchmarks.machine import machine_facts
from benchmarks.report import Answer, Grid, markdown, print_answer
from benchmarks.stack import Bench, bench_stack

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"

QUESTIONS: dict[str, Callable[[Bench], Answer]] = {
    "refresh": refresh_size.run,
    "modes": modes.run,
    "latency": latency.run,
    "capture": capture.run,
    "wal": wal.run,
    "idle": idle.run,
    "build": build.run,
    "crowd": crowd.run,
    "propagation": propagation.run,
    "lake-latency": lake_latency.run,
    "lake-source": lake_source.run,
    "lake-publish": lake_publish.run,
    "lake-changes": lake_changes.run,
    "lake-watch": lake_watch.run,
    "relay": relay.run,
    "lake-full": lake_full.run,
    "full": tpch.run,
    "sustained": sustained.run,
    "workers": workers.run,
    "memory": memory.run,
}


def main() -> None:
    """Answer the questions in order."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and few rounds, to see that it works")
    parser.add_argument("--only", choices=QUESTIONS, action="append", help="one question (may be repeated)")
    parser.add_argument(
        "--output", type=Path, help="write these answers to a page of their own, and leave the others alone"
    )
    chosen = parser.parse_args()
    console = Console(highlight=False, width=120 if not Console().is_terminal else None)
    began = time.monotonic()
    with bench_stack(console, quick=chosen.quick) as bench:
        facts = machine_facts(bench)
        answers = {}
        for name in chosen.only or QUESTIONS:
            answers[name] = QUESTIONS[name](bench)
            print_answer(console, answers[name])
            # A long run that is cut off keeps what it has measured; figures of toy data replace nothing.
            if not chosen.quick and not chosen.output:
                _record(facts, answers)
    console.print(f"\n[dim]{(time.monotonic() - began) / 60:.1f} minutes in all[/dim]")
    if chosen.output:
        chosen.output.write_text(markdown(list(answers.values()), facts), encoding="utf-8")
        console.print(f"[dim]written to {chosen.output}[/dim]")


def _record(facts: Grid, measured: Mapping[str, Answer]) -> None:
    """Into the results, and into the page that is made of them."""
    _, known = results.load()
    together = {**known, **measured}
    ordered = {name: together[name] for name in QUESTIONS if name in together}
    results.save(facts, ordered)
    PAGE.write_text(markdown(list(ordered.values()), facts), encoding="utf-8")


if __name__ == "__main__":
    main()
