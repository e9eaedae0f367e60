"""Typed access to the catalog of lake sinks: where stream tables are published, what was published last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from runnel.sinks.catalog import IS_ABANDONED, delete_unused

Connection = psycopg.Connection[Any]
Mode = Literal["merge", "append", "replace"]

SELECT = """
SELECT pgt_id, sink, lake, mode, inline_small_changes, compression, lake_schema, view_name, table_id, columns,
       snapshot_id, next_row_id, row_count, definition_version, map_start, map_storage, held_since
FROM pgtrickle.pgt_sinks
"""
SAVE = """
INSERT INTO pgtrickle.pgt_sinks (
    pgt_id, sink, lake, mode, inline_small_changes, compression, lake_schema, view_name, table_id, columns,
    snapshot_id, next_row_id, row_count, definition_version, map_start, map_storage, held_since)
VALUES (
    %(pgt_id)s, %(sink)s, %(lake)s, %(mode)s, %(inline_small_changes)s, %(compression)s, %(lake_schema)s,
    %(view_name)s, %(table_id)s, %(columns)s, %(snapshot_id)s, %(next_row_id)s, %(row_count)s,
    %(definition_version)s, %(map_start)s, %(map_storage)s, %(held_since)s)
ON CONFLICT (pgt_id) DO UPDATE SET
    sink = excluded.sink, lake = excluded.lake, mode = excluded.mode,
    inline_small_changes = excluded.inline_small_changes, compression = excluded.compression,
    table_id = excluded.table_id, columns = excluded.columns, snapshot_id = excluded.snapshot_id,
    next_row_id = excluded.next_row_id, row_count = excluded.row_count,
    definition_version = excluded.definition_version, map_start = excluded.map_start,
    map_storage = excluded.map_storage, held_since = excluded.held_since
"""
PUBLISHED = """
UPDATE pgtrickle.pgt_sinks SET snapshot_id = %s, next_row_id = %s, row_count = %s, held_since = NULL WHERE pgt_id = %s
"""
# The options stay while there is a row: they hold again when the stream table is published again.
END = """
UPDATE pgtrickle.pgt_sinks SET sink = 'none', lake = NULL, table_id = NULL, columns = NULL, snapshot_id = NULL,
    next_row_id = NULL, row_count = NULL, definition_version = NULL, map_start = NULL, map_storage = NULL,
    held_since = NULL
WHERE pgt_id = %s
"""
HELD = """
UPDATE pgtrickle.pgt_sinks SET held_since = coalesce(held_since, clock_timestamp()),
    row_count = CASE WHEN %s THEN NULL ELSE row_count END
WHERE pgt_id = %s RETURNING held_since, row_count
"""
ABANDONED = f"{SELECT} WHERE sink = 'ducklake' AND {IS_ABANDONED} ORDER BY pgt_id"
PUBLISHED_AS = """
SELECT pgt_id FROM pgtrickle.pgt_sinks WHERE sink = 'ducklake' AND lake = %s AND table_id = %s
"""
PROVENANCE = """
INSERT INTO pgtrickle.pgt_ducklake_provenance
    (stream_table_oid, stream_table_name, ducklake_snapshot_id, refresh_id, delta_row_count, lake, frontier,
     data_timestamp)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s::timestamptz)
ON CONFLICT (lake, ducklake_snapshot_id) DO UPDATE SET -- another lake had that name
    stream_table_oid = excluded.stream_table_oid, stream_table_name = excluded.stream_table_name,
    refresh_id = excluded.refresh_id, delta_row_count = excluded.delta_row_count,
    written_at = excluded.written_at, frontier = excluded.frontier, data_timestamp = excluded.data_timestamp
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSink:
    """The lake's columns of one row of pgt_sinks; field names are the column names."""

    pgt_id: int
    sink: str
    lake: str | None = None
    mode: Mode = "merge"
    inline_small_changes: bool = False
    compression: str = "zstd"
    lake_schema: str
    view_name: str
    table_id: int | None = None
    columns: list[list[str]] | None = None
    """[name, PostgreSQL type, lake type] of each published column."""
    snapshot_id: int | None = None
    next_row_id: int | None = None
    row_count: int | None = None
    definition_version: int | None = None
    map_start: int | None = None
    """First row id of a table that was published in its physical order and is not in the row map yet."""
    map_storage: int | None = None
    held_since: datetime | None = None
    """Since when the lake keeps an older version; None: it is in step."""

    @property
    def publishes(self) -> bool:
        """Whether rows go to a lake; otherwise these are options that nothing uses now."""
        return self.sink == "ducklake"

    @property
    def table_name(self) -> str:
        """The table in the lake that holds the rows; the view over it has the stream table's name."""
        return f"{self.view_name}__{'log' if self.mode == 'append' else 'rows'}"


def load_sinks(conn: Connection) -> dict[int, LakeSink]:
    """All sinks by stream table."""
    with conn.cursor(row_factory=class_row(LakeSink)) as cursor:
        return {sink.pgt_id: sink for sink in cursor.execute(SELECT.encode())}


def load_sink(conn: Connection, pgt_id: int | None) -> LakeSink | None:
    """One stream table's sink, or the options of the one it had."""
    with conn.cursor(row_factory=class_row(LakeSink)) as cursor:
        return cursor.execute(f"{SELECT} WHERE pgt_id = %s".encode(), (pgt_id,)).fetchone()


def abandoned_sinks(conn: Connection) -> dict[int, LakeSink]:
    """Sinks of stream tables that were dropped behind the engine's back."""
    with conn.cursor(row_factory=class_row(LakeSink)) as cursor:
        return {sink.pgt_id: sink for sink in cursor.execute(ABANDONED.encode())}


def published_as(conn: Connection, lake: str, table_id: int) -> int | None:
    """The stream table that is published as a table of a lake."""
    row = conn.execute(PUBLISHED_AS, (lake, table_id)).fetchone()
    return None if row is None else int(row[0])


def save_sink(conn: Connection, sink: LakeSink) -> None:
    """Write a sink, new or changed."""
    conn.execute(SAVE, {**asdict(sink), "columns": None if sink.columns is None else Jsonb(sink.columns)})


def mark_published(conn: Connection, pgt_id: int, snapshot: int, next_row_id: int, row_count: int) -> None:
    """What the lake holds now, to be compared before the next publication."""
    conn.execute(PUBLISHED, (snapshot, next_row_id, row_count, pgt_id))


def mark_held(conn: Connection, sink: LakeSink, *, whole: bool) -> LakeSink:
    """The lake keeps what it has; `whole`: what it misses is not known any more, so everything comes next."""
    row = conn.execute(HELD, (whole, sink.pgt_id)).fetchone()
    assert row is not None
    return replace(sink, held_since=row[0], row_count=row[1])


def end_sink(conn: Connection, pgt_id: int) -> None:
    """Forget a sink; its tables are the caller's to drop."""
    conn.execute(END, (pgt_id,))
    delete_unused(conn, pgt_id)


def record_provenance(
    conn: Connection,
    lake: str,
    snapshot: int,
    *,
    relid: int,
    name: str,
    refresh_id: int,
    rows: int,
    frontier: Mapping[str, Any],
    at: str | None = None,
) -> None:
    """Say which refresh made a snapshot; `at`: the moment that its rows reflect."""
    conn.execute(PROVENANCE, (relid, name, snapshot, refresh_id, rows, lake, Jsonb(dict(frontier)), at))
