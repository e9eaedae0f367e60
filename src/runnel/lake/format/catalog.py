"""The lake's catalog in PostgreSQL, read as of a snapshot.

Every function takes the caller's connection and neither begins nor ends a transaction: who reads several things that
must fit together calls from one REPEATABLE READ transaction.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from runnel.errors import UserError
from runnel.lake.format.model import DataFile, DeleteFile, Lake, LakeColumn, LakeTable, MappedName
from runnel.lake.format.statements import identifier

VERSION = "1.0"

Rows = list[tuple[Any, ...]]

# What the catalog says holds from one snapshot to another: this is what holds at snapshot `at`.
LIVE: LiteralString = "begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s)"

NEWEST = 2**63 - 1
"""Greater than every snapshot: what holds at it holds at the head."""

DATA_FILE: LiteralString = (
    "data_file_id, path, path_is_relative, begin_snapshot, end_snapshot, record_count, file_size_bytes,"
    " footer_size, row_id_start, encryption_key, partial_max, mapping_id, partition_id"
)
DELETE_FILE: LiteralString = (
    "delete_file_id, data_file_id, path, path_is_relative, begin_snapshot, end_snapshot, delete_count,"
    " file_size_bytes, footer_size, encryption_key, partial_max, format"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of the lake."""

    id: int
    time: dt.datetime
    schema_version: int
    next_file_id: int
    """Files with a smaller id were committed no later than this snapshot."""


@dataclass(frozen=True, slots=True)
class InlinedTable:
    """A PostgreSQL table with rows of a lake table that are in no file yet."""

    name: str
    since: int | None
    """The snapshot since which the lake table had these columns. There is one such table per set of columns."""
    columns: tuple[str, ...]


def query(conn: psycopg.Connection[Any], lake: Lake, text: LiteralString, **params: Any) -> Rows:
    """Run a statement in which `{lake}` stands for the catalog's schema."""
    statement = sql.SQL(text).format(lake=identifier(lake.schema))
    with conn.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(statement, params).fetchall()


def query_all(conn: psycopg.Connection[Any], lake: Lake, texts: Sequence[LiteralString], **params: Any) -> list[Rows]:
    """Run several statements in one round trip."""
    statements = [sql.SQL(text).format(lake=identifier(lake.schema)) for text in texts]
    with conn.pipeline():
        cursors = [conn.cursor(row_factory=tuple_row).execute(statement, params) for statement in statements]
        return [cursor.fetchall() for cursor in cursors]


def open_lake(
    conn: psycopg.Connection[Any],
    name: str,
    schema: str,
    *,
    dsn: str | None = None,
    options: Mapping[str, str] | None = None,
    data_path: str | None = None,
) -> Lake:
    """The lake whose catalog is in a schema of this database; `data_path` overrides where its files are."""
    draft = Lake(name, schema, "", dsn=dsn, options=dict(options or {}))
    there = "SELECT to_regclass(format('%%I.ducklake_metadata', %(schema)s::text)) IS NOT NULL"
    if not query(conn, draft, there, schema=schema)[0][0]:
        raise UserError(
            f"There is no DuckLake catalog in schema {schema}.",
            hint="Give the schema that holds the ducklake_* tables (DuckDB's METADATA_SCHEMA; public by default).",
        )
    metadata: dict[str, str] = dict(
        query(conn, draft, "SELECT key, value FROM {lake}.ducklake_metadata WHERE scope IS NULL")
    )
    version = metadata.get("version")
    if version != VERSION:
        raise UserError(
            f"The lake {name} has catalog version {version}, and only {VERSION} can be used.",
            hint="ATTACH it once with DuckDB 1.5 and AUTOMATIC_MIGRATION true.",
        )
    path = data_path or metadata["data_path"]
    return Lake(
        name=name,
        schema=schema,
        data_path=path if path.endswith("/") else path + "/",
        encrypted=metadata.get("encrypted") == "true",
        dsn=dsn,
        options=draft.options,
    )


def head(conn: psycopg.Connection[Any], lake: Lake) -> int:
    """The newest snapshot."""
    found = query(conn, lake, "SELECT max(snapshot_id) FROM {lake}.ducklake_snapshot")[0][0]
    if found is None:
        raise UserError(f"The lake {lake.name} has no snapshot.", hint="Its catalog is damaged: restore it.")
    return int(found)


def oldest(conn: psycopg.Connection[Any], lake: Lake) -> int:
    """The oldest snapshot that has not expired."""
    return int(query(conn, lake, "SELECT coalesce(min(snapshot_id), 0) FROM {lake}.ducklake_snapshot")[0][0])


def snapshots(conn: psycopg.Connection[Any], lake: Lake, ids: Iterable[int]) -> dict[int, Snapshot]:
    """Those of the given snapshots that exist."""
    rows = query(
        conn,
        lake,
        "SELECT snapshot_id, snapshot_time, schema_version, next_file_id FROM {lake}.ducklake_snapshot"
        " WHERE snapshot_id = ANY(%(ids)s)",
        ids=list(ids),
    )
    return {row[0]: Snapshot(*row) for row in rows}


def check_snapshot(conn: psycopg.Connection[Any], lake: Lake, snapshot: int) -> None:
    """Refuse a snapshot that does not exist (any more)."""
    if not snapshots(conn, lake, [snapshot]):
        raise UserError(
            f"Snapshot {snapshot} of lake {lake.name} does not exist: "
            f"there are snapshots from {oldest(conn, lake)} to {head(conn, lake)}.",
            hint="It may have been removed with ducklake_expire_snapshots.",
        )


def snapshot_at(conn: psycopg.Connection[Any], lake: Lake, moment: dt.datetime | str) -> int:
    """The snapshot that was the newest at a moment."""
    found = query(
        conn,
        lake,
        "SELECT max(snapshot_id) FROM {lake}.ducklake_snapshot WHERE snapshot_time <= %(moment)s::timestamptz",
        moment=moment,
    )[0][0]
    if found is None:
        raise UserError(
            f"The lake {lake.name} has no snapshot at {moment}.",
            hint=f"Its oldest one is {oldest(conn, lake)}; older ones may have expired.",
        )
    return int(found)


def tables(conn: psycopg.Connection[Any], lake: Lake, snapshot: int) -> list[LakeTable]:
    """All tables of a snapshot, with their columns."""
    return _tables(conn, lake, snapshot, "true", {})


def find_table(conn: psycopg.Connection[Any], lake: Lake, schema: str, name: str, snapshot: int) -> LakeTable | None:
    """The table of that name, if the snapshot has it. Names are compared as DuckDB does: without case."""
    found = _tables(
        conn,
        lake,
        snapshot,
        "lower(s.schema_name) = lower(%(schema)s) AND lower(t.table_name) = lower(%(name)s)",
        {"schema": schema, "name": name},
    )
    return found[0] if found else None


def table_by_id(conn: psycopg.Connection[Any], lake: Lake, table_id: int, snapshot: int) -> LakeTable | None:
    """The table as it was at a snapshot, whatever its name."""
    rows, columns = query_all(
        conn, lake, (_TABLE + " AND t.table_id = %(table)s", _COLUMNS), at=snapshot, table=table_id, tables=[table_id]
    )
    return _table(lake, rows[0], _column_trees(columns)) if rows else None


_TABLE: LiteralString = (
    "SELECT t.table_id, t.table_uuid::text, s.schema_name, t.table_name,"
    " s.path, s.path_is_relative, t.path, t.path_is_relative"
    " FROM {lake}.ducklake_table t JOIN {lake}.ducklake_schema s USING (schema_id)"
    " WHERE t.begin_snapshot <= %(at)s AND (t.end_snapshot IS NULL OR t.end_snapshot > %(at)s)"
    " AND s.begin_snapshot <= %(at)s AND (s.end_snapshot IS NULL OR s.end_snapshot > %(at)s)"
)


def _tables(
    conn: psycopg.Connection[Any], lake: Lake, snapshot: int, condition: LiteralString, params: dict[str, Any]
) -> list[LakeTable]:
    text = f"{_TABLE} AND {condition} ORDER BY s.schema_name, t.table_name"
    rows = query(conn, lake, text, at=snapshot, **params)
    columns = columns_of(conn, lake, [row[0] for row in rows], snapshot) if rows else {}
    return [_table(lake, row, columns) for row in rows]


def _table(lake: Lake, row: tuple[Any, ...], columns: Mapping[int, tuple[LakeColumn, ...]]) -> LakeTable:
    return LakeTable(
        id=row[0],
        uuid=row[1],
        schema=row[2],
        name=row[3],
        path=_join(_join(lake.data_path, row[4] or "", row[5]), row[6] or "", row[7]),
        columns=columns.get(row[0], ()),
    )


_COLUMN: LiteralString = (
    "table_id, begin_snapshot, end_snapshot, parent_column, column_id, column_name, column_type, nulls_allowed,"
    " initial_default"
)


def columns_of(
    conn: psycopg.Connection[Any], lake: Lake, table_ids: Sequence[int], snapshot: int
) -> dict[int, tuple[LakeColumn, ...]]:
    """The columns of tables at a snapshot, nested ones below their parents."""
    found = _column_trees(query(conn, lake, _COLUMNS, tables=list(table_ids), at=snapshot))
    return {table: found.get(table, ()) for table in table_ids}


def _column_trees(rows: Rows) -> dict[int, tuple[LakeColumn, ...]]:
    by_table: dict[int, Rows] = defaultdict(list)
    for row in rows:
        by_table[row[0]].append(row)
    return {table: _column_tree(rows) for table, rows in by_table.items()}


_COLUMNS: LiteralString = (
    f"SELECT {_COLUMN} FROM {{lake}}.ducklake_column WHERE table_id = ANY(%(tables)s) AND {LIVE} ORDER BY column_order"
)
COLUMN_HISTORY: LiteralString = (
    f"SELECT {_COLUMN} FROM {{lake}}.ducklake_column WHERE table_id = %(table)s ORDER BY column_order"
)


def column_history(conn: psycopg.Connection[Any], lake: Lake, table_id: int) -> ColumnHistory:
    return ColumnHistory(query(conn, lake, COLUMN_HISTORY, table=table_id))


class ColumnHistory:
    """A table's columns at any snapshot, from what COLUMN_HISTORY answers."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        # The snapshots that changed a column: between two of them the columns stay the same, and are built once.
        self._marks = sorted({mark for row in self._rows for mark in row[1:3] if mark is not None})
        self._known: dict[int, tuple[LakeColumn, ...]] = {}

    @property
    def marks(self) -> Sequence[int]:
        """The snapshots that changed a column, in order."""
        return self._marks

    def is_like(self, other: ColumnHistory) -> bool:
        """Whether nothing has changed from one read to the other."""
        return self._rows == other._rows

    def ever(self, now: tuple[LakeColumn, ...]) -> tuple[LakeColumn, ...]:
        """The columns of now, and behind them those that were dropped, as they were last."""
        dropped: dict[int, LakeColumn] = {}
        for mark in self._marks:
            dropped |= {column.id: column for column in self.at(mark)}
        known = {column.id for column in now}
        return (*now, *(column for id, column in dropped.items() if id not in known))

    def at(self, snapshot: int) -> tuple[LakeColumn, ...]:
        """The columns as they were at a snapshot."""
        since = bisect_right(self._marks, snapshot)
        if since not in self._known:
            live = [row for row in self._rows if row[1] <= snapshot and (row[2] is None or row[2] > snapshot)]
            self._known[since] = _column_tree(live)
        return self._known[since]


def _column_tree(rows: Rows) -> tuple[LakeColumn, ...]:
    below: dict[int | None, Rows] = defaultdict(list)
    for row in rows:
        below[row[3]].append(row[4:])

    def build(parent: int | None) -> tuple[LakeColumn, ...]:
        return tuple(
            LakeColumn(id, name, type.lower(), nulls, default, build(id))
            for id, name, type, nulls, default in below[parent]
        )

    return build(None)


def data_files(conn: psycopg.Connection[Any], lake: Lake, table: LakeTable, snapshot: int) -> list[DataFile]:
    """The data files that are live at a snapshot."""
    rows = query(
        conn,
        lake,
        f"SELECT {DATA_FILE} FROM {{lake}}.ducklake_data_file"
        f" WHERE table_id = %(table)s AND {LIVE} ORDER BY data_file_id",
        table=table.id,
        at=snapshot,
    )
    return [data_file(table, row) for row in rows]


def delete_files(conn: psycopg.Connection[Any], lake: Lake, table: LakeTable, snapshot: int) -> list[DeleteFile]:
    """The delete files that are live at a snapshot; some of their rows may be younger, see `DeleteFile`."""
    rows = query(
        conn,
        lake,
        f"SELECT {DELETE_FILE} FROM {{lake}}.ducklake_delete_file WHERE table_id = %(table)s AND {LIVE}",
        table=table.id,
        at=snapshot,
    )
    return [delete_file(table, row) for row in rows]


def data_file(table: LakeTable, row: tuple[Any, ...]) -> DataFile:
    """The file that a row with the columns of DATA_FILE describes."""
    id, path, relative, begin, end, *rest = row
    return DataFile(id, _join(table.path, path, relative), begin, end, *rest)


def delete_file(table: LakeTable, row: tuple[Any, ...]) -> DeleteFile:
    """The file that a row with the columns of DELETE_FILE describes."""
    id, data_file_id, path, relative, begin, end, *rest, format = row
    if format not in (None, "parquet"):
        raise UserError(
            f"The lake table {table.schema}.{table.name} has a delete file in format {format}.",
            hint="Only Parquet can be read: rewrite the table with ducklake_rewrite_data_files.",
        )
    return DeleteFile(id, data_file_id, _join(table.path, path, relative), begin, end, *rest)


def mappings(conn: psycopg.Connection[Any], lake: Lake, ids: Iterable[int]) -> dict[int, tuple[MappedName, ...]]:
    """By mapping: how columns are named in files that were added as they were, and so have no field ids."""
    wanted = list(ids)
    if not wanted:
        return {}
    rows = query(
        conn,
        lake,
        "SELECT mapping_id, parent_column, column_id, source_name, target_field_id, coalesce(is_partition, false)"
        " FROM {lake}.ducklake_name_mapping WHERE mapping_id = ANY(%(ids)s)",
        ids=wanted,
    )
    below: dict[tuple[int, int | None], list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        below[row[0], row[1]].append(row[2:])

    def build(mapping: int, parent: int | None) -> tuple[MappedName, ...]:
        return tuple(
            MappedName(source, target, partition, build(mapping, id))
            for id, source, target, partition in below[mapping, parent]
        )

    return {mapping: build(mapping, None) for mapping in wanted}


# The first three columns are DuckLake's own: row id, and the snapshots in which the row came and went.
INLINED_TABLES: LiteralString = (
    "SELECT i.table_name, (SELECT max(v.begin_snapshot) FROM {lake}.ducklake_schema_versions v"
    " WHERE v.table_id = i.table_id AND v.schema_version <= i.schema_version),"
    " ARRAY(SELECT a.attname::text FROM pg_attribute a"
    " WHERE a.attrelid = to_regclass(format('%%I.%%I', %(schema)s::text, i.table_name))"
    " AND a.attnum > 3 AND NOT a.attisdropped ORDER BY a.attnum)"
    " FROM {lake}.ducklake_inlined_data_tables i WHERE i.table_id = %(table)s ORDER BY i.schema_version"
)


def inlined_tables(conn: psycopg.Connection[Any], lake: Lake, table_id: int) -> list[InlinedTable]:
    """The PostgreSQL tables that hold rows of a lake table, oldest first."""
    return inlined_tables_of(query(conn, lake, INLINED_TABLES, schema=lake.schema, table=table_id))


def inlined_tables_of(rows: Rows) -> list[InlinedTable]:
    """From what INLINED_TABLES answers."""
    return [InlinedTable(name, since, tuple(names)) for name, since, names in rows]


def inlined_deletes(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table_id: int,
    at: int,
    files: Sequence[int] | None = None,
    *,
    after: int = -1,
) -> dict[int, list[tuple[int, int]]]:
    """Deletions in (after, at] that the catalog keeps itself: per data file, positions and their snapshots."""
    name = f"ducklake_inlined_delete_{table_id}"
    there = "SELECT to_regclass(format('%%I.%%I', %(schema)s::text, %(name)s::text)) IS NOT NULL"
    if not query(conn, lake, there, schema=lake.schema, name=name)[0][0]:
        return {}
    statement = sql.SQL(
        "SELECT file_id, row_id, begin_snapshot FROM {} WHERE begin_snapshot > %s AND begin_snapshot <= %s"
        " AND (%s::int8[] IS NULL OR file_id = ANY(%s::int8[]))"
    ).format(identifier(lake.schema, name))
    wanted = None if files is None else list(files)
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    with conn.cursor(row_factory=tuple_row) as cursor:
        for file, position, snapshot in cursor.execute(statement, [after, at, wanted, wanted]):
            found[file].append((position, snapshot))
    return found


def file_stats(
    conn: psycopg.Connection[Any], lake: Lake, table_id: int, column_ids: Sequence[int]
) -> dict[int, dict[int, tuple[str | None, str | None, int | None, int | None, bool | None]]]:
    """Per column and file: least and greatest value as text, counts of values and of NULLs, whether NaN occurs."""
    stats: dict[int, dict[int, tuple[str | None, str | None, int | None, int | None, bool | None]]] = defaultdict(dict)
    for row in query(
        conn,
        lake,
        "SELECT column_id, data_file_id, min_value, max_value, value_count, null_count, contains_nan"
        " FROM {lake}.ducklake_file_column_stats WHERE table_id = %(table)s AND column_id = ANY(%(columns)s)",
        table=table_id,
        columns=list(column_ids),
    ):
        stats[row[0]][row[1]] = row[2:]
    return stats


def _join(folder: str, path: str, relative: bool | None) -> str:
    return path if relative is False else folder + path
