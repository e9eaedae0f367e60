"""`python -m benchmarks [--quick] [--only NAME]`: measure, print, and rewrite docs/benchmarks.md."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks import build, capture, idle, lake_latency, lake_publish, lake_source, latency, modes, refresh_size
from benchmarks.machine import machine_facts
from benchmarks.report import Answer, markdown, print_answer
from benchmarks.stack import Bench, bench_stack

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"

QUESTIONS: dict[str, Callable[[Bench], Answer]] = {
    "refresh": refresh_size.run,
    "modes": modes.run,
    "latency": latency.run,
    "capture": capture.run,
    "idle": idle.run,
    "build": build.run,
    "lake-latency": lake_latency.run,
    "lake-source": lake_source.run,
    "lake-publish": lake_publish.run,
}


def main() -> None:
    """Answer the questions in order."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and few rounds, to see that it works")
    parser.add_argument("--only", choices=QUESTIONS, action="append", help="one question (may be repeated)")
    parser.add_argument(
        "--output", type=Path, help=f"where the page goes; by default {PAGE.name}, for a whole run that is not quick"
    )
    chosen = parser.parse_args()
    console = Console(highlight=False, width=120 if not Console().is_terminal else None)
    began = time.monotonic()
    with bench_stack(console, quick=chosen.quick) as bench:
        facts = machine_facts(bench)
        answers = []
        for name in chosen.only or QUESTIONS:
            answers.append(QUESTIONS[name](bench))
            print_answer(console, answers[-1])
    console.print(f"\n[dim]{(time.monotonic() - began) / 60:.1f} minutes in all[/dim]")
    # A part of the figures, or figures of toy data, must not replace the whole page.
    page = chosen.output or (PAGE if not chosen.quick and not chosen.only else None)
    if page is not None:
        page.write_text(markdown(answers, facts), encoding="utf-8")
        console.print(f"[dim]written to {page}[/dim]")


if __name__ == "__main__":
    main()
