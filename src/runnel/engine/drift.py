"""What a definition rests on: recorded when it is compiled, compared when something may have changed.

The comparing is done by the catalog's functions (migration 0013), in the transaction of the DDL where event triggers
exist, and by the engine every few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from runnel.catalog.rows import StreamTable
from runnel.engine.registry import role_name
from runnel.errors import RunnelError
from runnel.model.names import Name
from runnel.sources.registry import Kinds
from runnel.sql.compile import compile_query
from runnel.sql.describe import Description

Connection = psycopg.Connection[Any]

RENAMED = """
SELECT d.source_name, n.nspname, c.relname FROM pgtrickle.pgt_dependencies d
JOIN pg_class c ON c.oid = d.source_relid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE d.pgt_id = %s AND d.source_name <> n.nspname || '.' || c.relname
"""
UNRECORDED = """
SELECT s.pgt_id FROM pgtrickle.pgt_stream_tables s
WHERE s.status IN ('ACTIVE', 'INITIALIZING') AND NOT EXISTS (
    SELECT FROM pgtrickle.pgt_objects o WHERE o.pgt_id = s.pgt_id)
"""


def record_objects(conn: Connection, pgt_id: int, description: Description | None) -> None:
    """Remember what a query rests on, as it is now."""
    found = description.references if description is not None else ()
    conn.execute(
        "SELECT pgtrickle._record_objects(%s, %s::oid[], %s::oid[], %s::int4[])",
        (pgt_id, [r.catalog for r in found], [r.oid for r in found], [r.column for r in found]),
    )


def notice(conn: Connection) -> None:
    """Look for names that moved and for what changed under queries, and mark it in the catalog."""
    conn.execute("SELECT pgtrickle._follow_names(), pgtrickle._mark_drifted()")


def ddl_is_followed(conn: Connection) -> bool:
    """Whether event triggers tell of DDL at once."""
    row = conn.execute("SELECT pgtrickle._ddl_is_followed()").fetchone()
    return bool(row and row[0])


def renamed_sources(conn: Connection, pgt_id: int) -> dict[Name, Name]:
    """The sources of a stream table that have another name or schema than when it was compiled."""
    names = {}
    for old, schema, table in conn.execute(RENAMED, (pgt_id,)).fetchall():
        before, _, name = str(old).partition(".")
        names[Name(before, name)] = Name(schema, table)
    return names


def record_missing(conn: Connection, rows: Mapping[int, StreamTable], kinds: Kinds) -> None:
    """Stream tables of an older version have nothing recorded: what is there now is what counts."""
    for (pgt_id,) in conn.execute(UNRECORDED).fetchall():
        row = rows.get(pgt_id)
        if row is None:
            continue
        try:
            role = role_name(conn, row.owner)
            compiled = compile_query(conn, row.defining_query, settings=row.settings, role=role, kinds=kinds)
            description = compiled.description
        except RunnelError:
            # Its sources drifted: the next refresh says so.
            description = None
        record_objects(conn, pgt_id, description)
