"""Draw a demo: in place on a terminal, as one line every few seconds elsewhere."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from runnel.cli.output import delta_rows, milliseconds, span
from runnel.demo.analyst import Answer
from runnel.demo.story import Question, Story
from runnel.demo.traffic import Tally
from runnel.demo.view import View

_SECONDS_LIT = 3.0
_SECONDS_PER_LINE = 5.0
_COLOURS = {"PostgreSQL": "blue", "DuckDB": "yellow"}


class Screen(AbstractContextManager["Screen"]):
    """Shows one view after the other; cells that changed light up for a few seconds."""

    def __init__(self, console: Console, story: Story, duration: float) -> None:
        self._console = console
        self._story = story
        self._duration = duration
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._cells: dict[tuple[str, ...], str] = {}
        self._lit_until: dict[tuple[str, ...], float] = {}
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, view: View, tally: Tally, elapsed: float) -> None:
        if self._live is not None:
            self._live.update(self._picture(view, tally, elapsed), refresh=True)
        elif elapsed >= self._next_line:
            self._next_line = elapsed + _SECONDS_PER_LINE
            self._console.print(self._line(view, tally, elapsed), markup=False, soft_wrap=True)

    def _picture(self, view: View, tally: Tally, elapsed: float) -> Group:
        head = Text.assemble(
            ("Runnel demo ", "bold"),
            f"{min(elapsed, self._duration):.0f} of {self._duration:.0f} s   ",
            (f"{tally.added:,}", "bold cyan"),
            f" {self._story.unit}, ",
            (f"{tally.other:,}", "bold cyan"),
            " other changes   (Ctrl-C ends it)",
        )
        lake = Text.assemble("Lake            ", (lake_line(view), "cyan"), "\n", latency_line(self._story, view))
        panels = [
            Panel(self._rows(each, view), title=_title(each, view), title_align="left", border_style=_COLOURS[where])
            for each in self._story.questions
            for where in (each.asked_in,)
        ]
        return Group(head, "", self._tables(view), "", lake, "", Columns(panels))

    def _tables(self, view: View) -> Table:
        wide = self._console.width >= 110
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("stream table", no_wrap=True)
        for name in ("state", "schedule", "refreshes") if wide else ():
            table.add_column(name)
        for name in ("staleness", "refresh", "rows", "captured", "pending"):
            table.add_column(name, justify="right", min_width=9)
        for each in view.tables:
            changing = {
                "refresh": milliseconds(each.last_refresh_ms),
                "rows": delta_rows(each.rows_inserted, each.rows_deleted),
                "captured": f"{view.changes_read.get(each.name, 0) + (each.pending_changes or 0):,}",
            }
            about = (
                Text(each.status, style="green" if each.status == "ACTIVE" else "red"),
                each.schedule,
                f"{view.refreshes.get(each.name, 0)}",
            )
            table.add_row(
                each.name,
                *(about if wide else ()),
                span(each.staleness),
                *(self._cell((each.name, "", key), text) for key, text in changing.items()),
                "-" if each.pending_changes is None else f"{each.pending_changes:,}",
            )
        return table

    def _rows(self, question: Question, view: View) -> Table:
        answer = view.answers.get(question.title)
        rows = answer.rows[: self._rows_that_fit()] if answer else []
        table = answer_table(rows)
        for row in rows:
            values = [str(value) for value in row.values()]
            key = tuple(values[: question.keys])
            cells = (self._cell((question.title, *key, name), text) for name, text in zip(row, values, strict=True))
            table.add_row(*cells)
        return table

    def _rows_that_fit(self) -> int:
        """On a narrow terminal the panels stand above each other and share its height."""
        width, height = self._console.size
        beside = 3 if width >= 180 else 2 if width >= 120 else 1
        stacked = -(-len(self._story.questions) // beside)
        return max((height - 12) // stacked - 3, 1)

    def _cell(self, key: tuple[str, ...], text: str) -> Text:
        before = self._cells.get(key)
        self._cells[key] = text
        now = time.monotonic()
        if before is not None and before != text:
            self._lit_until[key] = now + _SECONDS_LIT
        return Text(text, style="bold green" if self._lit_until.get(key, 0.0) > now else "")

    def _line(self, view: View, tally: Tally, elapsed: float) -> str:
        parts = [f"{elapsed:4.0f} s  {tally.added:,} {self._story.unit}", f"lake: {lake_line(view)}"]
        count, p50, p95 = view.waits
        if count:
            parts.append(f"commit to lake p50 {_seconds(p50)}, p95 {_seconds(p95)}")
        for each in view.tables:
            captured = view.changes_read.get(each.name, 0) + (each.pending_changes or 0)
            took = milliseconds(each.last_refresh_ms)
            parts.append(f"{each.name}: {captured:,} captured, refresh {took}, {span(each.staleness)} stale")
        return " | ".join(parts)


def answer_table(rows: list[dict[str, object]]) -> Table:
    """A table with the columns of these rows, and no rows yet."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, value in (rows[0] if rows else {"nothing yet": ""}).items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    return table


def print_answer(console: Console, question: Question, answer: Answer) -> None:
    """A question in full: its text and all its rows."""
    colour = _COLOURS[question.asked_in]
    console.print(f"\n[{colour}]{question.asked_in}[/{colour}]: {question.title} ({answer.milliseconds:.0f} ms)")
    console.print(_unindented(answer.query), style="dim", markup=False, soft_wrap=True)
    table = answer_table(answer.rows)
    for row in answer.rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


def lake_line(view: View) -> str:
    """The lake in a few words."""
    return f"snapshot {view.lake.snapshot}, {view.lake.files} Parquet files, {view.lake.bytes / 1024:,.0f} KiB"


def latency_line(story: Story, view: View) -> Text:
    """Commit to visible in the lake, as measured."""
    count, p50, p95 = view.waits
    if not count:
        return Text(f"Commit to lake  nothing seen yet by DuckDB in {story.probed}", style="dim")
    return Text.assemble(
        "Commit to lake  ",
        (f"p50 {_seconds(p50)}, p95 {_seconds(p95)}", "bold cyan"),
        f", seen by DuckDB in {story.probed} ({count:,} {story.unit})",
    )


def _title(question: Question, view: View) -> str:
    answer = view.answers.get(question.title)
    took = f" ({answer.milliseconds:.0f} ms)" if answer else ""
    return f"{question.asked_in}: {question.title}{took}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _unindented(query: str) -> str:
    lines = query.strip("\n").splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join("  " + line[margin:] for line in lines)
