"""Which tables of a lake there are under which names, and which of them a role may read.

A published stream table is a view over a table in the lake. Here it is that table, under the stream table's own name,
as long as the view shows it row by row; a log of changes keeps its own name. Rights are PostgreSQL's: SELECT on the
stream table, or on the foreign table that stands for a lake's table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from runnel.lake.format.catalog import query, query_all
from runnel.lake.format.model import Lake

Connection = psycopg.Connection[Any]
Role = str | None
"""A role in PostgreSQL; None for the engine itself, whose lake it is."""

# Of a table with row security only those who are exempt from it get all rows.
ALLOWED = """
SELECT t.table_id,
       has_schema_privilege(r.oid, c.relnamespace, 'USAGE') AND has_table_privilege(r.oid, c.oid, 'SELECT')
       AND (NOT c.relrowsecurity OR r.rolsuper OR r.rolbypassrls
            OR (NOT c.relforcerowsecurity AND pg_has_role(r.oid, c.relowner, 'USAGE')))
FROM (SELECT table_id, coalesce(p.relid, k.relid) AS relid
      FROM (SELECT table_id, relid FROM pgtrickle.pgt_lake_tables WHERE lake = %(lake)s) k
      FULL JOIN (SELECT p.table_id, s.pgt_relid AS relid
                 FROM pgtrickle.pgt_sinks p JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
                 WHERE p.lake = %(lake)s AND p.sink = 'ducklake' AND p.table_id IS NOT NULL) p USING (table_id)) t
JOIN pg_class c ON c.oid = t.relid JOIN pg_roles r ON r.rolname = %(role)s
"""


_TABLES: LiteralString = (
    "SELECT s.schema_name, t.table_name, t.table_id FROM {lake}.ducklake_table t"
    " JOIN {lake}.ducklake_schema s USING (schema_id)"
    " WHERE t.begin_snapshot <= %(at)s AND (t.end_snapshot IS NULL OR t.end_snapshot > %(at)s)"
    " AND s.begin_snapshot <= %(at)s AND (s.end_snapshot IS NULL OR s.end_snapshot > %(at)s)"
)
_VIEWS: LiteralString = (
    "SELECT s.schema_name, v.view_name FROM {lake}.ducklake_view v"
    " JOIN {lake}.ducklake_schema s USING (schema_id)"
    " JOIN {lake}.ducklake_tag g ON g.object_id = v.view_id AND g.key = 'pg_trickle.mode'"
    " AND g.value IN ('merge', 'replace')"
    " WHERE v.begin_snapshot <= %(at)s AND (v.end_snapshot IS NULL OR v.end_snapshot > %(at)s)"
    " AND s.begin_snapshot <= %(at)s AND (s.end_snapshot IS NULL OR s.end_snapshot > %(at)s)"
    " AND g.begin_snapshot <= %(at)s AND (g.end_snapshot IS NULL OR g.end_snapshot > %(at)s)"
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A table as it is listed."""

    namespace: str
    name: str
    table_id: int


def namespaces(catalog: Connection, lake: Lake, at: int) -> list[str]:
    """The schemas of a lake."""
    rows = query(
        catalog,
        lake,
        "SELECT schema_name FROM {lake}.ducklake_schema"
        " WHERE begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s) ORDER BY 1",
        at=at,
    )
    return [str(row[0]) for row in rows]


def listed(catalog: Connection, lake: Lake, at: int) -> list[Listed]:
    """All tables of a lake, by name."""
    rows, views = query_all(catalog, lake, (_TABLES, _VIEWS), at=at)
    shown = {(schema, f"{view}__rows"): view for schema, view in views}
    found = [Listed(schema, str(shown.get((schema, name), name)), id) for schema, name, id in rows]
    return sorted(found, key=lambda each: (each.namespace, each.name))


def readable(conn: Connection, lake: Lake, role: str) -> Mapping[int, bool]:
    """By table: whether a role may read it. Tables that are not in here have no name in PostgreSQL yet."""
    return {id: bool(allowed) for id, allowed in conn.execute(ALLOWED, {"lake": lake.name, "role": role})}


def sees_all(conn: Connection, role: Role) -> bool:
    """Whether a role may read everything."""
    if role is None:
        return True
    row = conn.execute("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (role,)).fetchone()
    return bool(row and row[0])
