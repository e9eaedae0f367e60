"""Watched lakes: what the stream tables over their catalogs say.

They are read under their names, so it matters who could put something else there: only those are read whose schema and
tables belong to the server's own role, and which the caller may read.
"""

from __future__ import annotations

from psycopg import sql
from psycopg.rows import dict_row

from runnel.http.page.caller import Connection, Row
from runnel.lake.watch import TABLES

WATCHED = """
SELECT l.name, n.nspname AS schema
FROM pgtrickle.pgt_lakes l
JOIN pg_namespace n ON n.nspname = l.name || '_watch'
JOIN pg_roles r ON r.oid = n.nspowner AND r.rolname = session_user
WHERE has_schema_privilege(n.oid, 'USAGE') AND cardinality(%(names)s::text[]) = (
    SELECT count(*) FROM pgtrickle.pgt_stream_tables s JOIN pg_class c ON c.oid = s.pgt_relid
    WHERE c.relnamespace = n.oid AND c.relname = ANY (%(names)s::text[]) AND c.relkind = 'r'
      AND c.relowner = n.nspowner AND has_table_privilege(c.oid, 'SELECT'))
ORDER BY l.is_default DESC, l.name LIMIT 5
"""
PARTS = {
    "alerts": "SELECT schema_name, table_name, small_files, files, average_bytes FROM {0}.too_many_small_files "
    "ORDER BY small_files DESC, 1, 2 LIMIT 20",
    "minutes": "SELECT extract(epoch FROM minute)::float8 AS minute, snapshots, published "
    "FROM {0}.snapshots_per_minute ORDER BY 1 DESC LIMIT 30",
    "files": "SELECT schema_name, table_name, files, bytes, rows, small_files, small_percent::float8 "
    "FROM {0}.files_per_table ORDER BY bytes DESC, 1, 2 LIMIT 10",
    "deletes": "SELECT schema_name, table_name, delete_files, deleted_rows "
    "FROM {0}.deletes_waiting ORDER BY deleted_rows DESC, 1, 2 LIMIT 10",
    "lag": "SELECT stream_table, snapshots, average_ms, longest_ms, extract(epoch FROM last_at)::float8 AS at "
    "FROM {0}.refresh_to_snapshot ORDER BY last_at DESC, 1 LIMIT 10",
    "writers": "SELECT writer, did, schema_name, table_name, snapshots, last_snapshot "
    "FROM {0}.who_wrote_what ORDER BY last_snapshot DESC, 1, 2, 3, 4 LIMIT 15",
}


def watched(conn: Connection) -> list[Row]:
    """Each watched lake with the rows of its watch that matter most."""
    with conn.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(WATCHED, {"names": [table.name for table in TABLES]}).fetchall()
        for lake in found:
            schema = sql.Identifier(lake.pop("schema"))
            lake |= {part: cursor.execute(sql.SQL(text).format(schema)).fetchall() for part, text in PARTS.items()}
        return found
