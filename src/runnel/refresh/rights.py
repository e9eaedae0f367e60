"""Refresh a table of another role without lending that role the engine's rights.

Refreshes run in the engine's session under the owner's role (SET LOCAL ROLE). Code that the owner controls could
reset that role, so none may run there: the query may only call functions that a superuser owns (checked when the
table is defined), state and temporary tables belong to the engine, and here, before anything is read or written,
whatever the owner has attached to the stream table is looked at. The table is locked before the snapshot is
taken, so nothing can be attached behind the check.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from runnel.errors import UserError
from runnel.model.names import Name

LOCK_TIMEOUT = "5s"

_ATTACHED = """
WITH untrusted AS (
    SELECT p.oid, p.proname FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner WHERE NOT r.rolsuper)
SELECT format('trigger %%s', t.tgname) FROM pg_trigger t JOIN untrusted u ON u.oid = t.tgfoid
WHERE t.tgrelid = %(table)s AND NOT t.tgisinternal AND t.tgfoid <> 'pgtrickle._guard()'::regprocedure
UNION ALL SELECT format('rule %%s', rulename) FROM pg_rewrite WHERE ev_class = %(table)s
UNION ALL SELECT format('policy %%s', polname) FROM pg_policy WHERE polrelid = %(table)s
UNION ALL
SELECT format('function %%s()', u.proname) FROM pg_depend d
JOIN untrusted u ON d.refclassid = 'pg_proc'::regclass AND u.oid = d.refobjid
WHERE (d.classid = 'pg_class'::regclass AND d.objid IN (SELECT indexrelid FROM pg_index WHERE indrelid = %(table)s))
   OR (d.classid = 'pg_constraint'::regclass AND d.objid IN (SELECT oid FROM pg_constraint WHERE conrelid = %(table)s))
   OR (d.classid = 'pg_attrdef'::regclass AND d.objid IN (SELECT oid FROM pg_attrdef WHERE adrelid = %(table)s))
UNION ALL
SELECT format('domain %%s', t.typname) FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_roles r ON r.oid = t.typowner
WHERE a.attrelid = ANY (%(relations)s::oid[]) AND t.typtype = 'd' AND NOT r.rolsuper
LIMIT 1
"""

_MAY_READ = """
SELECT has_table_privilege(%(role)s, %(oid)s::oid, 'SELECT') OR coalesce((SELECT bool_and(
    has_column_privilege(%(role)s, %(oid)s::oid, c, 'SELECT')) FROM unnest(%(columns)s::text[]) c), false)
"""


def lock_result(conn: psycopg.Connection, name: Name) -> None:
    """Keep everybody from attaching code to a stream table; call before the transaction's snapshot exists."""
    conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
    conn.execute(f"LOCK TABLE {name.sql()} IN ROW EXCLUSIVE MODE".encode())
    conn.execute("SET LOCAL lock_timeout = 0")


def check_attached(conn: psycopg.Connection, name: Name, relid: int, sources: Mapping[int, tuple[str, ...]]) -> None:
    """Refuse to run code that the owner of a stream table controls."""
    found = conn.execute(_ATTACHED, {"table": relid, "relations": [relid, *sources]}).fetchone()
    if found is not None:
        raise UserError(
            f"stream table {name}: {found[0]} belongs to an ordinary role, and would run in the engine's session",
            hint="Remove it from the stream table, or let a superuser own it.",
            sqlstate="42501",
        )


def check_readable(conn: psycopg.Connection, role: str, sources: Mapping[int, tuple[str, ...]]) -> None:
    """A role may only maintain what it may read: capture buffers must not outlive a REVOKE."""
    for oid, columns in sources.items():
        row = conn.execute(_MAY_READ, {"role": role, "oid": oid, "columns": list(columns)}).fetchone()
        if not (row and row[0]):
            named = conn.execute("SELECT %s::oid::regclass::text", (oid,)).fetchone()
            raise UserError(f"permission denied for table {named[0] if named else oid}", sqlstate="42501")
