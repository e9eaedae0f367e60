"""How results look: tables for people, JSON for programs. rich is imported only when something is drawn."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.model.quantities import counted, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from runnel.client import AttachedLake, Check, LakeTable, Progress, Refresh, StreamTableStatus, VerifyResult
    from runnel.errors import RunnelError
    from runnel.lineage import Lineage

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_STATE_COLOURS = {"ACTIVE": "green", "INITIALIZING": "yellow", "SUSPENDED": "yellow", "ERROR": "red"}
_SEVERITY_COLOURS = {
    "ERROR": "red",
    "CRITICAL": "red",
    "WARNING": "yellow",
    "WARN": "yellow",
    "OK": "green",
    "INFO": "dim",
}


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def note(text: str, style: str = "dim") -> None:
    """A line about what is going on, apart from the result on stdout."""
    console(stderr=True).print(text, style=style, markup=False)


def done(text: str) -> None:
    console().print(text, markup=False)


def print_error(error: RunnelError) -> None:
    """One red line, then what PostgreSQL or the engine adds to it."""
    from runnel.dsn import without_secrets

    out = console(stderr=True)
    out.print(without_secrets(error.message), style="bold red", markup=False)
    if error.detail:
        # A caret under a line of the query: wrapping would move it away.
        out.print(without_secrets(error.detail), markup=False, soft_wrap=True)
    if error.hint:
        out.print(f"Hint: {without_secrets(error.hint)}", style="cyan", markup=False)


def warn(problem: RunnelError) -> None:
    """Something that does not stop the command but will stop somebody: what, and the way out."""
    out = console()
    out.print(f"Warning: {problem.message}", style="bold yellow", markup=False)
    if problem.detail:
        out.print(problem.detail, markup=False)
    if problem.hint:
        out.print(f"Hint: {problem.hint}", style="cyan", markup=False)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(_plain(value), indent=2, ensure_ascii=False) + "\n")


def print_status(tables: Sequence[StreamTableStatus]) -> None:
    if not tables:
        done("No stream tables yet. Create one with: runnel create NAME 'SELECT ...'")
        return
    _print(status_table(tables))


def print_progress(work: Sequence[Progress]) -> None:
    """What the engine is at, if it takes longer than a moment."""
    for each in work:
        left = "" if each.remaining is None else f", about {span(each.remaining)} left"
        note(f"At work: {each.command} {each.name}, {each.phase}, {rows_of(each)}for {span(each.elapsed)}{left}")


def rows_of(each: Progress) -> str:
    """How many rows are done of how many, as far as that is known."""
    match each.rows_done, each.rows_total:
        case None, None:
            return ""
        case None, total:
            return f"about {total:,} rows, "
        case done, None:
            return f"{done:,} rows, "
        case done, total:
            return f"{done:,} of about {total:,} rows, "


def status_table(tables: Sequence[StreamTableStatus]) -> Table:
    published = any(each.sink for each in tables)
    return _table(
        [
            "stream table",
            "state",
            "mode",
            "schedule",
            ">staleness",
            ">last refresh",
            ">rows",
            ">pending",
            "evaluated by",
            *(["published to"] if published else []),
            "error",
        ],
        [
            [
                each.relation,
                _coloured(each.status, _STATE_COLOURS),
                _mode(each),
                each.schedule,
                span(each.staleness),
                milliseconds(each.last_refresh_ms),
                delta_rows(each.rows_inserted, each.rows_deleted),
                _count(each.pending_changes),
                "-" if each.work is None else each.work.evaluator,
                *([_escape(each.sink or "-")] if published else []),
                _error(each),
            ]
            for each in tables
        ],
    )


def print_history(refreshes: Sequence[Refresh]) -> None:
    lakes = any(each.lake_io for each in refreshes)
    _draw(
        [
            *("start", "stream table", "action", "status", "by", ">took", ">changes", ">rows", "work"),
            *(["read of lakes"] if lakes else []),
            "note",
        ],
        [
            [
                f"{each.start_time:%Y-%m-%d %H:%M:%S}",
                each.name,
                each.action,
                _coloured(each.status, {"COMPLETED": "green", "FAILED": "red", "RUNNING": "yellow"}),
                (each.initiated_by or "").lower(),
                milliseconds(each.milliseconds),
                _count(each.changes_read),
                delta_rows(each.rows_inserted, each.rows_deleted),
                "-" if each.work is None else str(each.work),
                *([_lake_io(each)] if lakes else []),
                _escape(each.error_message or each.reason or ""),
            ]
            for each in refreshes
        ],
    )


def print_checks(checks: Sequence[Check]) -> None:
    _draw(
        ["check", "severity", "result"],
        [[each.name, _coloured(each.severity, _SEVERITY_COLOURS), _escape(each.result)] for each in checks],
    )


def print_settings(values: Mapping[str, Mapping[str, str | None]]) -> None:
    _draw(
        ["setting", "value", "from"],
        [
            [name, _escape(each["value"] or "-"), f"[dim]{_escape(each['from'] or '')}[/]"]
            for name, each in values.items()
        ],
    )


def print_lakes(lakes: Sequence[AttachedLake]) -> None:
    if not lakes:
        done("No lakes yet. Make one with: runnel lake attach NAME --create --schema SCHEMA --data-path PLACE")
        return
    _draw(
        ["lake", "files", "catalog", "encrypted", "maintained"],
        [
            [
                _escape(each.name) + (" (default)" if each.is_default else ""),
                _escape(each.data_path),
                _escape(f"schema {each.catalog_schema}" + (" on another server" if each.remote else "")),
                "yes" if each.encrypted else "no",
                "by others" if each.maintain_every is None else f"every {span(each.maintain_every)}",
            ]
            for each in lakes
        ],
    )


def print_lake_tables(tables: Sequence[LakeTable]) -> None:
    if not tables:
        done("The lake is empty. Publish a stream table with: runnel create NAME 'SELECT ...' --sink ducklake")
        return
    _draw(
        ["table", "kind", ">rows", ">files", ">size", "columns"],
        [
            [
                _escape(each.name if each.schema == "main" else f"{each.schema}.{each.name}"),
                each.kind,
                _count(each.rows),
                _count(each.files),
                "-" if each.bytes is None else size(each.bytes),
                _escape(", ".join(each.columns)),
            ]
            for each in tables
        ],
    )


def print_lineage(snapshots: Sequence[Lineage]) -> None:
    """One tree per snapshot: the refresh that made it, and below it what that refresh read."""
    from rich.tree import Tree

    def grow(tree: Tree, lineage: Lineage) -> None:
        how = "no longer in the history" if lineage.action is None else lineage.action
        took = "" if lineage.milliseconds is None else f", {milliseconds(lineage.milliseconds)}"
        refresh = tree.add(f"refresh {lineage.refresh_id} of {_escape(lineage.stream_table)} ({how}{took})")
        for source in lineage.sources:
            version = "snapshot" if source.kind in ("table", "lake table") else "version"
            at = source.version if source.kind == "clock" else f"{source.kind} at {version} {source.version}"
            below = refresh.add(f"{_escape(source.name)}: {_escape(at)}")
            if source.made_by is not None:
                grow(below, source.made_by)

    for each in snapshots:
        when = f"{each.written_at:%Y-%m-%d %H:%M:%S}"
        changed = f"{counted(each.rows, 'row')} changed"
        tree = Tree(f"[bold]{_escape(each.lake)} snapshot {each.snapshot}[/]  {when}  {changed}")
        grow(tree, each)
        console().print(tree)


def print_verified(name: str, result: VerifyResult) -> None:
    out = console()
    if result.ok:
        rows = result.counts.get("expected", result.counts.get("rows"))
        counted = f" ({rows:,} rows)" if rows is not None else ""
        out.print(f"[green]✓[/] {_escape(name)} equals its query in PostgreSQL{counted}")
        return
    if result.error is not None:
        out.print(f"[bold red]✗ {_escape(name)} could not be verified[/]: {_escape(result.error)}")
        return
    out.print(f"[bold red]✗ {_escape(name)} differs from its query in PostgreSQL[/]")
    for title, sign, rows_of in (("missing", "-", result.missing), ("unexpected", "+", result.unexpected)):
        if rows_of:
            out.print(f"  {title}:")
        for row in rows_of:
            out.print(f"    {sign} {row}", markup=False)


def span(value: dt.timedelta | None) -> str:
    """A length of time at the precision one cares about: 0.4s, 12s, 3m 5s, 2h 10m."""
    if value is None:
        return "-"
    seconds = max(value.total_seconds(), 0.0)
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for length, unit, smaller_length, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= length:
            return f"{whole // length}{unit} {whole % length // smaller_length}{smaller}"
    return f"{whole}s"


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def delta_rows(inserted: int | None, deleted: int | None) -> str:
    if inserted is None and deleted is None:
        return "-"
    return f"+{inserted or 0:,} -{deleted or 0:,}"


def _draw(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    _print(_table(headers, rows))


def _print(table: Table) -> None:
    out = console()
    if not out.is_terminal:
        # A pipe has no width: never cut what a program is going to read.
        out.width = 10_000
    out.print(table)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table; a header that starts with > is a column of numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header.lstrip(">"), justify="right" if header.startswith(">") else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _lake_io(each: Refresh) -> str:
    read = each.lake_io
    if not read:
        return "-"
    skipped = f", {read['skipped']:,} skipped" if read.get("skipped") else ""
    inlined = f", {counted(read['inlined_rows'], 'inlined row')}" if read.get("inlined_rows") else ""
    return f"{counted(read['files'], 'file')}{skipped}, {size(read['bytes'])}{inlined}"


def _mode(each: StreamTableStatus) -> str:
    if each.refresh_mode == each.effective_mode:
        return each.effective_mode
    return f"{each.refresh_mode} ({each.effective_mode})"


def _error(each: StreamTableStatus) -> str:
    if not each.last_error:
        return f"[yellow]{_escape(each.tests)}[/]" if each.tests and each.tests != "ok" else ""
    again = f"{each.consecutive_errors}x " if each.consecutive_errors > 1 else ""
    return f"[red]{again}{_escape(each.last_error.splitlines()[0])}[/]"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _coloured(text: str, colours: Mapping[str, str]) -> str:
    return f"[{colours.get(text.upper(), 'default')}]{_escape(text)}[/]"


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _plain(value: Any) -> Any:
    """What JSON can say: seconds for spans, ISO for times, text for exact numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return value
