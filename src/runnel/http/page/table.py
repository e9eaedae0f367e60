"""One stream table: its definition, its refreshes, what it keeps, what it last changed, and where it is published."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from psycopg import sql

from runnel.http.callers import Caller
from runnel.http.page.caller import Connection, Row, only, rows
from runnel.model.looks import MOST_ROWS, Looks
from runnel.model.shown import as_text

MOST_REFRESHES = 200

TABLE = """
SELECT s.pgt_id, s.pgt_relid::int8 AS relid, format('%%I.%%I', s.pgt_schema, s.pgt_name) AS name,
       s.original_query AS query,
       s.schedule, s.refresh_mode, s.effective_mode AS mode, s.mode_reason, s.status, s.needs_reinit, s.version,
       s.definition_version, s.frontier, s.consecutive_errors AS errors, pg_get_userbyid(s.owner) AS owner,
       extract(epoch FROM s.data_timestamp)::float8 AS data_at,
       extract(epoch FROM s.last_refresh_at)::float8 AS refreshed,
       extract(epoch FROM s.created_at)::float8 AS created,
       extract(epoch FROM f.staleness)::float8 AS staleness, f.pending,
       extract(epoch FROM p.period)::float8 AS period, pgtrickle._last_error(s.pgt_id, s.last_error) AS error,
       greatest(c.reltuples, 0)::float8 AS rows, pg_relation_size(c.oid) AS bytes,
       (SELECT coalesce(sum(pg_total_relation_size(r.oid)), 0) FROM pg_class r
        WHERE r.relnamespace IN ('pgtrickle_state'::regnamespace, 'pgtrickle_changes'::regnamespace)
          AND r.relname ~ format('^([gbs]|log)_%%s(_|$)', s.pgt_id) AND r.relkind = 'r')::int8 AS state_bytes,
       pg_has_role(s.owner, 'MEMBER') AS may_alter
FROM pgtrickle.pgt_stream_tables s
JOIN pgtrickle._freshness() f ON f.pgt_id = s.pgt_id JOIN pgtrickle._periods() p ON p.pgt_id = s.pgt_id
LEFT JOIN pg_class c ON c.oid = s.pgt_relid
WHERE format('%%I.%%I', s.pgt_schema, s.pgt_name) = %(name)s
"""
SOURCES = """
SELECT l.source_table AS name, l.source_type AS kind, l.cdc_mode AS capture, l.columns_used AS columns,
       b.pending_rows AS pending, b.buffer_bytes AS bytes
FROM pgtrickle.list_sources(%(name)s) l
LEFT JOIN pgtrickle.change_buffer_sizes() b ON b.stream_table = %(name)s AND b.source_table = l.source_table
"""
READERS = """
SELECT format('%%I.%%I', s.pgt_schema, s.pgt_name) AS name FROM pgtrickle.pgt_dependencies d
JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id WHERE d.source_pgt_id = %(id)s ORDER BY 1
"""
HISTORY = """
SELECT h.refresh_id AS id, extract(epoch FROM h.start_time)::float8 AS at,
       (extract(epoch FROM h.end_time - h.start_time) * 1000)::float8 AS ms, h.action, h.status, h.initiated_by AS by,
       h.changes_read AS read, h.rows_inserted AS inserted, h.rows_deleted AS deleted, h.reason, h.timings, h.work,
       coalesce(t.message, h.error_message) AS error
FROM pgtrickle.pgt_refresh_history h LEFT JOIN pgtrickle.pgt_error_texts t ON t.refresh_id = h.refresh_id
WHERE h.pgt_id = %(id)s AND h.refresh_id < coalesce(%(before)s, 9223372036854775807)
ORDER BY h.refresh_id DESC LIMIT %(limit)s
"""
SNAPSHOTS = """
SELECT p.lake, p.ducklake_snapshot_id AS snapshot, p.refresh_id, p.delta_row_count AS rows,
       extract(epoch FROM p.written_at)::float8 AS at
FROM pgtrickle.pgt_ducklake_provenance p WHERE p.stream_table_oid = %(relid)s::oid
ORDER BY p.ducklake_snapshot_id DESC LIMIT 20
"""
SINK = (
    "SELECT lake, mode, lake_schema, view_name, snapshot_id AS snapshot FROM pgtrickle.pgt_sinks WHERE pgt_id = %(id)s"
)
PROGRESS = """
SELECT command, phase, rows_done AS done, rows_total AS total, extract(epoch FROM elapsed)::float8 AS elapsed,
       extract(epoch FROM remaining)::float8 AS remaining FROM pgtrickle.pgt_progress WHERE name = %(name)s
"""


def table(conn: Connection, name: str) -> Row | None:
    """Everything but the plan, which is the engine's to tell, and rows, which not everybody may read."""
    found = only(conn, TABLE, {"name": name})
    if found is None:
        return None
    keys = {"id": found["pgt_id"], "relid": found["relid"], "name": name}
    return {
        **found,
        "sources": rows(conn, SOURCES, keys),
        "readers": [row["name"] for row in rows(conn, READERS, keys)],
        "history": history(conn, found["pgt_id"], None, 60),
        "sink": only(conn, SINK, keys),
        "snapshots": rows(conn, SNAPSHOTS, keys),
        "progress": only(conn, PROGRESS, keys),
    }


def history(conn: Connection, pgt_id: int, before: int | None, limit: int) -> list[Row]:
    """Refreshes, the newest first, below a given one."""
    return rows(conn, HISTORY, {"id": pgt_id, "before": before, "limit": min(limit, MOST_REFRESHES)})


# A delta shows all rows: a table whose policies show some rows to some roles is left alone.
READABLE = """
SELECT s.pgt_id, s.version, has_table_privilege(%(role)s, s.pgt_relid, 'SELECT') AND (
           NOT c.relrowsecurity OR (NOT c.relforcerowsecurity
               AND pg_has_role(%(role)s, c.relowner, 'USAGE'))) AS readable,
       to_regclass(format('pgtrickle_changes.log_%%s', s.pgt_id)) IS NOT NULL AS logged
FROM pgtrickle.pgt_stream_tables s LEFT JOIN pg_class c ON c.oid = s.pgt_relid
WHERE format('%%I.%%I', s.pgt_schema, s.pgt_name) = %(name)s
"""
COLUMNS = """
SELECT a.attname::text AS name FROM pg_attribute a JOIN pgtrickle.pgt_stream_tables s ON s.pgt_relid = a.attrelid
WHERE s.pgt_id = %(id)s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


MESSAGE = """
SELECT m.payload::text AS payload
FROM tide.tide_outbox_messages m JOIN tide.tide_outbox_config c ON c.outbox_name = m.outbox_name
WHERE c.pgt_id = %(id)s ORDER BY m.id DESC LIMIT 1
"""
WHY_NONE = "Its next change is shown here: rows are kept while somebody looks."


def _told(conn: Connection, pgt_id: int, columns: list[str]) -> Row | None:
    """The last change as the outbox has it, if there is one."""
    message = only(conn, MESSAGE, {"id": pgt_id})
    if message is None:
        return None
    payload = json.loads(message["payload"], parse_float=Decimal)  # which keeps all digits
    read = [
        [weight, *(None if row.get(name) is None else str(row[name])[:200] for name in columns)]
        for weight, key in ((-1, "deleted"), (1, "inserted"))
        for row in (payload.get(key) or ())[:MOST_ROWS]
    ]
    return {
        "columns": columns,
        "version": payload.get("refresh_id"),
        "rows": read[:MOST_ROWS],
        "why": "No rows changed.",
    }


def delta(conn: Connection, name: str, caller: Caller, looks: Looks) -> Row | None:
    """The rows of the last change: as the engine kept them for those who look, or as outbox or log still have them.

    They are read by the engine's role, if the caller may read the table.
    """
    found = only(conn, READABLE, {"name": name, "role": caller.role})
    if found is None:
        return None
    if not found["readable"]:
        return {"rows": [], "why": "Your role may not read this table."}
    seen = looks.look(found["pgt_id"])
    if seen is not None:
        return {"columns": seen.columns, "version": seen.version, "rows": seen.rows, "why": None}
    columns = [row["name"] for row in rows(conn, COLUMNS, {"id": found["pgt_id"]})]
    told = _told(conn, found["pgt_id"], columns)
    if told is not None:
        return told
    if not found["logged"]:
        return {"rows": [], "why": WHY_NONE}
    log = sql.Identifier("pgtrickle_changes", f"log_{found['pgt_id']}")
    query = sql.SQL(
        "SELECT pgt_version, pgt_w, {values} FROM {log} "
        "WHERE pgt_version = (SELECT max(pgt_version) FROM {log}) LIMIT {most}"
    ).format(
        log=log, most=MOST_ROWS,
        values=sql.SQL(", ".join(as_text(f"o{i}") for i in range(len(columns)))),
    )  # fmt: skip
    read: list[tuple[Any, ...]] = conn.execute(query).fetchall()
    why = None if read else WHY_NONE
    return {"columns": columns, "version": read[0][0] if read else None, "rows": [row[1:] for row in read], "why": why}
