"""Who may write what: rights of PostgreSQL on the foreign table that stands for a lake's table.

INSERT adds rows, DELETE removes them, and to change what a table is one must be a member of the role that owns it: the
engine's. What belongs to a stream table is written by its refreshes alone.
"""

from __future__ import annotations

from typing import Any

import psycopg

from runnel.iceberg.errors import forbidden
from runnel.iceberg.names import Role
from runnel.lake.format.model import Lake, LakeTable
from runnel.lake.write.published import published_by

Connection = psycopg.Connection[Any]

INSERT, DELETE, DEFINE = "INSERT", "DELETE", "DEFINE"


def require(conn: Connection, lake: Lake, role: Role, table_id: int, name: str, rights: set[str]) -> None:
    """Refuse what a role may not do to a table."""
    if role is None or _is_member(conn, role):
        return
    rows = conn.execute(
        "SELECT has_table_privilege(r.oid, k.relid, 'INSERT'), has_table_privilege(r.oid, k.relid, 'DELETE')"
        " FROM pgtrickle.pgt_lake_tables k JOIN pg_roles r ON r.rolname = %s"
        " WHERE k.lake = %s AND k.table_id = %s AND k.relid IS NOT NULL",
        (role, lake.name, table_id),
    ).fetchall()
    held = {right for right, has in zip((INSERT, DELETE), rows[0], strict=True) if has} if rows else set()
    missing = sorted(rights - held)
    if DEFINE in missing:
        raise forbidden(f"To change what table {name} is, {role} must be a member of the engine's role.")
    if missing:
        raise forbidden(f"{role} lacks {' and '.join(missing)} on table {name}.")


def require_definer(conn: Connection, role: Role, deed: str) -> None:
    """Refuse what only the engine's role and its members may do."""
    if role is not None and not _is_member(conn, role):
        raise forbidden(f"{deed} needs membership in the engine's role, which {role} does not have.")


def require_free(catalog: Connection, lake: Lake, table: LakeTable) -> None:
    """Refuse to write what a stream table publishes."""
    owner = published_by(catalog, lake, table)
    if owner is not None:
        raise forbidden(
            f"Table {table.schema}.{owner} belongs to a stream table, whose refreshes write it: read-only here."
        )


def _is_member(conn: Connection, role: str) -> bool:
    row = conn.execute(
        "SELECT pg_has_role(oid, current_user, 'USAGE') FROM pg_roles WHERE rolname = %s", (role,)
    ).fetchone()
    return bool(row and row[0])
