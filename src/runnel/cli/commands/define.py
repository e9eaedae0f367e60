"""`runnel create`, `alter`, `drop`, `refresh`, `cancel` and `validate`: the life of a stream table."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from runnel.cli.output import JsonOption, done, print_checks, print_json
from runnel.cli.progress import shown
from runnel.cli.target import DsnOption, HomeOption, absolute, open_client
from runnel.errors import UserError


class Mode(StrEnum):
    """How a stream table is refreshed."""

    AUTO = "AUTO"
    DIFFERENTIAL = "DIFFERENTIAL"
    FULL = "FULL"


class Sink(StrEnum):
    """Where a stream table is published."""

    DUCKLAKE = "ducklake"
    NONE = "none"


class SinkMode(StrEnum):
    """What the lake table holds."""

    MERGE = "merge"
    APPEND = "append"
    REPLACE = "replace"


SinkOption = Annotated[
    Sink | None,
    typer.Option(help="Also publish every change to a lake, or (none) stop publishing.", show_default=False),
]
SinkModeOption = Annotated[
    SinkMode | None,
    typer.Option(
        help="merge: the same rows as here (the default). append: a log of all changes. replace: rewritten each time.",
        show_default=False,
    ),
]
LakeOption = Annotated[str | None, typer.Option(help="Lake to publish to, when it is not the default one.")]
InlineOption = Annotated[
    bool | None,
    typer.Option(
        "--inline-small-changes/--no-inline-small-changes",
        help="Keep small changes as rows of the lake's catalog instead of small files.",
        show_default=False,
    ),
]
ExportOption = Annotated[
    str | None,
    typer.Option(help="Also write each refresh's changes as a Parquet file to this folder or URL.", metavar="PLACE"),
]

NameArgument = Annotated[str, typer.Argument(help="Stream table, e.g. revenue or sales.revenue.")]
QueryArgument = Annotated[
    str | None, typer.Argument(help="The query, or - to read it from standard input.", show_default=False)
]
FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", help="Read the query from a file.", exists=True, dir_okay=False)
]
ScheduleHelp = "5s, 1m, 1h30m, a cron expression, or calculated."


def create(
    name: NameArgument,
    query: QueryArgument = None,
    file: FileOption = None,
    schedule: Annotated[str, typer.Option(help=ScheduleHelp)] = "calculated",
    mode: Annotated[Mode, typer.Option(case_sensitive=False, help="Refresh mode.")] = Mode.AUTO,
    replace: Annotated[bool, typer.Option("--replace", help="Replace one of that name.")] = False,
    sink: SinkOption = None,
    sink_mode: SinkModeOption = None,
    lake: LakeOption = None,
    inline_small_changes: InlineOption = None,
    delta_export_path: ExportOption = None,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Define a stream table with a query and fill it."""
    text = _required_query(query, file)
    with open_client(home, dsn) as client:
        make = client.create_or_replace_stream_table if replace else client.create_stream_table
        published = _sink_options(sink, sink_mode, lake, inline_small_changes, delta_export_path)
        with shown(client):
            make(name, text, schedule=schedule, refresh_mode=mode.value, **published)
    done(f"Stream table {name} is ready.")


def alter(
    name: NameArgument,
    query: Annotated[str | None, typer.Option(help="The new query, or - for standard input.")] = None,
    file: FileOption = None,
    schedule: Annotated[str | None, typer.Option(help=ScheduleHelp)] = None,
    mode: Annotated[Mode | None, typer.Option(case_sensitive=False, help="Refresh mode.")] = None,
    suspend: Annotated[bool | None, typer.Option("--suspend/--resume", help="Stop or go on refreshing.")] = None,
    sink: SinkOption = None,
    sink_mode: SinkModeOption = None,
    lake: LakeOption = None,
    inline_small_changes: InlineOption = None,
    delta_export_path: ExportOption = None,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Change the query, schedule, mode or sink of a stream table, or suspend and resume it."""
    changes: dict[str, Any] = {
        "query": _query_text(query, file),
        "schedule": schedule,
        "refresh_mode": mode.value if mode else None,
        "status": "SUSPENDED" if suspend else None,
        **_sink_options(sink, sink_mode, lake, inline_small_changes, delta_export_path),
    }
    with open_client(home, dsn) as client:
        # Resuming also forgets the errors, which is what resume_stream_table is for.
        if suspend is not False or any(value is not None for value in changes.values()):
            client.alter_stream_table(name, **changes)
        if suspend is False:
            client.resume(name)
    done(f"Stream table {name} is altered.")


def drop(
    name: NameArgument,
    cascade: Annotated[bool, typer.Option("--cascade", help="Also drop what depends on it.")] = False,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Drop a stream table, with its state and the capture that nothing else needs."""
    with open_client(home, dsn) as client:
        client.drop_stream_table(name, cascade=cascade)
    done(f"Stream table {name} is dropped.")


def cancel(name: NameArgument, home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Stop whatever the engine is doing to a stream table: its creation, a refresh, a verification."""
    with open_client(home, dsn) as client:
        found = client.cancel(name)
    done(f"Stopped the work on {name}." if found else f"Nothing was being done to {name}.")


def refresh(
    names: Annotated[list[str] | None, typer.Argument(help="Stream tables; all when none is named.")] = None,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Refresh stream tables now."""
    with open_client(home, dsn) as client, shown(client):
        if not names:
            client.refresh()
        for name in names or ():
            client.refresh(name)
    done(f"Refreshed {', '.join(names) if names else 'all stream tables'}.")


def validate(
    query: QueryArgument = None,
    file: FileOption = None,
    json: JsonOption = False,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Say whether and how a query can be maintained, without creating anything."""
    text = _required_query(query, file)
    with open_client(home, dsn) as client:
        checks = client.validate(text)
    print_json(checks) if json else print_checks(checks)
    if any(each.severity.upper() in ("ERROR", "CRITICAL") for each in checks):
        raise typer.Exit(1)


def _sink_options(
    sink: Sink | None, mode: SinkMode | None, lake: str | None, inline: bool | None, export: str | None
) -> dict[str, Any]:
    """Only what was given: the engine knows the defaults, and an older database knows no sinks."""
    given = {
        "sink": sink.value if sink else None,
        "ducklake_sink_mode": mode.value if mode else None,
        "ducklake_lake": lake,
        "inline_small_changes": inline,
        "delta_export_path": absolute(export) if export else export,
    }
    return {key: value for key, value in given.items() if value is not None}


def _required_query(query: str | None, file: Path | None) -> str:
    text = _query_text(query, file)
    if text is None:
        raise UserError("The query is missing.", hint="Give it as an argument, with --file, or - for stdin.")
    return text


def _query_text(query: str | None, file: Path | None) -> str | None:
    if query is not None and file is not None:
        raise UserError("Give the query either as text or with --file, not both.")
    if file is not None:
        return file.read_text(encoding="utf-8")
    return sys.stdin.read() if query == "-" else query
