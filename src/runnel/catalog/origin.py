"""Whether the rows of the catalog are the ones that an engine wrote, or were loaded from a dump.

A row of `pgt_settings` holds the OID of its table and its own `xmin`. Copies of files keep both: a base backup, a
standby, a database made from a template, pg_upgrade. A dump is loaded by other transactions, mostly into another table.
Roles are kept by their OIDs, which a dump does not translate; so their names are noted beside it.
"""

from __future__ import annotations

from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

IS_LOADED = """
SELECT value <> format('%s:%s', tableoid, xmin) FROM pgtrickle.pgt_settings WHERE key = 'origin'
"""
# Not inside of a savepoint: the row's xmin would be that of the subtransaction.
_MARK = """
INSERT INTO pgtrickle.pgt_settings (key, value)
VALUES ('origin', format('%s:%s', 'pgtrickle.pgt_settings'::regclass::oid, pg_current_xact_id()::xid))
ON CONFLICT (key) DO """
MARK = f"{_MARK}UPDATE SET value = excluded.value"
MARK_FIRST = f"{_MARK}NOTHING"
# Owners of stream tables are not among them: theirs are the owners of the tables.
ROLE_COLUMNS = (
    ("pgtrickle.pgt_tokens", "role"),
    ("tide.tide_outbox_config", "owner"),
    ("tide.tide_consumer_groups", "owner"),
    ("tide.relay_outbox_config", "owner"),
    ("tide.tide_inbox_config", "owner"),
    ("tide.relay_inbox_config", "owner"),
)
_MENTIONED = " UNION ".join(f"SELECT {column} FROM {table}" for table, column in ROLE_COLUMNS)  # noqa: S608
# Writes nothing, not even a lock, while nothing has changed: the engine asks every few seconds.
NOTE_ROLES = f"""
WITH noted AS (SELECT coalesce(jsonb_object_agg(r.oid::text, r.rolname), '{{}}')::text AS names
               FROM pg_roles r WHERE r.oid IN ({_MENTIONED}))
INSERT INTO pgtrickle.pgt_settings (key, value)
SELECT 'roles', n.names FROM noted n
WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_settings s WHERE s.key = 'roles' AND s.value = n.names)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""  # noqa: S608  (made of constants)


def is_loaded(conn: Connection) -> bool:
    """Whether the catalog came out of a dump. One that no engine has ever worked on says nothing, and did not."""
    row = conn.execute(IS_LOADED).fetchone()
    return bool(row and row[0])


def mark(conn: Connection) -> None:
    """From now on the catalog is this one."""
    conn.execute(MARK.encode())


def mark_first(conn: Connection) -> None:
    """Mark a catalog that no engine has worked on yet."""
    conn.execute(MARK_FIRST.encode())


def note_roles(conn: Connection) -> None:
    """Note the names of roles that are kept by number, for whoever reads a dump."""
    conn.execute(NOTE_ROLES.encode())
