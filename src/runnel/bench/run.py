"""From the command line to a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from runnel.bench import dag
from runnel.bench.measure import Measurement, Wrong
from runnel.bench.report import grids, markdown, show
from runnel.bench.results import Results, resume, save
from runnel.bench.stack import Stack, machine, running_stack
from runnel.bench.watch import Watch
from runnel.bench.workload import Workload, in_schema, open_workload
from runnel.client import connect
from runnel.errors import RunnelError


def run_workload(
    workload: Workload,
    *,
    name: str,
    home: Path | None,
    report: Path | None,
    repeat: int,
    minutes: float,
    keep: bool,
    master: str,
) -> bool:
    """True when every stream table was DIFFERENTIAL and equal to its query all the time."""
    console = _console()
    with running_stack(console, home, keep=keep, master=master) as stack:
        page = (report or stack.home / f"{name}.md").absolute()
        results = measure_in(stack, workload, page, repeat, minutes)
    show(console, grids(results, workload))
    if report is not None or home is not None or keep:
        console.print(f"\nWritten to {page}", style="dim", markup=False)
    return not results.failed


def measure_in(stack: Stack, workload: Workload, page: Path, repeat: int, minutes: float) -> Results:
    """Load, measure, and keep the page up to date all along; no step may take longer than some minutes."""
    dsn = in_schema(stack.dsn, workload.schema)
    memory = page.with_suffix(".json")
    setup = f"{workload.about}\n\nEach round {'once' if repeat == 1 else f'{repeat} times; figures are medians'}."
    with psycopg.connect(dsn, autocommit=True) as conn, connect(dsn) as client:
        open_workload(conn, workload, stack.say)
        there = any(each.schema == workload.schema for each in client.status())
        results = (resume(memory, setup) if there else None) or Results(workload.title, setup)
        if results.queries:
            stack.say(f"Going on from {memory}")
        results.machine = machine(conn)

        def write(now: Results) -> None:
            save(now, memory)
            page.write_text(markdown(now.title, now.setup, now.machine, grids(now, workload)), encoding="utf-8")

        with _progress(stack.console) as progress:
            steps = len(workload.queries) * (7 + 2 * len(workload.rounds) * repeat)
            task = progress.add_task("", total=steps)
            said: set[str] = set()

            def step(query: str, what: str) -> None:
                progress.update(task, advance=1, description=f"{what}: {query}")
                for failed, why in results.failed.items():
                    if failed not in said:
                        said.add(failed)
                        progress.console.print(f"{failed} failed: {why}", style="red", markup=False)

            watch = Watch(stack.dsn, 60 * minutes, stack.server.stop)
            Measurement(workload, client, conn, results, write, step, watch).run(repeat)
            progress.update(task, completed=steps, description="done")
        write(results)
        return results


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        # A pipe has no width: nothing needs to be folded for it.
        console.width = 250
    return console


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), console=console, transient=True,
    )  # fmt: skip


def run_dag(
    *,
    runs: int,
    rows: int,
    shapes: Sequence[dag.Shape],
    report: Path | None,
    keep: bool,
    home: Path | None,
    master: str,
) -> bool:
    """True when every shape was carried by deltas and equals its queries at the end."""
    console = _console()
    found: list[dag.Travel] = []
    failed: list[str] = []
    with (
        running_stack(console, home, keep=keep, master=master) as stack,
        psycopg.connect(stack.dsn, autocommit=True) as conn,
        connect(stack.dsn) as client,
    ):
        facts = machine(conn)
        with _progress(console) as progress:
            total = sum(2 * len(s.tables) + runs + 3 for s in shapes)
            task = progress.add_task("", total=total)
            for shape in shapes:
                try:
                    found.append(
                        dag.travel(
                            client,
                            conn,
                            shape,
                            runs=runs,
                            rows=rows,
                            step=lambda what: progress.update(task, advance=1, description=what),
                        )  # fmt: skip
                    )
                except (RunnelError, psycopg.Error, Wrong) as error:
                    failed.append(f"{shape.name}: {error}")
                    progress.console.print(failed[-1], style="red", markup=False)
                if report is not None:
                    text = f"One row at a time into a table of {rows:,} rows; schedule `1s` everywhere."
                    report.write_text(markdown("Propagation", text, facts, [dag.grid(found)]), encoding="utf-8")
    show(console, [dag.grid(found)])
    return not failed
