"""What a user says about publishing to a lake: the options of create and alter, checked against what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runnel.errors import UserError
from runnel.model.names import Name
from runnel.sinks.ducklake.catalog import LakeSink, Mode
from runnel.sinks.options import COMPRESSIONS, choice, given, lake_schema

SINKS = ("none", "ducklake")
MODES: tuple[Mode, ...] = ("merge", "append", "replace")
_LAKE_ONLY = ("ducklake_sink_mode", "ducklake_lake", "inline_small_changes", "ducklake_compression")
OPTIONS = ("sink", *_LAKE_ONLY)
_RESERVED = ("__action", "__refresh_id", "__refreshed_at")


def sink_of(args: Mapping[str, Any], before: LakeSink, default_lake: str) -> LakeSink:
    """The sink a request asks for, which may be to publish no more; what it does not name stays as it is."""
    kind = choice(args, "sink", SINKS, before.sink)
    of_lakes = given(args, _LAKE_ONLY)
    if kind == "none" and of_lakes:
        raise UserError(f"{next(iter(of_lakes))} needs a sink", hint="Add sink => 'ducklake'.", sqlstate="22023")
    mode = choice(args, "ducklake_sink_mode", MODES, before.mode)
    after = replace(
        before,
        sink=kind,
        lake=(args.get("ducklake_lake") or before.lake or default_lake) if kind == "ducklake" else None,
        mode=next(each for each in MODES if each == mode),
        inline_small_changes=bool(of_lakes.get("inline_small_changes", before.inline_small_changes)),
        compression=choice(args, "ducklake_compression", COMPRESSIONS, before.compression),
    )
    if (after.sink, after.lake, after.mode) != (before.sink, before.lake, before.mode):
        after = unpublished(after)
    return after


def no_sink(pgt_id: int, name: Name) -> LakeSink:
    """A stream table that was never published, with the options it would be published with."""
    return LakeSink(pgt_id=pgt_id, sink="none", lake_schema=lake_schema(name), view_name=name.name)


def unpublished(sink: LakeSink) -> LakeSink:
    """The same sink before its first publication."""
    return replace(sink, table_id=None, columns=None, snapshot_id=None, next_row_id=None, row_count=None,
                   definition_version=None, held_since=None)  # fmt: skip


def check_columns(sink: LakeSink, name: Name, columns: list[str]) -> None:
    """Refuse names that a lake cannot hold side by side, or that mean something there."""
    lower = [c.lower() for c in columns]
    twice = next((c for c in columns if lower.count(c.lower()) > 1), None)
    if twice is not None:
        raise UserError(
            f"stream table {name}: a lake cannot tell column {twice!r} from another of the same letters",
            hint="Name one of them differently in the query.",
            sqlstate="42701",
        )
    taken = {*(_RESERVED if sink.mode == "append" else ()), "row_id", "begin_snapshot", "end_snapshot"}
    for column in lower:
        if column in taken or column.startswith("_ducklake_internal"):
            raise UserError(
                f"stream table {name}: a column of a lake's table cannot be called {column!r}",
                hint="Name it differently in the query.",
                sqlstate="42939",
            )


def describe(sink: LakeSink) -> str:
    """A sink in one line, for people."""
    inline = ", small changes inlined" if sink.inline_small_changes else ""
    return f"{sink.lake}.{sink.lake_schema}.{sink.view_name} ({sink.mode}, {sink.compression}{inline})"
