"""Put a new definition in place of a stream table's old one, and follow what changed under definitions.

A definition that is compiled anew because something under it changed starts from PostgreSQL's print of it: the same
tables, the same columns, whatever was added to them or stands earlier on the search path now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from runnel.apply.log import create_log, drop_log
from runnel.catalog import store
from runnel.catalog.lost import is_lost
from runnel.catalog.rows import StreamTable
from runnel.engine import definitions as defs
from runnel.engine.around import Around
from runnel.engine.drift import record_objects, renamed_sources
from runnel.engine.job import Subject
from runnel.engine.records import dependencies, stored_definition
from runnel.engine.refreshes import Refresher, describe_failure
from runnel.engine.registry import Registry, role_name
from runnel.engine.reshape import reshape_result
from runnel.errors import Cancelled, RunnelError, TransientError, UserError
from runnel.model.names import Name
from runnel.ports.sink import Publication
from runnel.refresh.unit import RefreshFailed
from runnel.schedule.dag import ancestors, descendants, ordered
from runnel.sql import registry
from runnel.sql.describe import relation_columns, user_error
from runnel.sql.rename import rename_tables

log = logging.getLogger(__name__)

_IN_THE_WAY = frozenset({"40001", "40P01", "55P03"})
"""SQLSTATEs of a concurrent update, a deadlock and a lock that was not to be had: they say nothing about a table."""

READERS_FOLLOW = """
UPDATE pgtrickle.pgt_dependencies SET source_relid = %(relid)s WHERE source_pgt_id = %(pgt_id)s
"""
LOCKABLE = """
SELECT pgtrickle._relation_name(c.oid) FROM pg_class c
WHERE c.oid = ANY(%s::oid[]) AND c.relkind IN ('r', 'p') AND has_table_privilege(c.oid, 'SELECT') ORDER BY c.oid
"""
READERS_DRIFT = """
UPDATE pgtrickle.pgt_stream_tables SET drift = %(news)s, needs_reinit = true
WHERE status <> 'ERROR' AND pgt_id IN (
    SELECT d.pgt_id FROM pgtrickle.pgt_dependencies d WHERE d.source_pgt_id = %(pgt_id)s)
"""


@dataclass
class Redefiner:
    """Redefines stream tables, over one connection."""

    conn: psycopg.Connection[Any]
    registry: Registry
    refresher: Refresher
    around: Around

    def put(
        self,
        row: StreamTable,
        definition: defs.Definition,
        owner: defs.Caller,
        change_sink: Callable[[Publication], None] | None = None,
    ) -> None:
        """Replace a definition and rebuild the table, in one transaction."""
        self._refuse_cycle(row.pgt_id, definition)
        job = self.refresher.job
        upstream = {r.origin.upstream for r in definition.compiled.relations if r.origin.upstream is not None}
        with self.around.defining.under_way():
            with self.around.defining.alone(job):
                defs.install_capture(self.conn, self.registry.kinds, definition.compiled, owner)
            with self.around.reservations.logging(job, upstream):
                self._put(row, definition, change_sink)

    def _put(
        self,
        row: StreamTable,
        definition: defs.Definition,
        change_sink: Callable[[Publication], None] | None,
    ) -> None:
        def change(publication: Publication) -> None:
            self._lock_sources(definition)
            if change_sink is not None:
                change_sink(publication)
            shape = reshape_result(self.conn, row.pgt_relid, definition)
            stored = stored_definition(definition)
            store.update_definition(self.conn, row.pgt_id, stored, relid=shape.relid, reinit=True)
            store.replace_dependencies(self.conn, row.pgt_id, dependencies(row.pgt_id, definition))
            record_objects(self.conn, row.pgt_id, definition.compiled.description)
            store.set_status(self.conn, row.pgt_id, "ACTIVE")
            defs.drop_state(self.conn, row.pgt_id)
            # Readers of the change log cannot follow a table whose meaning changed: they are rebuilt too.
            for reader in descendants(self.registry.graph, row.pgt_id):
                store.set_needs_reinit(self.conn, reader, True)
            if shape.changed:
                self._tell_readers(row.pgt_id, shape.relid, definition)

        try:
            self.refresher.redefine(row.pgt_id, change)
        except RefreshFailed as failure:
            raise as_user_error(definition.name, failure.cause) from failure.cause
        finally:
            self.registry.forget(row.pgt_id)
            self.registry.reload(self.conn)
            self.refresher.drop_leftovers(row.pgt_id)
            self.around.tidy_others(row.pgt_id)

    def _lock_sources(self, definition: defs.Definition) -> None:
        """The tables before the catalog's rows, as DDL does: it holds the table when it marks who reads it."""
        oids = [relation.oid for relation in definition.compiled.relations]
        for (name,) in self.conn.execute(LOCKABLE, (oids,)).fetchall():
            self.conn.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE".encode())

    def _tell_readers(self, pgt_id: int, relid: int, definition: defs.Definition) -> None:
        """The change log gets the new columns, and whoever reads it is compiled anew."""
        readers = [i for i, reads in self.registry.graph.items() if pgt_id in reads]
        if not readers:
            return
        drop_log(self.conn, pgt_id)
        for reader in readers:
            role = role_name(self.conn, self.registry.rows[reader].owner)
            create_log(self.conn, pgt_id, definition.compiled.description.columns, role)
        self.conn.execute(READERS_FOLLOW, {"relid": relid, "pgt_id": pgt_id})
        news = f"stream table {definition.name} was altered"
        self.conn.execute(READERS_DRIFT, {"news": news, "pgt_id": pgt_id})

    def recompile(self, row: StreamTable) -> None:
        """Compile a definition anew, under the names that its sources have now, and rebuild the table."""
        owner = defs.Caller(role_name(self.conn, row.owner), row.settings)
        self.put(row, self._defined_anew(row, owner), owner)

    def _defined_anew(self, row: StreamTable, owner: defs.Caller) -> defs.Definition:
        names = renamed_sources(self.conn, row.pgt_id)
        try:
            found = self._define(row, rename_tables(row.defining_query, names), owner)
        except UserError as error:
            if names:
                raise
            # PostgreSQL's print fixes the types of literals; the user's text leaves them open.
            found = self._define(row, row.original_query, owner)
            kept = [c.name for c in relation_columns(self.conn, row.pgt_relid)]
            if [c.name for c in found.compiled.description.columns] != kept:
                raise error from None
        text = found.compiled.description.canonical if names else row.original_query
        return replace(found, query=text)

    def _define(self, row: StreamTable, query: str, owner: defs.Caller) -> defs.Definition:
        return defs.define(
            self.conn, Name(row.pgt_schema, row.pgt_name), query, row.schedule, row.refresh_mode, owner,
            self.registry.kinds,
        )  # fmt: skip

    def follow(self, tables: Collection[Subject]) -> None:
        """Compile those anew that rest on something that changed, upstream first; what no longer works goes to ERROR.

        The caller holds them, and whatever reads them.
        """
        for pgt_id in [i for i in ordered(self.registry.graph) if i in tables]:
            row = self.registry.rows.get(pgt_id)
            if row is None or row.drift is None or row.status not in ("ACTIVE", "INITIALIZING"):
                continue
            names = renamed_sources(self.conn, pgt_id)
            try:
                self.recompile(row)
            except Cancelled:
                raise
            except TransientError as error:
                log.info("%s.%s is compiled anew later: %s", row.pgt_schema, row.pgt_name, error)
            except (RunnelError, psycopg.Error) as error:
                if is_lost(self.conn):
                    raise
                if renamed_sources(self.conn, pgt_id) != names or error.sqlstate in _IN_THE_WAY:
                    continue  # renamed again meanwhile, or others were at it: the next turn finds how it is then
                message = error.message if isinstance(error, RunnelError) else user_error(error).message
                store.set_status(self.conn, pgt_id, "ERROR", f"{row.drift}: {message}")
                self.registry.reload(self.conn)

    def _refuse_cycle(self, pgt_id: int, definition: defs.Definition) -> None:
        origins = [relation.origin for relation in definition.compiled.relations]
        upstream = {origin.upstream for origin in origins if origin.upstream is not None}
        through = (self.refresher.sinks.upstream(self.conn, origin) for origin in origins)
        upstream |= {i for i in through if i is not None}
        for up in upstream:
            if up == pgt_id or pgt_id in ancestors(self.registry.graph, up):
                raise UserError(
                    f"stream table {definition.name} would depend on itself",
                    hint=registry.CIRCLE.way_out,
                    sqlstate="42P17",
                )


def as_user_error(name: Name, cause: Exception) -> RunnelError:
    """Why a refresh failed, for the one who asked for it."""
    if isinstance(cause, TransientError):
        return cause
    if isinstance(cause, RunnelError):
        text = cause.message
        if not text.startswith("stream table"):
            text = f"stream table {name}: {text}"
        return UserError(text, hint=cause.hint, detail=cause.detail, sqlstate=cause.sqlstate)
    state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    return UserError(f"stream table {name}: {describe_failure(cause)}", sqlstate=state)
