"""What an engine does every few seconds: prune what every consumer has passed, and look for sources that drifted.

Each step has a fence: what fails is said once, tried again at the next turn, and keeps nothing else from being done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.catalog import store
from runnel.catalog.lost import first_line, is_lost
from runnel.catalog.origin import note_roles
from runnel.catalog.requests import prune_requests
from runnel.engine.around import Around
from runnel.engine.registry import Registry

log = logging.getLogger(__name__)

HISTORY_KEPT = 1000
PRUNE_LOG = """
DELETE FROM pgtrickle_changes.{log} WHERE pgt_version <= (
    SELECT min(coalesce(pgtrickle._version(s.frontier #>> ARRAY['stream_tables', %(upstream)s]), 0))
    FROM pgtrickle.pgt_stream_tables s JOIN pgtrickle.pgt_dependencies d USING (pgt_id)
    WHERE d.source_pgt_id = %(upstream)s::int8)
"""


@dataclass
class Housekeeping:
    """The steps, and what went wrong in each the last time."""

    _troubles: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, *connections: psycopg.Connection[Any]) -> Iterator[None]:
        """Do one thing; only the loss of a connection gets out."""
        try:
            yield
        except Exception as error:
            if is_lost(*connections):
                raise
            text = first_line(error)
            if self._troubles.get(name) != text:
                log.warning("housekeeping (%s) will be tried again: %s", name, text, exc_info=error)
            self._troubles[name] = text
        else:
            self._troubles.pop(name, None)

    def prune(self, conn: psycopg.Connection[Any], registry: Registry, around: Around) -> None:
        """Change buffers, change logs and history, as far as nobody needs them any more."""
        with self.step("change buffers", conn):
            conn.execute("SELECT pgtrickle._capture_cleanup()")
        with self.step("sources", conn):
            around.defining.release_sources(conn)
        for pgt_id in {u for reads in registry.graph.values() for u in reads}:
            # Who is about to read it may stand at an older version than all who do.
            if pgt_id in registry.rows and not around.reservations.must_log(pgt_id):
                with self.step(f"change log {pgt_id}", conn):
                    conn.execute(PRUNE_LOG.format(log=f"log_{pgt_id}").encode(), {"upstream": str(pgt_id)})
        with self.step("history", conn):
            store.prune_history(conn, HISTORY_KEPT)
        with self.step("requests", conn):
            prune_requests(conn)
        with self.step("roles", conn):
            note_roles(conn)


def repair_capture(conn: psycopg.Connection[Any], registry: Registry) -> set[int]:
    """On servers without event triggers: notice what DDL did to sources, and repair capture. The sources repaired."""
    repaired = set()
    for (oid,) in conn.execute("SELECT source_relid FROM pgtrickle._capture_drift()").fetchall():
        try:
            conn.execute("SELECT pgtrickle._capture_install(%s, '{}')", (oid,))
        except psycopg.Error:
            if is_lost(conn):
                raise
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
