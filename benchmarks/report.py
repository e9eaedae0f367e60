"""What a benchmark answers, and how people read it: in the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

Cells = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Grid:
    """A table: names of columns, and rows of text."""

    columns: Sequence[str]
    rows: Cells


@dataclass(frozen=True)
class Target:
    """What was asked for, and what came out."""

    what: str
    limit: str
    measured: str
    met: bool


@dataclass(frozen=True)
class Answer:
    """One question with its figures."""

    question: str
    setup: str
    grid: Grid
    breakdown: Grid | None = None
    unit: str = "median milliseconds per step"
    """Of the breakdown's figures."""
    targets: Sequence[Target] = ()
    notes: Sequence[str] = field(default_factory=tuple)


def print_answer(console: Console, answer: Answer) -> None:
    """One table per question, the breakdown, and the verdict on the targets."""
    console.print(f"\n[bold]{answer.question}[/bold]\n[dim]{answer.setup}[/dim]")
    console.print(_rich(answer.grid))
    if answer.breakdown is not None:
        console.print(f"[dim]where the time goes ({answer.unit})[/dim]")
        console.print(_rich(answer.breakdown))
    for target in answer.targets:
        verdict = "[green]met[/green]" if target.met else "[red]missed[/red]"
        console.print(f"  {target.what}: {target.measured} (target {target.limit}) {verdict}")
    for note in answer.notes:
        console.print(f"  [dim]{note}[/dim]")


def _rich(grid: Grid) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(grid.columns):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in grid.rows:
        table.add_row(*row)
    return table


TEMPLATE = """\
# Benchmarks

`make bench` measures everything on this page and rewrites it (`ARGS="--only lake-latency"` measures one question anew);
nothing here is edited by hand. `make bench-large ARGS="build --orders 1000000"` prints one part of large work at any
size. Times are seen by a client of PostgreSQL, commit included. The server is the embedded one, durable as users run it
(`fsync` and `synchronous_commit` on), with the engine (`runnel up`) as a separate process on the same machine.

{facts}

{targets}
{answers}"""


def markdown(answers: Sequence[Answer], facts: Grid) -> str:
    """The whole page."""
    rows = [(t.what, t.limit, t.measured, "met" if t.met else "**missed**") for a in answers for t in a.targets]
    missed = sum(1 for a in answers for t in a.targets if not t.met)
    verdict = "All targets are met on this machine." if not missed else f"{missed} of {len(rows)} targets are missed."
    targets = f"## Targets\n\n{verdict}\n\n{_table(Grid(('what', 'target', 'measured', ''), rows))}\n"
    return TEMPLATE.format(
        facts=_table(facts), targets=targets, answers="\n".join(_section(answer) for answer in answers)
    )


def _section(answer: Answer) -> str:
    parts = [f"## {answer.question}", answer.setup, _table(answer.grid)]
    if answer.breakdown is not None:
        parts += [f"Where the time goes, {answer.unit}:", _table(answer.breakdown)]
    if answer.targets:
        parts.append("\n".join(_verdict(target) for target in answer.targets))
    if answer.notes:
        parts.append("\n".join(f"- {note}" for note in answer.notes))
    return "\n\n".join(parts) + "\n"


def _verdict(target: Target) -> str:
    word = "met" if target.met else "**missed**"
    return f"- Target, {target.what}: {target.limit}. Measured {target.measured}: {word}."


def _table(grid: Grid) -> str:
    lines = ["| " + " | ".join(grid.columns) + " |", "|---" + "|---:" * (len(grid.columns) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in grid.rows]
    return "\n".join(lines)
