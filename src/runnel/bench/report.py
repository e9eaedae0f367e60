"""How figures look: tables in the terminal, the same tables as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runnel.bench.results import QueryResult, Results, geometric_mean
from runnel.bench.workload import Workload

WORST = 5


@dataclass(frozen=True)
class Grid:
    """A table with a line about it: names of columns, and rows of text."""

    title: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def grids(results: Results, workload: Workload) -> list[Grid]:
    """All that is known, in the order one wants to read it."""
    found = [_overview(results, workload)]
    done = [r.name for r in workload.rounds if any(r.name in q.rounds for q in results.queries.values())]
    if done:
        found.append(_cost(results, done))
        found += _worst(results, [r.name for r in workload.rounds if r.counted and r.name in done])
    if results.failed:
        found.append(
            Grid("Failures", "", ("query", "what happened"), [(n, _line(e)) for n, e in results.failed.items()])
        )
    return found


def _overview(results: Results, workload: Workload) -> Grid:
    rounds = [r.name for r in workload.rounds]
    rows = []
    for each in results.queries.values():
        cells = [_with_ratio(each, r) for r in rounds]
        rows.append(
            [
                each.name,
                _count(each.rows),
                ms(each.postgres_ms),
                ms(each.full.ms if each.full else None),
                *cells,
                size(each.state_bytes),
                _verdict(each),
            ]
        )
    counted = {r.name for r in workload.rounds if r.counted}
    means = [_ratio(results.geometric_mean(r)) if r in counted else "" for r in rounds]
    rows.append(["**geometric mean**", "", "", "", *means, "", ""])
    faster = [_ratio(_against_postgres(results, r)) if r in counted else "" for r in rounds]
    rows.append(["**PostgreSQL / DIFFERENTIAL**", "", "", "", *faster, "", ""])
    about = (
        "Times are seen by a client of PostgreSQL, commit included. In brackets: how many times faster than FULL, "
        "which is the same engine recomputing everything. `-`: nothing the query reads had changed. State is what "
        "the stream table keeps beside its rows."
    )
    columns = ("query", "rows", "PostgreSQL", "FULL", *(f"DIFF. {r}" for r in rounds), "state", "")
    return Grid("Queries", about, columns, rows)


def _cost(results: Results, rounds: Sequence[str]) -> Grid:
    rows = []
    for each in results.queries.values():
        cells = []
        for round_ in rounds:
            taken = each.rounds.get(round_)
            if not taken:
                cells.append("")
                continue
            last = taken[-1]
            read = sum(v or 0 for v in last.rows_read.values())
            scanned = "+" if any(v is None for v in last.rows_read.values()) else ""
            cells.append(f"{last.changes:,} / {read:,}{scanned} / {last.inserted + last.deleted:,} / {last.jobs}")
        rows.append([each.name, *cells])
    about = (
        "Captured changes waiting / rows read, changes included (`+`: and tables that Spark scanned) / rows written / "
        "Spark jobs."
    )
    return Grid("What a refresh reads and writes", about, ("query", *rounds), rows)


def _worst(results: Results, rounds: Sequence[str]) -> list[Grid]:
    """Where the time goes in the five slowest relative to FULL, and which sources they read."""
    found = []
    for round_ in rounds:
        ranked = sorted(
            (q for q in results.queries.values() if q.ratio(round_) is not None), key=lambda q: q.ratio(round_) or 0.0
        )[:WORST]
        if not ranked:
            continue
        steps = list(dict.fromkeys(step for q in ranked for s in q.rounds[round_] for step in s.timings))
        rows = []
        for each in ranked:
            taken = each.rounds[round_]
            spent = {step: statistics.median(s.timings.get(step, 0.0) for s in taken) for step in steps}
            whole = statistics.median(s.ms for s in taken)
            read = ", ".join(
                f"{source} {'scan' if n is None else f'{n:,}'}"
                for source, n in sorted(taken[-1].rows_read.items(), key=lambda item: -(item[1] or 10**12))
            )
            rest = whole - sum(spent.values())
            rows.append(
                [each.name, _ratio(each.ratio(round_)), *(f"{v:.0f}" for v in spent.values()), f"{rest:.0f}",
                 f"{whole:.0f}", read]
            )  # fmt: skip
        about = f"Milliseconds per step of the {len(rows)} queries that gain least over FULL, and the rows they read."
        columns = ("query", "FULL / DIFF.", *steps, "rest", "whole", "rows read")
        found.append(Grid(f"Where the time goes: {round_}", about, columns, rows))
    return found


def _against_postgres(results: Results, round_: str) -> float | None:
    return geometric_mean(
        q.postgres_ms / (q.ms(round_) or 1.0) if q.postgres_ms and q.ratio(round_) else None
        for q in results.queries.values()
    )


def _with_ratio(each: QueryResult, round_: str) -> str:
    spent = each.ms(round_)
    if spent is None:
        return ""
    ratio = each.ratio(round_)
    return f"{ms(spent)} ({_ratio(ratio)})" if ratio else "-"


def _verdict(each: QueryResult) -> str:
    if each.error:
        return "failed"
    return f"equal {each.verified}x" if each.verified else ""


# -- text ----------------------------------------------------------------------------------------------------


def ms(value: float | None) -> str:
    """Milliseconds for people."""
    if value is None:
        return ""
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms" if value >= 20 else f"{value:.1f} ms"


def size(value: int | None) -> str:
    """Bytes for people."""
    if value is None:
        return ""
    return f"{value / 2**20:.1f} MiB" if value >= 2**20 else f"{value / 1024:.0f} KiB"


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}x" if value >= 20 else f"{value:.1f}x" if value >= 1 else f"{value:.2g}x"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# -- the two ways out ----------------------------------------------------------------------------------------


def markdown(title: str, setup: str, facts: Sequence[tuple[str, str]], tables: Sequence[Grid]) -> str:
    """A page."""
    parts = [f"# {title}", setup]
    if facts:
        parts.append(_markdown_table(("machine", ""), facts))
    for grid in tables:
        parts += filter(None, (f"## {grid.title}", grid.about, _markdown_table(grid.columns, grid.rows)))
    return "\n\n".join(parts) + "\n"


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def show(console: Console, tables: Sequence[Grid]) -> None:
    """The same in the terminal."""
    for grid in tables:
        console.print(f"\n[bold]{escape(grid.title)}[/bold]")
        if grid.about:
            console.print(grid.about, style="dim", markup=False)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, name in enumerate(grid.columns):
            table.add_column(name, justify="left" if number == 0 or grid.title == "Failures" else "right")
        for row in grid.rows:
            table.add_row(*(escape(cell.replace("**", "")) for cell in row))
        console.print(table)
