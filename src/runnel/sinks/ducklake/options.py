"""What a user says about a sink: the options of create and alter, checked against what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runnel.errors import UserError
from runnel.model.names import Name
from runnel.sinks.catalog import Mode, Sink

SINKS = ("none", "ducklake")
MODES: tuple[Mode, ...] = ("merge", "append", "replace")
COMPRESSIONS = ("zstd", "snappy", "gzip", "none")
OPTIONS = (
    "sink", "ducklake_sink_mode", "ducklake_lake", "inline_small_changes", "ducklake_compression",
    "delta_export_path", "delta_export_compression",
)  # fmt: skip
_RESERVED = ("__action", "__refresh_id", "__refreshed_at")
_LAKE_ONLY = ("ducklake_sink_mode", "ducklake_lake", "inline_small_changes", "ducklake_compression")


def named(args: Mapping[str, Any]) -> bool:
    """Whether a request says anything about sinks."""
    return any(args.get(option) is not None for option in OPTIONS)


def sink_of(args: Mapping[str, Any], current: Sink | None, pgt_id: int, name: Name, default_lake: str) -> Sink | None:
    """The sink a request asks for, None for no sink; what it does not name stays as it is."""
    before = current or Sink(pgt_id=pgt_id, sink="none", lake_schema=lake_schema(name), view_name=name.name)
    kind = _choice(args, "sink", SINKS, before.sink)
    given = next((option for option in _LAKE_ONLY if args.get(option) is not None), None)
    if kind == "none" and given is not None:
        raise UserError(f"{given} needs a sink", hint="Add sink => 'ducklake'.", sqlstate="22023")
    path = args.get("delta_export_path")
    after = replace(
        before,
        sink=kind,
        lake=(args.get("ducklake_lake") or before.lake or default_lake) if kind == "ducklake" else None,
        mode=_mode(_choice(args, "ducklake_sink_mode", MODES, before.mode)),
        inline_small_changes=_given(args, "inline_small_changes", before.inline_small_changes),
        compression=_choice(args, "ducklake_compression", COMPRESSIONS, before.compression),
        delta_export_path=before.delta_export_path if path is None else _folder(path),
        delta_export_compression=_choice(
            args, "delta_export_compression", COMPRESSIONS, before.delta_export_compression
        ),
    )
    if (after.sink, after.lake, after.mode) != (before.sink, before.lake, before.mode):
        after = unpublished(after)
    return after if after.publishes or after.delta_export_path else None


def unpublished(sink: Sink) -> Sink:
    """The same sink before its first publication."""
    return replace(sink, table_id=None, columns=None, snapshot_id=None, next_row_id=None, row_count=None,
                   definition_version=None)  # fmt: skip


def lake_schema(name: Name) -> str:
    """The lake's schema for a stream table: both sides have one that needs no mention."""
    return "main" if name.schema == "public" else name.schema


def check_columns(sink: Sink, name: Name, columns: list[str]) -> None:
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


def describe(sink: Sink) -> str:
    """A sink in one line, for people."""
    parts = []
    if sink.publishes:
        inline = ", small changes inlined" if sink.inline_small_changes else ""
        parts.append(f"{sink.lake}.{sink.lake_schema}.{sink.view_name} ({sink.mode}, {sink.compression}{inline})")
    if sink.delta_export_path:
        parts.append(f"deltas to {sink.delta_export_path} ({sink.delta_export_compression})")
    return "; ".join(parts)


def _choice(args: Mapping[str, Any], option: str, allowed: tuple[str, ...], default: str) -> str:
    value = args.get(option)
    if value is None:
        return default
    if str(value).lower() not in allowed:
        raise UserError(f"invalid {option} {value!r}", hint=f"Use one of {', '.join(allowed)}.", sqlstate="22023")
    return str(value).lower()


def _mode(text: str) -> Mode:
    return next(mode for mode in MODES if mode == text)


def _given(args: Mapping[str, Any], option: str, default: bool) -> bool:
    value = args.get(option)
    return default if value is None else bool(value)


def _folder(path: str) -> str | None:
    return None if not path else path if path.endswith("/") else f"{path}/"
