"""What is in a lake, told from its catalog alone: tables and views with their rows, files and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from runnel.lake.format.model import Lake

TABLES: LiteralString = """
SELECT t.table_id, s.schema_name, t.table_name, coalesce(f.rows, 0) - coalesce(d.rows, 0), coalesce(f.files, 0),
       coalesce(f.bytes, 0), c.columns
FROM {lake}.ducklake_table t
JOIN {lake}.ducklake_schema s ON s.schema_id = t.schema_id AND s.begin_snapshot <= %(at)s
 AND (s.end_snapshot IS NULL OR s.end_snapshot > %(at)s)
LEFT JOIN (
    SELECT table_id, sum(record_count)::int8 AS rows, count(*) AS files, sum(file_size_bytes)::int8 AS bytes
    FROM {lake}.ducklake_data_file
    WHERE begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s) GROUP BY 1) f USING (table_id)
LEFT JOIN (
    SELECT table_id, sum(delete_count)::int8 AS rows FROM {lake}.ducklake_delete_file
    WHERE begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s) GROUP BY 1) d USING (table_id)
LEFT JOIN (
    SELECT table_id, array_agg(column_name || ' ' || column_type ORDER BY column_order) AS columns
    FROM {lake}.ducklake_column
    WHERE begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s) AND parent_column IS NULL
    GROUP BY 1) c USING (table_id)
WHERE t.begin_snapshot <= %(at)s AND (t.end_snapshot IS NULL OR t.end_snapshot > %(at)s)
"""
VIEWS: LiteralString = """
SELECT s.schema_name, v.view_name
FROM {lake}.ducklake_view v
JOIN {lake}.ducklake_schema s ON s.schema_id = v.schema_id AND s.begin_snapshot <= %(at)s
 AND (s.end_snapshot IS NULL OR s.end_snapshot > %(at)s)
WHERE v.begin_snapshot <= %(at)s AND (v.end_snapshot IS NULL OR v.end_snapshot > %(at)s)
"""
INLINED: LiteralString = "SELECT table_id, table_name FROM {lake}.ducklake_inlined_data_tables"
INLINED_ROWS: LiteralString = """
SELECT count(*) FROM {lake}.{table}
WHERE begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s)
"""
INLINED_DELETES: LiteralString = """
SELECT count(*) FROM {lake}.{table} d JOIN {lake}.ducklake_data_file f ON f.data_file_id = d.file_id
WHERE d.begin_snapshot <= %(at)s AND (f.end_snapshot IS NULL OR f.end_snapshot > %(at)s)
"""
EXISTS: LiteralString = "SELECT to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text)) IS NOT NULL"


@dataclass(frozen=True, slots=True)
class TableOverview:
    """One table or view; a view has no rows of its own."""

    schema: str
    name: str
    kind: str
    rows: int | None
    files: int | None
    bytes: int | None
    columns: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema,
            "name": self.name,
            "kind": self.kind,
            "rows": self.rows,
            "files": self.files,
            "bytes": self.bytes,
            "columns": list(self.columns),
        }


def overview(conn: psycopg.Connection[Any], lake: Lake, snapshot: int) -> list[TableOverview]:
    """Tables and views at a snapshot, by name."""
    inlined = _inlined_rows(conn, lake, snapshot)
    found = []
    for table_id, schema, name, rows, files, size, columns in _query(conn, lake, TABLES, at=snapshot):
        counted = rows + inlined.get(table_id, 0) - _inlined_deletes(conn, lake, table_id, snapshot)
        found.append(TableOverview(schema, name, "table", counted, files, size, columns or ()))
    for schema, name in _query(conn, lake, VIEWS, at=snapshot):
        found.append(TableOverview(schema, name, "view", None, None, None, ()))
    return sorted(found, key=lambda each: (each.schema, each.name))


def _inlined_rows(conn: psycopg.Connection[Any], lake: Lake, snapshot: int) -> dict[int, int]:
    counts: dict[int, int] = {}
    for table_id, table in _query(conn, lake, INLINED):
        (rows,) = _query(conn, lake, INLINED_ROWS, table, at=snapshot)[0]
        counts[table_id] = counts.get(table_id, 0) + rows
    return counts


def _inlined_deletes(conn: psycopg.Connection[Any], lake: Lake, table_id: int, snapshot: int) -> int:
    """Rows of files that are deleted by a row in PostgreSQL; the table that holds them is not registered anywhere."""
    table = f"ducklake_inlined_delete_{table_id}"
    if not _query(conn, lake, EXISTS, schema=lake.schema, table=table)[0][0]:
        return 0
    return int(_query(conn, lake, INLINED_DELETES, table, at=snapshot)[0][0])


def _query(
    conn: psycopg.Connection[Any], lake: Lake, text: LiteralString, inlined: str = "", **values: Any
) -> list[tuple[Any, ...]]:
    statement = sql.SQL(text).format(lake=sql.Identifier(lake.schema), table=sql.Identifier(inlined or "none"))
    return conn.execute(statement, values).fetchall()
