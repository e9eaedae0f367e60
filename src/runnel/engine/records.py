"""Definitions as rows of the catalog."""

from __future__ import annotations

import psycopg

from runnel.catalog.rows import Definition as StoredDefinition
from runnel.catalog.rows import Dependency
from runnel.engine.definitions import Definition
from runnel.errors import UserError


def stored_definition(definition: Definition) -> StoredDefinition:
    """What the catalog keeps of a definition."""
    plan = definition.compiled.plan
    return StoredDefinition(
        original_query=definition.query,
        defining_query=definition.compiled.description.canonical,
        schedule=definition.schedule,
        refresh_mode=definition.mode,
        effective_mode=definition.effective_mode,
        mode_reason=definition.reason,
        settings=dict(definition.settings),
        uses_clock=definition.compiled.polled or (plan is not None and plan.uses_clock),
    )


def dependencies(pgt_id: int, definition: Definition) -> list[Dependency]:
    """What a stream table reads, with the columns it uses."""
    compiled = definition.compiled
    result = []
    for relation in compiled.relations:
        used = compiled.column_uses.get(relation.oid, ())
        types = {c.name: c.type.sql for c in relation.columns}
        result.append(
            Dependency(
                pgt_id=pgt_id,
                source_relid=relation.oid,
                source_type=relation.origin.source,
                source_name=str(relation.name),
                columns_used=tuple(used),
                column_types=tuple(types[u] for u in used),
                source_pgt_id=relation.origin.upstream,
            )
        )
    for view in compiled.views:
        result.append(
            Dependency(
                pgt_id=pgt_id, source_relid=view.oid, source_type="VIEW", source_name=str(view.name),
                columns_used=(), column_types=(),
            )
        )  # fmt: skip
    return result


def role_oid(conn: psycopg.Connection, role: str) -> int:
    """A role by name."""
    row = conn.execute("SELECT oid::int8 FROM pg_roles WHERE rolname = %s", (role,)).fetchone()
    if row is None:
        raise UserError(f'role "{role}" does not exist', sqlstate="42704")
    return int(row[0])
