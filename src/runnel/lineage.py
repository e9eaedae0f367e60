"""From a lake snapshot back to the refresh that made it, and on to the versions of its sources.

Everything is read from the catalog's tables: the provenance that each publication leaves behind, the history of
refreshes, and what a stream table reads. A source that is itself published by a stream table is followed further.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

Row = dict[str, Any]
Ask = Callable[[LiteralString, Mapping[str, Any]], list[Row]]

LAKE_KEY = "ducklake:"
DEEPEST = 20

SNAPSHOTS: LiteralString = """
SELECT p.lake, p.ducklake_snapshot_id AS snapshot, p.stream_table_name AS stream_table, p.stream_table_oid::int8 AS oid,
       p.refresh_id, p.delta_row_count AS rows, p.written_at, p.frontier, h.action, h.start_time, h.end_time,
       h.data_timestamp, coalesce(s.uses_clock, false) AS uses_clock
FROM pgtrickle.pgt_ducklake_provenance p LEFT JOIN pgtrickle.pgt_refresh_history h USING (refresh_id)
LEFT JOIN pgtrickle.pgt_stream_tables s ON s.pgt_relid = p.stream_table_oid
WHERE (p.stream_table_oid = %(oid)s::oid OR %(oid)s::oid IS NULL AND p.stream_table_name = ANY (%(names)s))
  AND (%(lake)s::text IS NULL OR p.lake = %(lake)s)
  AND (%(snapshot)s::int8 IS NULL OR p.ducklake_snapshot_id <= %(snapshot)s)
ORDER BY p.ducklake_snapshot_id DESC LIMIT %(limit)s
"""
SOURCES: LiteralString = """
SELECT d.source_name AS name, d.source_type AS kind, d.source_pgt_id AS pgt_id, u.pgt_relid::int8 AS oid
FROM pgtrickle.pgt_stream_tables s JOIN pgtrickle.pgt_dependencies d USING (pgt_id)
LEFT JOIN pgtrickle.pgt_stream_tables u ON u.pgt_id = d.source_pgt_id
WHERE s.pgt_relid = %(oid)s AND d.source_type <> 'VIEW' ORDER BY d.source_name
"""
PUBLISHER: LiteralString = """
SELECT s.pgt_relid::int8 AS oid
FROM pgtrickle.pgt_sinks k JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
WHERE k.lake = %(lake)s AND k.lake_schema = %(schema)s
  AND %(table)s IN (k.view_name || '__rows', k.view_name || '__log')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceVersion:
    """A source of a refresh, and how far it was read; `made_by` when it is published by a stream table itself."""

    name: str
    kind: str
    version: str
    made_by: Lineage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """A lake snapshot, the refresh that made it, and what that refresh read."""

    lake: str
    snapshot: int
    stream_table: str
    refresh_id: int
    rows: int
    """Rows added and removed."""
    written_at: dt.datetime
    action: str | None
    """None when the history no longer has the refresh."""
    milliseconds: float | None
    data_timestamp: dt.datetime | None
    sources: Sequence[SourceVersion]


def trace(
    ask: Ask, oid: int | None, names: Sequence[str], *, lake: str | None, snapshot: int | None, limit: int
) -> list[Lineage]:
    """The newest snapshots of a stream table up to a given one, each with its sources."""
    return [_lineage(ask, row, DEEPEST) for row in _snapshots(ask, oid, names, lake, snapshot, limit)]


def _snapshots(
    ask: Ask, oid: int | None, names: Sequence[str], lake: str | None, snapshot: int | None, limit: int
) -> list[Row]:
    wanted = {"oid": oid, "names": list(names), "lake": lake, "snapshot": snapshot, "limit": limit}
    return ask(SNAPSHOTS, wanted)


def _lineage(ask: Ask, row: Row, depth: int) -> Lineage:
    took = None if row["end_time"] is None else (row["end_time"] - row["start_time"]).total_seconds() * 1000
    return Lineage(
        lake=row["lake"],
        snapshot=row["snapshot"],
        stream_table=row["stream_table"],
        refresh_id=row["refresh_id"],
        rows=row["rows"],
        written_at=row["written_at"],
        action=row["action"],
        milliseconds=took,
        data_timestamp=row["data_timestamp"],
        sources=_sources(ask, row, depth),
    )


def _sources(ask: Ask, row: Row, depth: int) -> list[SourceVersion]:
    frontier: Mapping[str, Any] = row["frontier"]
    found = []
    for source in ask(SOURCES, {"oid": row["oid"]}):
        if source["kind"] == "TABLE":
            found.append(SourceVersion(name=source["name"], kind="table", version=str(frontier.get("postgres"))))
        elif source["kind"] == "STREAM_TABLE":
            version = (frontier.get("stream_tables") or {}).get(str(source["pgt_id"]))
            # The engine refreshes one after the other: what is newest below this snapshot is what was read.
            earlier = _before(ask, source["oid"], row["lake"], row["snapshot"] - 1, depth)
            name = source["name"]
            found.append(SourceVersion(name=name, kind="stream table", version=str(version), made_by=earlier))
    for key, version in frontier.items():
        if key.startswith(LAKE_KEY):
            name = key.removeprefix(LAKE_KEY)
            made_by = _publication(ask, name, int(version), depth)
            found.append(SourceVersion(name=name, kind="lake table", version=str(version), made_by=made_by))
    if row["uses_clock"] and frontier.get("clock"):
        found.append(SourceVersion(name="the clock", kind="clock", version=str(frontier["clock"])))
    return found


def _publication(ask: Ask, name: str, snapshot: int, depth: int) -> Lineage | None:
    """Who published a lake table, when it was a stream table."""
    lake, _, rest = name.partition(".")
    schema, _, table = rest.partition(".")
    for row in ask(PUBLISHER, {"lake": lake, "schema": schema, "table": table}):
        return _before(ask, row["oid"], lake, snapshot, depth)
    return None


def _before(ask: Ask, oid: int | None, lake: str, snapshot: int, depth: int) -> Lineage | None:
    if oid is None or depth == 0:
        return None
    rows = _snapshots(ask, oid, (), lake, snapshot, 1)
    return _lineage(ask, rows[0], depth - 1) if rows else None
