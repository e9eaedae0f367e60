"""Draw the demo: in place on a terminal, as one line every few seconds elsewhere."""

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
from runnel.demo.traffic import Tally
from runnel.demo.view import EXCERPTS, Excerpt, View

_SECONDS_LIT = 3.0
_SECONDS_PER_LINE = 5.0


class Screen(AbstractContextManager["Screen"]):
    """Shows one view after the other; cells that changed light up for a few seconds."""

    def __init__(self, console: Console, duration: float) -> None:
        self._console = console
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
            self._console.print(_line(view, tally, elapsed), markup=False, soft_wrap=True)

    def _picture(self, view: View, tally: Tally, elapsed: float) -> Group:
        head = Text.assemble(
            ("Runnel demo ", "bold"),
            f"{min(elapsed, self._duration):.0f} of {self._duration:.0f} s   ",
            (f"{tally.orders:,}", "bold cyan"),
            " orders placed, ",
            (f"{tally.other:,}", "bold cyan"),
            " other changes   (Ctrl-C ends it)",
        )
        excerpts = [Panel(self._rows(each, view), title=each.title, title_align="left") for each in EXCERPTS]
        return Group(head, "", self._tables(view), "", Columns(excerpts))

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

    def _rows(self, excerpt: Excerpt, view: View) -> Table:
        rows = view.rows[excerpt.table][: self._rows_that_fit()]
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name, value in (rows[0] if rows else {"nothing yet": ""}).items():
            table.add_column(name, justify="left" if isinstance(value, str) else "right")
        for row in rows:
            values = [str(value) for value in row.values()]
            key = tuple(values[: excerpt.keys])
            table.add_row(
                *(self._cell((excerpt.table, *key, name), text) for name, text in zip(row, values, strict=True))
            )
        return table

    def _rows_that_fit(self) -> int:
        """On a narrow terminal the excerpts stand above each other and share its height."""
        width, height = self._console.size
        stacked = 1 if width >= 160 else 2 if width >= 120 else 3
        return max((height - 9) // stacked - 3, 1)

    def _cell(self, key: tuple[str, ...], text: str) -> Text:
        before = self._cells.get(key)
        self._cells[key] = text
        now = time.monotonic()
        if before is not None and before != text:
            self._lit_until[key] = now + _SECONDS_LIT
        return Text(text, style="bold green" if self._lit_until.get(key, 0.0) > now else "")


def _line(view: View, tally: Tally, elapsed: float) -> str:
    parts = [f"{elapsed:4.0f} s  {tally.orders:,} orders"]
    for each in view.tables:
        captured = view.changes_read.get(each.name, 0) + (each.pending_changes or 0)
        took = milliseconds(each.last_refresh_ms)
        parts.append(f"{each.name}: {captured:,} captured, refresh {took}, {span(each.staleness)} stale")
    return " | ".join(parts)
