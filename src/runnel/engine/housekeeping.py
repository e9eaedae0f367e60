"""What an engine does every few seconds: prune what every consumer has passed, and look for sources that drifted."""

from __future__ import annotations

import logging
from typing import Any

import psycopg

from runnel.catalog import store
from runnel.engine.definitions import release_sources
from runnel.engine.registry import Registry

log = logging.getLogger(__name__)

HISTORY_KEPT = 1000


def prune(conn: psycopg.Connection[Any], registry: Registry) -> None:
    """Change buffers, change logs and history, as far as nobody needs them any more."""
    conn.execute("SELECT pgtrickle._capture_cleanup()")
    release_sources(conn)
    for pgt_id in {u for reads in registry.graph.values() for u in reads}:
        if pgt_id in registry.rows:
            conn.execute(
                f"DELETE FROM pgtrickle_changes.log_{pgt_id} WHERE pgt_version <= (SELECT min(coalesce("
                f"(s.frontier->'stream_tables'->>%s)::int8, 0)) FROM pgtrickle.pgt_stream_tables s "
                f"JOIN pgtrickle.pgt_dependencies d USING (pgt_id) WHERE d.source_pgt_id = %s)".encode(),
                (str(pgt_id), pgt_id),
            )
    store.prune_history(conn, HISTORY_KEPT)


def repair_capture(conn: psycopg.Connection[Any], registry: Registry) -> set[int]:
    """On servers without event triggers: notice what DDL did to sources, and repair capture. The sources repaired."""
    repaired = set()
    for (oid,) in conn.execute("SELECT source_relid FROM pgtrickle._capture_drift()").fetchall():
        try:
            conn.execute("SELECT pgtrickle._capture_install(%s, '{}')", (oid,))
        except psycopg.OperationalError:
            raise
        except psycopg.Error:
            # A source that is gone; its readers are put in ERROR below.
            log.info("capture of table %s cannot be repaired", oid, exc_info=True)
            continue
        # What happened in between was not captured: a partition with rows may have come or gone.
        for reader in registry.readers(oid):
            store.set_needs_reinit(conn, reader, True)
        repaired.add(int(oid))
    marked = conn.execute("SELECT pgtrickle._mark_broken()").fetchone()
    if marked and marked[0]:
        registry.reload(conn)
    return repaired
