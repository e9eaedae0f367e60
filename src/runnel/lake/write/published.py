"""Which tables of a lake belong to stream tables: nobody else may write them."""

from __future__ import annotations

from typing import Any

import psycopg

from runnel.lake.format.catalog import query
from runnel.lake.format.model import Lake, LakeTable


def published_by(conn: psycopg.Connection[Any], lake: Lake, table: LakeTable) -> str | None:
    """The stream table that a table belongs to, by the view that shows it."""
    found = query(
        conn,
        lake,
        "SELECT v.view_name FROM {lake}.ducklake_view v JOIN {lake}.ducklake_schema s USING (schema_id)"
        " JOIN {lake}.ducklake_tag g ON g.object_id = v.view_id AND g.key = 'pg_trickle.mode'"
        " WHERE g.end_snapshot IS NULL AND v.end_snapshot IS NULL AND s.end_snapshot IS NULL"
        " AND s.schema_name = %(schema)s AND %(table)s IN (v.view_name || '__rows', v.view_name || '__log')",
        schema=table.schema,
        table=table.name,
    )
    return str(found[0][0]) if found else None
