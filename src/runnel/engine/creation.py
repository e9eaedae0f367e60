"""How a stream table comes into being and goes: its table, its rows in the catalog, capture, state and publications."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.apply.ddl import look_away
from runnel.catalog import store
from runnel.catalog.lost import is_lost
from runnel.catalog.rows import StreamTable
from runnel.engine import definitions as defs
from runnel.engine.arguments import FORGOTTEN
from runnel.engine.around import Around
from runnel.engine.capturing import refuse_obstacles, set_mode, wished_mode
from runnel.engine.drift import record_objects
from runnel.engine.job import Job
from runnel.engine.records import dependencies, role_oid, stored_definition
from runnel.engine.redefine import as_user_error
from runnel.engine.refreshes import Refresher
from runnel.engine.registry import Registry
from runnel.errors import UserError
from runnel.model.names import Name
from runnel.ports.sink import Publication, Wish
from runnel.refresh.unit import RefreshFailed
from runnel.schedule.dag import descendants
from runnel.sql.describe import user_error


@dataclass
class Creation:
    """Makes and removes stream tables; whoever calls it holds them, or their names."""

    conn: psycopg.Connection
    registry: Registry
    refresher: Refresher
    around: Around
    wake: Callable[[int], None]

    @property
    def job(self) -> Job:
        """What this is done for."""
        return self.refresher.job

    def create(self, name: Name, args: Mapping[str, Any], caller: defs.Caller) -> None:
        """Define and fill a stream table, or leave nothing behind."""
        defs.refuse_existing(self.conn, name)
        with self.job.interruptible(self.conn):
            definition = defs.define(
                self.conn,
                name,
                args["query"],
                args.get("schedule") or "calculated",
                args.get("refresh_mode") or "AUTO",
                caller,
                self.registry.kinds,
            )
            refuse_obstacles(self.conn, definition.compiled.used, wished_mode(args))
            wish = self.refresher.sinks.wish(self.conn, args, None, name, caller.role)
        made: list[int] = []
        upstream = {r.origin.upstream for r in definition.compiled.relations if r.origin.upstream is not None}
        try:
            with self.job.interruptible(self.conn), self.around.reservations.logging(self.job, upstream):
                with self.around.defining.alone(self.job):
                    defs.install_capture(self.conn, self.registry.kinds, definition.compiled, caller)
                    self._record(definition, wish, args, made)
                self.registry.reload(self.conn)
                if args.get("initialize", True) is not False:
                    self.refresher.refresh_unit(made, "INITIAL")
        except BaseException as error:
            if not is_lost(self.conn):
                self._undo_create(made, name)
            if isinstance(error, RefreshFailed):
                raise as_user_error(name, error.cause) from error.cause
            raise
        self.registry.reload(self.conn)
        self.wake(made[0])
        if wished_mode(args) is not None:
            self.around.recapture()

    def _record(self, definition: defs.Definition, wish: Wish, args: Mapping[str, Any], made: list[int]) -> None:
        """The stream table, empty, and its rows in the catalog; its number goes to `made`, and nobody else has it."""
        name = definition.name
        with self.refresher.sinks.taking_part(self.conn) as publication, self.conn.transaction():
            relid = defs.create_result(self.conn, definition)
            pgt_id = store.insert_stream_table(
                self.conn,
                relid=relid,
                schema=name.schema,
                name=name.name,
                owner=role_oid(self.conn, definition.owner),
                definition=stored_definition(definition),
            )
            made.append(pgt_id)
            self.around.reservations.add(self.job, pgt_id)
            store.replace_dependencies(self.conn, pgt_id, dependencies(pgt_id, definition))
            record_objects(self.conn, pgt_id, definition.compiled.description)
            if args.get(FORGOTTEN):
                store.set_forgotten_policy(self.conn, pgt_id, str(args[FORGOTTEN]).lower())
            if (mode := wished_mode(args)) is not None:
                set_mode(self.conn, pgt_id, mode)
            publication.put(pgt_id, wish)
            publication.before_commit()

    def _undo_create(self, made: Sequence[int], name: Name) -> None:
        with (
            self.around.defining.alone(self.job),
            self.refresher.sinks.taking_part(self.conn) as publication,
            self.conn.transaction(),
        ):
            for pgt_id in made:
                self._remove(publication, pgt_id, name, cascade=False)
            publication.before_commit()
        self.around.defining.release_sources(self.conn)
        self.registry.reload(self.conn)
        self.refresher.drop_leftovers()

    def drop(self, row: StreamTable, *, cascade: bool) -> None:
        """Remove a stream table, and with `cascade` all that read it."""
        readers = list(descendants(self.registry.graph, row.pgt_id))
        if readers and not cascade:
            first = self.registry.rows[readers[0]]
            reader = f"{first.pgt_schema}.{first.pgt_name}"
            raise UserError(
                f"stream table {row.pgt_schema}.{row.pgt_name} is read by stream table {reader}",
                hint="Drop the reader first, or pass cascade => true.",
                sqlstate="2BP01",
            )
        try:
            with (
                self.around.defining.alone(self.job),
                self.refresher.sinks.taking_part(self.conn) as publication,
                self.conn.transaction(),
            ):
                self.conn.execute(f"SET LOCAL lock_timeout = '{defs.LOCK_TIMEOUT}'".encode())
                for pgt_id in [*reversed(readers), row.pgt_id]:
                    victim = self.registry.rows[pgt_id]
                    self._remove(publication, pgt_id, Name(victim.pgt_schema, victim.pgt_name), cascade=cascade)
                publication.before_commit()
        except psycopg.Error as error:
            if is_lost(self.conn):
                raise
            raise user_error(error) from None
        self.around.defining.release_sources(self.conn)
        self.registry.reload(self.conn)
        self.refresher.drop_leftovers()
        self.around.tidy_others(None)

    def _remove(self, publication: Publication, pgt_id: int, name: Name, *, cascade: bool) -> None:
        look_away(self.conn)
        publication.drop(pgt_id, f"stream table {name.name} was dropped")
        store.delete_stream_table(self.conn, pgt_id)
        defs.drop_state(self.conn, pgt_id)
        self.conn.execute(f"DROP TABLE IF EXISTS {name.sql()}{' CASCADE' if cascade else ''}".encode())
        self.registry.forget(pgt_id)
