"""A role may only maintain what it may read."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg

from runnel.errors import UserError
from runnel.ports.source import Used

_MAY_READ = """
SELECT has_table_privilege(%(role)s, %(oid)s::oid, 'SELECT') OR coalesce((SELECT bool_and(
    has_column_privilege(%(role)s, %(oid)s::oid, c, 'SELECT')) FROM unnest(%(columns)s::text[]) c), false)
"""


def check_readable(conn: psycopg.Connection, role: str, sources: Iterable[Used]) -> None:
    """Checked at each refresh, too: capture buffers must not outlive a REVOKE."""
    for used in sources:
        oid = used.relation.oid
        row = conn.execute(_MAY_READ, {"role": role, "oid": oid, "columns": list(used.columns)}).fetchone()
        if not (row and row[0]):
            named = conn.execute("SELECT %s::oid::regclass::text", (oid,)).fetchone()
            raise UserError(f"permission denied for table {named[0] if named else oid}", sqlstate="42501")
