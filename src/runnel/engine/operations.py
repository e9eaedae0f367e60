"""What a user asks for by name: create, alter, drop, refresh, resume, verify."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.apply.ddl import look_away
from runnel.catalog import store
from runnel.catalog.lost import is_lost
from runnel.catalog.rows import StreamTable
from runnel.engine import definitions as defs
from runnel.engine.arguments import FORGOTTEN, check_options
from runnel.engine.drift import record_objects
from runnel.engine.masking import masked
from runnel.engine.records import dependencies, role_oid, stored_definition
from runnel.engine.redefine import Redefiner, as_user_error
from runnel.engine.refreshes import Refresher
from runnel.engine.registry import Registry, role_name
from runnel.errors import RunnelError, UserError
from runnel.model.names import Name
from runnel.ports.sink import Publication
from runnel.refresh.unit import RefreshFailed
from runnel.schedule.dag import descendants
from runnel.schedule.spec import parse_schedule
from runnel.sinks.registry import Sinks
from runnel.sql.describe import user_error


@dataclass
class Operations:
    """The verbs, over one connection."""

    conn: psycopg.Connection
    registry: Registry
    refresher: Refresher
    wake: Callable[[int], None]

    @property
    def redefiner(self) -> Redefiner:
        """What changes definitions."""
        return Redefiner(self.conn, self.registry, self.refresher)

    @property
    def sinks(self) -> Sinks:
        """Where stream tables are published."""
        return self.refresher.sinks

    # -- create --------------------------------------------------------------------------------------------

    def create(self, args: Mapping[str, Any], caller: defs.Caller) -> None:
        """Define and fill a stream table."""
        check_options(args)
        defs.require_creator(self.conn, caller)
        name = defs.resolve_name(self.conn, args["name"], caller)
        defs.refuse_existing(self.conn, name)
        definition = defs.define(
            self.conn,
            name,
            args["query"],
            args.get("schedule") or "calculated",
            args.get("refresh_mode") or "AUTO",
            caller,
            self.registry.kinds,
        )
        wish = self.sinks.wish(self.conn, args, None, name, caller.role)
        defs.install_capture(self.conn, self.registry.kinds, definition.compiled, caller)
        pgt_id: int | None = None
        try:
            with self.sinks.taking_part(self.conn) as publication, self.conn.transaction():
                relid = defs.create_result(self.conn, definition)
                pgt_id = store.insert_stream_table(
                    self.conn,
                    relid=relid,
                    schema=name.schema,
                    name=name.name,
                    owner=role_oid(self.conn, caller.role),
                    definition=stored_definition(definition),
                )
                store.replace_dependencies(self.conn, pgt_id, dependencies(pgt_id, definition))
                record_objects(self.conn, pgt_id, definition.compiled.description)
                if args.get(FORGOTTEN):
                    store.set_forgotten_policy(self.conn, pgt_id, str(args[FORGOTTEN]).lower())
                publication.put(pgt_id, wish)
                publication.before_commit()
            self.registry.reload(self.conn)
            if args.get("initialize", True) is not False:
                self.refresher.refresh_unit([pgt_id], "INITIAL")
        except BaseException as error:
            self._undo_create(pgt_id, name)
            if isinstance(error, RefreshFailed):
                raise as_user_error(name, error.cause) from error.cause
            raise
        self.registry.reload(self.conn)
        self.wake(pgt_id)

    def _undo_create(self, pgt_id: int | None, name: Name) -> None:
        with self.sinks.taking_part(self.conn) as publication, self.conn.transaction():
            if pgt_id is not None:
                self._remove(publication, pgt_id, name, cascade=False)
            defs.release_sources(self.conn)
            publication.before_commit()
        self.registry.reload(self.conn)

    def create_if_not_exists(self, args: Mapping[str, Any], caller: defs.Caller) -> bool:
        """Create a stream table unless there is one of that name; whether it was created."""
        name = defs.resolve_name(self.conn, args["name"], caller)
        self.registry.reload(self.conn)
        if self.registry.find(name) is not None:
            return False
        self.create(args, caller)
        return True

    def create_or_replace(self, args: Mapping[str, Any], caller: defs.Caller) -> None:
        """Create, or bring an existing stream table to this definition; nothing when it is the same."""
        name = defs.resolve_name(self.conn, args["name"], caller)
        self.registry.reload(self.conn)
        row = self.registry.find(name)
        if row is None:
            self.create(args, caller)
            return
        check_options(args)
        definition = defs.define(
            self.conn,
            name,
            args["query"],
            args.get("schedule") or row.schedule,
            args.get("refresh_mode") or row.refresh_mode,
            caller,
            self.registry.kinds,
        )
        changes: dict[str, Any] = {}
        if definition.compiled.description.canonical != row.defining_query or row.status == "ERROR" or row.drift:
            changes["query"] = args["query"]
        if definition.schedule != row.schedule:
            changes["schedule"] = definition.schedule
        if definition.mode != row.refresh_mode:
            changes["refresh_mode"] = definition.mode
        if str(args.get(FORGOTTEN) or row.forgotten).lower() != row.forgotten:
            changes[FORGOTTEN] = args[FORGOTTEN]
        if self.sinks.wish(self.conn, args, row.pgt_id, name, caller.role).changes:
            changes |= self.sinks.given(args)
        if changes:
            self.alter({"name": args["name"], **changes}, caller)

    # -- alter ---------------------------------------------------------------------------------------------

    def alter(self, args: Mapping[str, Any], caller: defs.Caller) -> None:
        """Change query, schedule, refresh mode, sink or status."""
        check_options(args)
        row = self._owned(args["name"], caller)
        status = (args.get("status") or "").upper()
        if status not in ("", "ACTIVE", "SUSPENDED", "PAUSED"):
            raise UserError(f"invalid status {args['status']!r}", hint="Use 'ACTIVE' or 'SUSPENDED'.", sqlstate="22023")
        schedule = args.get("schedule")
        if schedule:
            parse_schedule(schedule)
        if args.get(FORGOTTEN):
            self._set_forgotten_policy(row, str(args[FORGOTTEN]).lower())
        if args.get("query") or args.get("refresh_mode"):
            self._redefine(row, args, caller)
        elif self.sinks.given(args):
            self._change_sink(row, args, caller)
        if schedule and not (args.get("query") or args.get("refresh_mode")):
            with self.conn.transaction():
                self.conn.execute(
                    "UPDATE pgtrickle.pgt_stream_tables SET schedule = %s, updated_at = now() WHERE pgt_id = %s",
                    (schedule.strip(), row.pgt_id),
                )
        if status:
            with self.conn.transaction():
                store.set_status(self.conn, row.pgt_id, "ACTIVE" if status == "ACTIVE" else "SUSPENDED")
        self.registry.reload(self.conn)
        self.redefiner.follow()
        self.wake(row.pgt_id)

    def _set_forgotten_policy(self, row: StreamTable, policy: str) -> None:
        with self.conn.transaction():
            store.set_forgotten_policy(self.conn, row.pgt_id, policy)
            if row.status == "ERROR" and "has expired" in (row.last_error or ""):
                # What the error asked for has been said.
                store.set_status(self.conn, row.pgt_id, "ACTIVE")

    def _redefine(self, row: StreamTable, args: Mapping[str, Any], caller: defs.Caller) -> None:
        name = Name(row.pgt_schema, row.pgt_name)
        speaker = caller.settings if args.get("query") else row.settings
        owner = defs.Caller(role_name(self.conn, row.owner), speaker, caller.pid)
        definition = defs.define(
            self.conn,
            name,
            args.get("query") or row.original_query,
            args.get("schedule") or row.schedule,
            args.get("refresh_mode") or row.refresh_mode,
            owner,
            self.registry.kinds,
        )
        wish = self.sinks.wish(self.conn, args, row.pgt_id, name, caller.role)

        def change_sink(publication: Publication) -> None:
            if wish.changes:
                publication.put(row.pgt_id, wish)

        self.redefiner.put(row, definition, owner, change_sink)

    def _change_sink(self, row: StreamTable, args: Mapping[str, Any], caller: defs.Caller) -> None:
        """Publish elsewhere, otherwise or no more; what is to be published is, before this returns."""
        name = Name(row.pgt_schema, row.pgt_name)
        wish = self.sinks.wish(self.conn, args, row.pgt_id, name, caller.role)
        if not wish.changes:
            return
        if row.status != "ACTIVE" or not row.is_populated or not wish.publishes:
            with self.sinks.taking_part(self.conn) as publication, self.conn.transaction():
                publication.put(row.pgt_id, wish)
                publication.before_commit()
            return
        try:
            self.refresher.redefine(row.pgt_id, lambda publication: publication.put(row.pgt_id, wish))
        except RefreshFailed as failure:
            raise as_user_error(name, failure.cause) from failure.cause

    # -- drop ----------------------------------------------------------------------------------------------

    def drop(self, args: Mapping[str, Any], caller: defs.Caller) -> None:
        """Remove a stream table and whatever only it needed."""
        row = self._owned(args["name"], caller)
        readers = [r for r in descendants(self.registry.graph, row.pgt_id)]
        cascade = bool(args.get("cascade"))
        if readers and not cascade:
            first = self.registry.rows[readers[0]]
            reader = f"{first.pgt_schema}.{first.pgt_name}"
            raise UserError(
                f"stream table {row.pgt_schema}.{row.pgt_name} is read by stream table {reader}",
                hint="Drop the reader first, or pass cascade => true.",
                sqlstate="2BP01",
            )
        try:
            with self.sinks.taking_part(self.conn) as publication, self.conn.transaction():
                self.conn.execute(f"SET LOCAL lock_timeout = '{defs.LOCK_TIMEOUT}'".encode())
                for pgt_id in [*reversed(readers), row.pgt_id]:
                    victim = self.registry.rows[pgt_id]
                    self._remove(publication, pgt_id, Name(victim.pgt_schema, victim.pgt_name), cascade=cascade)
                defs.release_sources(self.conn)
                publication.before_commit()
        except psycopg.Error as error:
            if is_lost(self.conn):
                raise
            raise user_error(error) from None
        self.registry.reload(self.conn)
        self.refresher.drop_leftovers()

    def _remove(self, publication: Publication, pgt_id: int, name: Name, *, cascade: bool) -> None:
        look_away(self.conn)
        publication.drop(pgt_id, f"stream table {name.name} was dropped")
        store.delete_stream_table(self.conn, pgt_id)
        defs.drop_state(self.conn, pgt_id)
        self.conn.execute(f"DROP TABLE IF EXISTS {name.sql()}{' CASCADE' if cascade else ''}".encode())
        self.registry.forget(pgt_id)

    # -- the rest ------------------------------------------------------------------------------------------

    def refresh(self, args: Mapping[str, Any], caller: defs.Caller) -> dict[str, Any]:
        """Bring a stream table, and what it reads, up to date now."""
        self.redefiner.follow(look=True)
        row = self.known(args["name"], caller)
        self._refuse_suspended(row, caller)
        self._refuse_unseen_writes(row, caller)
        try:
            outcomes = self.refresher.refresh_unit(self.refresher.closure(row.pgt_id), "MANUAL")
        except RefreshFailed as failure:
            raise self._told(row, failure, caller) from failure.cause
        finally:
            self.registry.reload(self.conn)
        own = next(o for o in outcomes if o.table.id == row.pgt_id)
        return {
            "action": own.action,
            "changed": own.changed,
            "rows_inserted": own.rows_inserted,
            "rows_deleted": own.rows_deleted,
            "timings": own.timings,
        }

    def verify(self, args: Mapping[str, Any], caller: defs.Caller) -> dict[str, Any]:
        """Refresh to one snapshot and compare with the query in it."""
        self.redefiner.follow(look=True)
        row = self.known(args["name"], caller)
        self._refuse_suspended(row, caller)
        self._refuse_unseen_writes(row, caller)
        allowed = self.conn.execute(
            "SELECT has_table_privilege(%s, %s::oid, 'SELECT')", (caller.role, row.pgt_relid)
        ).fetchone()
        if not (allowed and allowed[0]):
            raise UserError(f"permission denied for table {row.pgt_schema}.{row.pgt_name}", sqlstate="42501")
        try:
            _, rows, count = self.refresher.verify(row.pgt_id, self.refresher.closure(row.pgt_id))
        except RefreshFailed as failure:
            raise self._told(row, failure, caller) from failure.cause
        finally:
            self.registry.reload(self.conn)
        missing = [text for text, weight in rows for _ in range(weight)]
        unexpected = [text for text, weight in rows for _ in range(-weight)]
        return {"ok": not rows, "missing": missing, "unexpected": unexpected, "counts": {"rows": count}}

    def resume(self, args: Mapping[str, Any], caller: defs.Caller) -> None:
        """Let a suspended stream table go on."""
        row = self._owned(args["name"], caller)
        if row.status not in ("SUSPENDED", "ERROR"):
            raise UserError(
                f"stream table {row.pgt_schema}.{row.pgt_name} is not suspended (it is {row.status})",
                sqlstate="55000",
            )
        if row.status == "ERROR":
            # Whatever was wrong with its sources: it goes on if the query is good again, and else says why not.
            self.redefiner.recompile(row)
        else:
            with self.conn.transaction():
                store.set_status(self.conn, row.pgt_id, "ACTIVE")
        self.registry.forget(row.pgt_id)
        self.registry.reload(self.conn)
        self.redefiner.follow()
        self.wake(row.pgt_id)

    # -- names and rights ----------------------------------------------------------------------------------

    def known(self, text: str, caller: defs.Caller) -> StreamTable:
        """A stream table by the name its caller gives it."""
        self.registry.reload(self.conn)
        name = defs.resolve_name(self.conn, text, caller)
        row = self.registry.find(name)
        if row is None and "." not in text:
            same = [r for r in self.registry.rows.values() if r.pgt_name == name.name]
            row = same[0] if len(same) == 1 else None
        if row is None:
            raise defs.not_found(name)
        return row

    def _owned(self, text: str, caller: defs.Caller) -> StreamTable:
        row = self.known(text, caller)
        if not self._acts_as_owner(row, caller):
            raise UserError(f"must be owner of stream table {row.pgt_schema}.{row.pgt_name}", sqlstate="42501")
        return row

    def _refuse_unseen_writes(self, row: StreamTable, caller: defs.Caller) -> None:
        sources = {oid for member in self.refresher.closure(row.pgt_id) for oid in self.registry.relations_read[member]}
        defs.refuse_unseen_writes(self.conn, Name(row.pgt_schema, row.pgt_name), sorted(sources), caller)

    def _acts_as_owner(self, row: StreamTable, caller: defs.Caller) -> bool:
        allowed = self.conn.execute("SELECT pg_has_role(%s, %s::oid, 'MEMBER')", (caller.role, row.owner)).fetchone()
        return bool(allowed and allowed[0])

    def last_error(self, row: StreamTable, caller: defs.Caller) -> str | None:
        """The last error, as far as the caller may read it."""
        return store.whole_error(self.conn, row.pgt_id) if self._acts_as_owner(row, caller) else row.last_error

    def _told(self, row: StreamTable, failure: RefreshFailed, caller: defs.Caller) -> RunnelError:
        """Why a refresh failed, as far as the caller may know: it may be a table of others that this one reads."""
        failed = self.registry.rows.get(failure.table, row)
        cause = failure.cause if self._acts_as_owner(failed, caller) else masked(failure.cause)
        return as_user_error(Name(row.pgt_schema, row.pgt_name), cause)

    def _refuse_suspended(self, row: StreamTable, caller: defs.Caller) -> None:
        name = f"{row.pgt_schema}.{row.pgt_name}"
        if row.status == "SUSPENDED":
            raise UserError(
                f"stream table {name} is suspended",
                hint=f"Run pgtrickle.resume_stream_table('{name}') first.",
                detail=self.last_error(row, caller),
                sqlstate="55000",
            )
        if row.status == "ERROR":
            raise UserError(
                f"stream table {name} is in ERROR: {self.last_error(row, caller)}",
                hint="Undo what broke it and run pgtrickle.resume_stream_table, change its query with "
                "pgtrickle.alter_stream_table, or drop it.",
                sqlstate="55000",
            )
