"""A stream table that reads what its own publication writes would never come to rest."""

from __future__ import annotations

from typing import Any

import psycopg

from runnel.errors import UserError
from runnel.model.names import Name

Connection = psycopg.Connection[Any]

READ_AND_WRITTEN = """
WITH RECURSIVE below (pgt_id) AS (
    SELECT %(id)s::bigint
    UNION
    SELECT d.source_pgt_id FROM pgtrickle.pgt_dependencies d JOIN below USING (pgt_id) WHERE d.source_pgt_id IS NOT NULL
)
SELECT d.source_name FROM below JOIN pgtrickle.pgt_dependencies d USING (pgt_id)
JOIN pg_class c ON c.oid = d.source_relid
WHERE d.source_relid = 'pgtrickle.pgt_ducklake_provenance'::regclass
   OR c.relnamespace = to_regnamespace(%(schema)s) AND starts_with(c.relname::text, 'ducklake_')
ORDER BY 1 LIMIT 1
"""


def refuse_feedback(conn: Connection, pgt_id: int, name: Name, catalog_schema: str | None) -> None:
    """Refuse to publish a stream table to a lake whose catalog it reads, itself or through others.

    `catalog_schema` is quoted; None if the catalog is in another database.
    """
    found = conn.execute(READ_AND_WRITTEN, {"id": pgt_id, "schema": catalog_schema}).fetchone()
    if found is not None:
        raise UserError(
            f"stream table {name} reads {found[0]}, which its own publication changes: it would be published for ever",
            hint="Leave the sink out: it is an ordinary table in PostgreSQL, which DuckDB can attach, too.",
            sqlstate="0A000",
        )
