"""What the catalog knows of lakes after it was loaded from a dump: mended before relations are found by their names."""

from __future__ import annotations

import logging
from typing import Any

import psycopg

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]

PROVENANCE = """
UPDATE pgtrickle.pgt_ducklake_provenance p SET stream_table_oid = c.oid
FROM pgtrickle.pgt_stream_tables s, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = s.pgt_schema AND c.relname = s.pgt_name AND p.stream_table_oid = s.pgt_relid
"""
# The lake's rows are compared with the table's before anything is added or removed by their places.
SINKS = "UPDATE pgtrickle.pgt_sinks SET row_count = NULL, map_start = NULL, map_storage = NULL WHERE mode = 'merge'"
# The stand-ins themselves are in the dump, and are found by their names.
STAND_INS = "DELETE FROM pgtrickle.pgt_lake_tables"
# Files that were being written there; whose they are is not known here.
UPLOADS = "DELETE FROM pgtrickle.pgt_lake_uploads"
RESTING = "UPDATE pgtrickle.pgt_lakes SET maintain_every = NULL WHERE maintain_every IS NOT NULL RETURNING name"


def forget_other_database(conn: Connection) -> None:
    """Remove what is about the database that was dumped, and delete no file that it may need."""
    for statement in (PROVENANCE, SINKS, STAND_INS, UPLOADS):
        conn.execute(statement)
    for (lake,) in conn.execute(RESTING).fetchall():
        log.warning(
            "lake %s is not maintained any more, since another database may use its files. If none does: "
            "runnel lake set %s maintain_every '1 hour'",
            lake,
            lake,
        )
