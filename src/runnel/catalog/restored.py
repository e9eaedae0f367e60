"""Take over a catalog that was loaded from a dump: the numbers in it are those of another database.

Relations are found again by their names, roles by the names that were noted, and everything that only had a meaning
where the dump was made is removed. Each stream table is marked as drifted: the engine compiles it anew and compares its
rows, as after any change under its query. What could reach the place where the dump was made is cut off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import psycopg

from runnel.catalog import origin
from runnel.errors import TransientError

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]

LOCK_TIMEOUT = "10s"
WHY = "the database was loaded from a dump"

# Buffers, capture triggers with their functions, and the functions by which an owner's SQL runs: all are named by
# numbers that may be somebody else's here.
LEFTOVERS = """
SELECT format('DROP TABLE %s CASCADE', c.oid::regclass) FROM pg_class c
WHERE c.relnamespace = 'pgtrickle_changes'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^changes_'
UNION ALL
SELECT format('DROP FUNCTION %s CASCADE', p.oid::regprocedure) FROM pg_proc p
WHERE p.pronamespace IN (to_regnamespace('pgtrickle_changes'), to_regnamespace('pgtrickle_run'))
"""
GONE = """
DELETE FROM pgtrickle.pgt_stream_tables s
WHERE NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = s.pgt_schema AND c.relname = s.pgt_name AND c.relkind IN ('r', 'p'))
RETURNING format('%I.%I', pgt_schema, pgt_name), original_query
"""
# In two steps: a table's new number may be another one's old number.
TABLES_ASIDE = "UPDATE pgtrickle.pgt_stream_tables SET pgt_relid = (4294967295 - pgt_id)::oid"
TABLES = """
UPDATE pgtrickle.pgt_stream_tables s SET pgt_relid = c.oid, owner = c.relowner, frontier = '{}', needs_reinit = true,
    drift = %s, retry_at = NULL, updated_at = now()
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = s.pgt_schema AND c.relname = s.pgt_name
"""
SOURCES_ASIDE = """
UPDATE pgtrickle.pgt_dependencies d SET source_relid = (4294967295 - o.place)::oid
FROM (SELECT pgt_id, source_relid, row_number() OVER () AS place FROM pgtrickle.pgt_dependencies) o
WHERE o.pgt_id = d.pgt_id AND o.source_relid = d.source_relid
"""
SOURCES = """
UPDATE pgtrickle.pgt_dependencies d SET source_relid = c.oid
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE d.source_name = n.nspname || '.' || c.relname
"""
OUTBOXES = """
UPDATE tide.tide_outbox_config o SET relid = s.pgt_relid FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = o.pgt_id
"""
FORGOTTEN = (
    "DELETE FROM pgtrickle.pgt_change_tracking",
    "DELETE FROM pgtrickle.pgt_objects",
    "DELETE FROM pgtrickle.pgt_work",
    "DELETE FROM tide.relay_claims",
)
LOOPBACK = "DELETE FROM pgtrickle.pgt_settings WHERE key = 'loopback' RETURNING key"
_NOTED = """
SELECT r.oid FROM pgtrickle.pgt_settings o, jsonb_each_text(o.value::jsonb) j JOIN pg_roles r ON r.rolname = j.value
WHERE o.key = 'roles' AND j.key = t.{column}::text
"""
TOKENS = f"""
DELETE FROM pgtrickle.pgt_tokens t WHERE NOT EXISTS ({_NOTED.format(column="role")})
RETURNING coalesce(label, 'no label')
"""  # noqa: S608  (made of constants)
DISABLED = """
UPDATE {table} t SET enabled = false WHERE NOT EXISTS ({noted}) RETURNING name
"""
ROLES = "UPDATE {table} t SET {column} = coalesce(({noted}), {otherwise})"


def take_over(conn: Connection, others: Callable[[Connection], None]) -> bool:
    """Make the catalog one of this database, if it was loaded from a dump; whether it was. Call it in autocommit.

    `others` does the same to what kinds of sources and sinks keep, in the same transaction, while relations still have
    their old numbers.
    """
    if not origin.is_loaded(conn):
        return False
    log.warning("%s: its stream tables are compiled anew, and their rows are compared", WHY)
    try:
        with conn.transaction():
            conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
            conn.execute("SELECT set_config('pgtrickle.internal', 'on', true)")
            others(conn)
            _take_over(conn)
            origin.mark(conn)
    except psycopg.errors.LockNotAvailable:
        raise TransientError(
            f"{WHY}, and its capture triggers could not be removed: a transaction is writing to a source table",
            hint="Wait for it (or end it) and start the engine again.",
            sqlstate="55P03",
        ) from None
    return True


def _take_over(conn: Connection) -> None:
    for (statement,) in conn.execute(LEFTOVERS).fetchall():
        conn.execute(str(statement).encode())
    for name, query in conn.execute(GONE).fetchall():
        log.warning("stream table %s is not in the dump and was forgotten; its query was: %s", name, query)
    conn.execute(TABLES_ASIDE)
    conn.execute(TABLES, (WHY,))
    conn.execute(SOURCES_ASIDE)
    conn.execute(SOURCES)
    conn.execute(OUTBOXES)
    for statement in FORGOTTEN:
        conn.execute(statement)
    _cut_off(conn)
    _find_roles(conn)


def _cut_off(conn: Connection) -> None:
    if conn.execute(LOOPBACK).fetchone() is not None:
        log.warning("the stored loopback was removed, since it may lead to another server: runnel init --loopback")


def _find_roles(conn: Connection) -> None:
    """Roles by their names; what belongs to none that is here goes to the engine, and does nothing by itself."""
    for (label,) in conn.execute(TOKENS.encode()).fetchall():
        log.warning("a token (%s) was removed: the role that it speaks for is not here", label)
    for table, column in origin.ROLE_COLUMNS:
        noted = _NOTED.format(column=column)
        if table.startswith("tide.relay_"):
            for (name,) in conn.execute(DISABLED.format(table=table, noted=noted).encode()).fetchall():
                log.warning("pipeline %s is disabled: its owner is not here", name)
        otherwise = "current_user::regrole::oid"
        conn.execute(ROLES.format(table=table, column=column, noted=noted, otherwise=otherwise).encode())
