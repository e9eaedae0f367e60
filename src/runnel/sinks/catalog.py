"""Typed access to the catalog of sinks: where stream tables are published, what was published, files on their way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

Connection = psycopg.Connection[Any]
Mode = Literal["merge", "append", "replace"]

SELECT = """
SELECT pgt_id, sink, lake, mode, inline_small_changes, compression, delta_export_path, delta_export_compression,
       lake_schema, view_name, table_id, columns, snapshot_id, next_row_id, row_count, definition_version,
       map_start, map_storage
FROM pgtrickle.pgt_sinks
"""
SAVE = """
INSERT INTO pgtrickle.pgt_sinks (
    pgt_id, sink, lake, mode, inline_small_changes, compression, delta_export_path, delta_export_compression,
    lake_schema, view_name, table_id, columns, snapshot_id, next_row_id, row_count, definition_version,
    map_start, map_storage)
VALUES (
    %(pgt_id)s, %(sink)s, %(lake)s, %(mode)s, %(inline_small_changes)s, %(compression)s, %(delta_export_path)s,
    %(delta_export_compression)s, %(lake_schema)s, %(view_name)s, %(table_id)s, %(columns)s, %(snapshot_id)s,
    %(next_row_id)s, %(row_count)s, %(definition_version)s, %(map_start)s, %(map_storage)s)
ON CONFLICT (pgt_id) DO UPDATE SET
    sink = excluded.sink, lake = excluded.lake, mode = excluded.mode,
    inline_small_changes = excluded.inline_small_changes, compression = excluded.compression,
    delta_export_path = excluded.delta_export_path, delta_export_compression = excluded.delta_export_compression,
    table_id = excluded.table_id, columns = excluded.columns, snapshot_id = excluded.snapshot_id,
    next_row_id = excluded.next_row_id, row_count = excluded.row_count,
    definition_version = excluded.definition_version, map_start = excluded.map_start, map_storage = excluded.map_storage
"""
PUBLISHED = """
UPDATE pgtrickle.pgt_sinks SET snapshot_id = %s, next_row_id = %s, row_count = %s WHERE pgt_id = %s
"""
DELETE = "DELETE FROM pgtrickle.pgt_sinks WHERE pgt_id = %s"
ABANDONED = f"{SELECT} s WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables t WHERE t.pgt_id = s.pgt_id)"
PROVENANCE = """
INSERT INTO pgtrickle.pgt_ducklake_provenance
    (stream_table_oid, stream_table_name, ducklake_snapshot_id, refresh_id, delta_row_count, lake, frontier)
VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (lake, ducklake_snapshot_id) DO UPDATE SET -- another lake had that name
    stream_table_oid = excluded.stream_table_oid, stream_table_name = excluded.stream_table_name,
    refresh_id = excluded.refresh_id, delta_row_count = excluded.delta_row_count,
    written_at = excluded.written_at, frontier = excluded.frontier
"""
ADD_TIMINGS = """
UPDATE pgtrickle.pgt_refresh_history SET timings = coalesce(timings, '{}') || %s, end_time = clock_timestamp()
WHERE refresh_id = %s
"""
START_UPLOADS = """
INSERT INTO pgtrickle.pgt_lake_uploads (lake, path, xid) SELECT %s, p, %s::xid8 FROM unnest(%s::text[]) p
RETURNING upload_id
"""
END_UPLOADS = "DELETE FROM pgtrickle.pgt_lake_uploads WHERE upload_id = ANY(%s)"
# The server may still be finishing the transaction of an engine that is gone: its files are left alone until it has.
GIVE_UP_UPLOADS = """
UPDATE pgtrickle.pgt_lake_uploads SET given_up_at = clock_timestamp()
WHERE given_up_at IS NULL AND pg_xact_status(xid) IS DISTINCT FROM 'in progress'
"""
GIVEN_UP_UPLOADS = """
SELECT upload_id, lake, path, pg_xact_status(xid), extract(epoch FROM clock_timestamp() - given_up_at)::float8
FROM pgtrickle.pgt_lake_uploads WHERE given_up_at IS NOT NULL ORDER BY upload_id
"""
STORE_FAILED = "UPDATE pgtrickle.pgt_lake_uploads SET given_up_at = clock_timestamp() WHERE upload_id = ANY(%s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """One row of pgt_sinks; field names are the column names."""

    pgt_id: int
    sink: str
    lake: str | None = None
    mode: Mode = "merge"
    inline_small_changes: bool = False
    compression: str = "zstd"
    delta_export_path: str | None = None
    delta_export_compression: str = "snappy"
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

    @property
    def publishes(self) -> bool:
        """Whether rows go to a lake; otherwise only deltas are exported."""
        return self.sink == "ducklake"

    @property
    def table_name(self) -> str:
        """The table in the lake that holds the rows; the view over it has the stream table's name."""
        return f"{self.view_name}__{'log' if self.mode == 'append' else 'rows'}"


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a transaction that has ended: it may have been written, and may still be."""

    id: int
    lake: str | None
    path: str
    status: str | None
    """committed, aborted, or None when the transaction is too old to tell."""
    age: float
    """Seconds since it was given up."""


def load_sinks(conn: Connection) -> dict[int, Sink]:
    """All sinks by stream table."""
    with conn.cursor(row_factory=class_row(Sink)) as cursor:
        return {sink.pgt_id: sink for sink in cursor.execute(SELECT.encode())}


def abandoned_sinks(conn: Connection) -> list[Sink]:
    """Sinks whose stream table was dropped behind the engine's back."""
    with conn.cursor(row_factory=class_row(Sink)) as cursor:
        return cursor.execute(ABANDONED.encode()).fetchall()


def save_sink(conn: Connection, sink: Sink) -> None:
    """Write a sink, new or changed."""
    conn.execute(SAVE, {**asdict(sink), "columns": None if sink.columns is None else Jsonb(sink.columns)})


def mark_published(conn: Connection, pgt_id: int, snapshot: int, next_row_id: int, row_count: int) -> None:
    """What the lake holds now, to be compared before the next publication."""
    conn.execute(PUBLISHED, (snapshot, next_row_id, row_count, pgt_id))


def delete_sink(conn: Connection, pgt_id: int) -> None:
    """Forget a sink; its tables are the caller's to drop."""
    conn.execute(DELETE, (pgt_id,))


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
) -> None:
    """Say which refresh made a snapshot."""
    conn.execute(PROVENANCE, (relid, name, snapshot, refresh_id, rows, lake, Jsonb(dict(frontier))))


def add_timings(conn: Connection, refresh_id: int, timings: Mapping[str, float]) -> None:
    """Add a publication that took place after its refresh was recorded."""
    conn.execute(ADD_TIMINGS, (Jsonb(dict(timings)), refresh_id))


def start_uploads(conn: Connection, lake: str | None, xid: str, paths: Sequence[str]) -> list[int]:
    """Remember, committed, the files that are about to be written for a transaction."""
    return [row[0] for row in conn.execute(START_UPLOADS, (lake, xid, list(paths)))]


def end_uploads(conn: Connection, ids: Sequence[int]) -> None:
    """The files are published, or gone."""
    conn.execute(END_UPLOADS, (list(ids),))


def given_up_uploads(conn: Connection) -> list[Upload]:
    """Files of transactions that are over and were not accounted for."""
    conn.execute(GIVE_UP_UPLOADS)
    return [Upload(*row) for row in conn.execute(GIVEN_UP_UPLOADS)]


def store_failed(conn: Connection, ids: Sequence[int]) -> None:
    """The store did not answer: what was on its way may arrive when it does, so the time of waiting begins anew."""
    conn.execute(STORE_FAILED, (list(ids),))
