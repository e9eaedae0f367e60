"""A lake watched by itself: stream tables over the tables of its catalog, and over what publications leave behind.

The catalog's tables are ordinary tables, so capture follows whoever writes to the lake. None of the watch tables reads
the clock or what a refresh of a watch table writes, and none is published: on an idle lake nothing is refreshed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is called small, and how much of it is too much."""

    small_bytes: int = MIB
    """A data file below this size is small."""
    small_files: int = 20
    """From so many small files on, a table stands in `too_many_small_files`."""


@dataclass(frozen=True, slots=True)
class WatchTable:
    """One stream table of the watch. `{c}` is the catalog's schema, `{w}` the watch's own."""

    name: str
    about: str
    query: LiteralString


# Each says what it is about in one line; those that read others come after them.
TABLES = (
    WatchTable(
        "snapshots_per_minute",
        "snapshots by the minute, and how many of them stream tables published",
        """
        SELECT date_trunc('minute', s.snapshot_time) AS minute, count(*) AS snapshots,
               count(p.lake) AS published
        FROM {c}.ducklake_snapshot s
        LEFT JOIN pgtrickle.pgt_ducklake_provenance p ON p.ducklake_snapshot_id = s.snapshot_id AND p.lake = {lake}
        GROUP BY 1""",
    ),
    WatchTable(
        "files_per_table",
        "data files, bytes and rows of each table, and the share of small files",
        """
        SELECT n.schema_name, t.table_name, f.files, f.bytes, f.rows, f.small_files,
               round(100.0 * f.small_files / f.files, 1)::numeric(4,1) AS small_percent
        FROM {c}.ducklake_table t
        JOIN {c}.ducklake_schema n ON n.schema_id = t.schema_id
        JOIN (SELECT table_id, count(*) AS files, sum(file_size_bytes)::bigint AS bytes,
                     sum(record_count)::bigint AS rows,
                     count(*) FILTER (WHERE file_size_bytes < {small_bytes}) AS small_files
              FROM {c}.ducklake_data_file WHERE end_snapshot IS NULL GROUP BY table_id) f ON f.table_id = t.table_id
        WHERE t.end_snapshot IS NULL AND n.end_snapshot IS NULL""",
    ),
    WatchTable(
        "deletes_waiting",
        "rows that are deleted and still in their files, until the table is compacted",
        """
        SELECT n.schema_name, t.table_name, d.delete_files, d.deleted_rows
        FROM {c}.ducklake_table t
        JOIN {c}.ducklake_schema n ON n.schema_id = t.schema_id
        JOIN (SELECT table_id, count(*) AS delete_files, sum(delete_count)::bigint AS deleted_rows
              FROM {c}.ducklake_delete_file WHERE end_snapshot IS NULL GROUP BY table_id) d ON d.table_id = t.table_id
        WHERE t.end_snapshot IS NULL AND n.end_snapshot IS NULL""",
    ),
    WatchTable(
        "refresh_to_snapshot",
        "milliseconds from the moment that a published refresh reflects to its snapshot in the lake",
        """
        SELECT p.stream_table_name AS stream_table, count(*) AS snapshots, sum(p.delta_row_count)::bigint AS rows,
               avg((extract(epoch FROM s.snapshot_time - p.data_timestamp) * 1000)::bigint)::bigint AS average_ms,
               max((extract(epoch FROM s.snapshot_time - p.data_timestamp) * 1000)::bigint) AS longest_ms,
               max(s.snapshot_time) AS last_at
        FROM {c}.ducklake_snapshot s
        JOIN pgtrickle.pgt_ducklake_provenance p ON p.ducklake_snapshot_id = s.snapshot_id
        WHERE p.lake = {lake}
        GROUP BY 1""",
    ),
    WatchTable(
        "who_wrote_what",
        "who did what to which table, how often, and in which snapshot last",
        """
        SELECT coalesce(regexp_replace(c.author, {published}, 'stream table \\1'), 'unnamed client') AS writer,
               w.done[1] AS did, n.schema_name, t.table_name, count(*) AS snapshots, max(c.snapshot_id) AS last_snapshot
        FROM {c}.ducklake_snapshot_changes c
        CROSS JOIN LATERAL regexp_matches(c.changes_made, {changes}, 'g') AS w (done)
        JOIN {c}.ducklake_table t ON t.table_id::text = w.done[2]
        JOIN {c}.ducklake_schema n ON n.schema_id = t.schema_id
        WHERE w.done[2] IS NOT NULL AND t.end_snapshot IS NULL AND n.end_snapshot IS NULL
        GROUP BY 1, 2, 3, 4""",
    ),
    WatchTable(
        "too_many_small_files",
        "alert: tables whose small files want to be merged",
        """
        SELECT schema_name, table_name, small_files, files, bytes / files AS average_bytes
        FROM {w}.files_per_table WHERE small_files >= {small_files}""",
    ),
)

# What was done to which table, in `changes_made`: inserted_into_table:3, but not what stands in quoted names.
_CHANGES = '"(?:[^"]|"")*"|([a-z_]+):([0-9]+)'
# The author of a published snapshot: pg_trickle/<version>/stream_table/<name>/<refresh>.
_PUBLISHED = "^pg_trickle/[^/]*/stream_table/(.*)/[0-9]+$"


def watch_schema(lake: str) -> str:
    """The schema of the watch's stream tables."""
    return f"{lake}_watch"


def query_of(table: WatchTable, lake: str, catalog_schema: str, limits: Limits) -> sql.Composed:
    """The text of a watch table's query for one lake."""
    return sql.SQL(table.query).format(
        c=sql.Identifier(catalog_schema),
        w=sql.Identifier(watch_schema(lake)),
        lake=sql.Literal(lake),
        changes=sql.Literal(_CHANGES),
        published=sql.Literal(_PUBLISHED),
        small_bytes=sql.Literal(limits.small_bytes),
        small_files=sql.Literal(limits.small_files),
    )
