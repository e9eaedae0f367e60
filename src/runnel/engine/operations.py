"""What a user asks for by name: create, alter, drop, refresh, resume, verify."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.catalog import store
from runnel.catalog.rows import StreamTable
from runnel.engine import definitions as defs
from runnel.engine.access import Access
from runnel.engine.arguments import FORGOTTEN, check_options
from runnel.engine.around import Around
from runnel.engine.capturing import ARGUMENT as CDC_MODE
from runnel.engine.capturing import AS_THE_ENGINE, refuse_obstacles, set_mode, wished_mode
from runnel.engine.creation import Creation
from runnel.engine.drift import notice
from runnel.engine.job import Job
from runnel.engine.redefine import Redefiner, as_user_error
from runnel.engine.refreshes import Refresher
from runnel.engine.registry import Registry, role_name
from runnel.errors import UserError
from runnel.model.names import Name
from runnel.ports.sink import Publication
from runnel.refresh.unit import RefreshFailed
from runnel.schedule.dag import descendants
from runnel.schedule.spec import parse_schedule
from runnel.sinks.registry import Sinks

CANCEL_SECONDS = 30.0
"""How long a call that cancels waits for the end of what it has cancelled."""


@dataclass
class Operations:
    """The verbs, over one connection."""

    conn: psycopg.Connection
    registry: Registry
    refresher: Refresher
    wake: Callable[[int], None]
    around: Around

    @property
    def redefiner(self) -> Redefiner:
        """What changes definitions."""
        return Redefiner(self.conn, self.registry, self.refresher, self.around)

    @property
    def creation(self) -> Creation:
        """What makes and removes stream tables."""
        return Creation(self.conn, self.registry, self.refresher, self.around, self.wake)

    @property
    def access(self) -> Access:
        """What callers may do."""
        return Access(self.conn, self.registry)

    @property
    def job(self) -> Job:
        """What this is done for."""
        return self.refresher.job

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Put this around what may be stopped at any point."""
        with self.job.interruptible(self.conn):
            yield

    @contextmanager
    def holding(
        self, text: str, caller: defs.Caller, tables: Callable[[StreamTable], set[int]]
    ) -> Iterator[StreamTable]:
        """A stream table by name, while nobody else works on these; looked up again when that is so."""
        found: list[StreamTable] = []

        def wanted() -> set[int]:
            found.append(self.access.known(text, caller))
            self.job.subject = f"{found[-1].pgt_schema}.{found[-1].pgt_name}"
            return tables(found[-1])

        with self.stoppable():
            waiting = self.around.reservations.holding(self.job, wanted)
            waiting.__enter__()
        try:
            yield found[-1]
        finally:
            waiting.__exit__(None, None, None)

    def with_readers(self, row: StreamTable) -> set[int]:
        """A stream table and all that read it: who changes its definition needs them all."""
        return {row.pgt_id, *descendants(self.registry.graph, row.pgt_id)}

    def with_sources(self, row: StreamTable) -> set[int]:
        """A stream table with all that it reads, and the readers of those that must be compiled anew."""
        found = set(self.refresher.closure(row.pgt_id))
        for pgt_id in list(found):
            if self.registry.rows[pgt_id].drift is not None:
                found |= self.with_readers(self.registry.rows[pgt_id])
        return found

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
        with self._named(name):
            self.creation.create(name, args, caller)

    @contextmanager
    def _named(self, name: Name) -> Iterator[None]:
        """Nobody else makes a stream table of that name meanwhile."""
        self.job.subject = str(name)
        with self.stoppable():
            waiting = self.around.reservations.holding(self.job, lambda: {*self.job.held, str(name)})
            waiting.__enter__()
        try:
            yield
        finally:
            waiting.__exit__(None, None, None)

    def create_if_not_exists(self, args: Mapping[str, Any], caller: defs.Caller) -> bool:
        """Create a stream table unless there is one of that name; whether it was created."""
        name = defs.resolve_name(self.conn, args["name"], caller)
        with self._named(name):
            self.registry.reload(self.conn)
            if self.registry.find(name) is not None:
                return False
            self.create(args, caller)
        return True

    def create_or_replace(self, args: Mapping[str, Any], caller: defs.Caller) -> None:
        """Create, or bring an existing stream table to this definition; nothing when it is the same."""
        name = defs.resolve_name(self.conn, args["name"], caller)
        with self._named(name):
            self._create_or_replace(name, args, caller)

    def _create_or_replace(self, name: Name, args: Mapping[str, Any], caller: defs.Caller) -> None:
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
        if (mode := wished_mode(args)) is not None and mode != (row.cdc_mode or AS_THE_ENGINE):
            changes[CDC_MODE] = mode
        if self.sinks.wish(self.conn, args, row.pgt_id, name, caller.role).changes:
            changes |= self.sinks.given(args)
        if changes:
            self.alter({"name": args["name"], **changes}, caller)

    # -- alter ---------------------------------------------------------------------------------------------

    def alter(self, args: Mapping[str, Any], caller: defs.Caller) -> None:
        """Change query, schedule, refresh mode, sink or status."""
        check_options(args)
        self.access.owned(args["name"], caller)
        with self.holding(args["name"], caller, self.with_readers):
            self._alter(self.access.owned(args["name"], caller), args, caller)

    def _alter(self, row: StreamTable, args: Mapping[str, Any], caller: defs.Caller) -> None:
        status = (args.get("status") or "").upper()
        if status not in ("", "ACTIVE", "SUSPENDED", "PAUSED"):
            raise UserError(f"invalid status {args['status']!r}", hint="Use 'ACTIVE' or 'SUSPENDED'.", sqlstate="22023")
        schedule = args.get("schedule")
        if schedule:
            parse_schedule(schedule)
        if args.get(FORGOTTEN):
            self._set_forgotten_policy(row, str(args[FORGOTTEN]).lower())
        if (mode := wished_mode(args)) is not None:
            refuse_obstacles(self.conn, self.registry.maintained(self.conn, row.pgt_id).sources, mode)
            with self.conn.transaction():
                set_mode(self.conn, row.pgt_id, mode)
            self.around.recapture()
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
        self._finish_change(row)

    def _finish_change(self, row: StreamTable) -> None:
        self.around.defining.changed()
        self.registry.reload(self.conn)
        self.redefiner.follow(self.job.held)
        self.around.defining.release_sources(self.conn)
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
        """Remove a stream table and whatever only it needed; work on it is stopped."""
        row = self.access.owned(args["name"], caller)
        self.around.stop_work_on(row.pgt_id, f"stream table {row.pgt_schema}.{row.pgt_name} is being dropped")
        with self.holding(args["name"], caller, self.with_readers) as found:
            self.creation.drop(found, cascade=bool(args.get("cascade")))

    # -- the rest ------------------------------------------------------------------------------------------

    def refresh(self, args: Mapping[str, Any], caller: defs.Caller) -> dict[str, Any]:
        """Bring a stream table, and what it reads, up to date now."""
        notice(self.conn)
        with self.holding(args["name"], caller, self.with_sources) as row:
            return self._refresh(self._followed(row), caller)

    def _followed(self, row: StreamTable) -> StreamTable:
        """A stream table that is held, when whatever changed under it has been followed."""
        self.redefiner.follow(self.job.held)
        return self.registry.rows[row.pgt_id]

    def settled(self, text: str, caller: defs.Caller) -> StreamTable:
        """A stream table by name, when what changed under it has been followed."""
        row = self.access.known(text, caller)
        if row.drift is None or row.status not in ("ACTIVE", "INITIALIZING"):
            return row
        with self.holding(text, caller, self.with_sources) as found:
            return self._followed(found)

    def _refresh(self, row: StreamTable, caller: defs.Caller) -> dict[str, Any]:
        self.access.refuse_suspended(row, caller)
        self.access.refuse_unseen_writes(row, self.refresher.closure(row.pgt_id), caller)
        idle = False
        try:
            outcomes = self.refresher.refresh_unit(self.refresher.closure(row.pgt_id), "MANUAL")
            idle = all(outcome.settled for outcome in outcomes)
        except RefreshFailed as failure:
            raise self.access.told(row, failure, caller) from failure.cause
        finally:
            if not idle:
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
        notice(self.conn)
        with self.holding(args["name"], caller, self.with_sources) as row:
            return self._verify(self._followed(row), caller)

    def _verify(self, row: StreamTable, caller: defs.Caller) -> dict[str, Any]:
        self.access.refuse_suspended(row, caller)
        self.access.refuse_unseen_writes(row, self.refresher.closure(row.pgt_id), caller)
        allowed = self.conn.execute(
            "SELECT has_table_privilege(%s, %s::oid, 'SELECT')", (caller.role, row.pgt_relid)
        ).fetchone()
        if not (allowed and allowed[0]):
            raise UserError(f"permission denied for table {row.pgt_schema}.{row.pgt_name}", sqlstate="42501")
        try:
            _, rows, count = self.refresher.verify(row.pgt_id, self.refresher.closure(row.pgt_id))
        except RefreshFailed as failure:
            raise self.access.told(row, failure, caller) from failure.cause
        finally:
            self.registry.reload(self.conn)
        missing = [text for text, weight in rows for _ in range(weight)]
        unexpected = [text for text, weight in rows for _ in range(-weight)]
        return {"ok": not rows, "missing": missing, "unexpected": unexpected, "counts": {"rows": count}}

    def cancel(self, args: Mapping[str, Any], caller: defs.Caller) -> bool:
        """Stop whatever is done to a stream table; whether there was anything. Returns when it has ended."""
        name = defs.resolve_name(self.conn, args["name"], caller)
        self.registry.reload(self.conn)
        row = self.registry.find(name)
        work = [job for job in self.around.jobs() if job is not self.job and job.what != "cancel"]
        if row is not None:
            row = self.access.owned(args["name"], caller)
            work = [job for job in work if row.pgt_id in job.held or job.subject == str(name)]
        else:
            # It is about to be created, by somebody who may be nobody else.
            work = [job for job in work if job.subject == str(name) and self.access.may_act_as(job.role, caller)]
            if not work:
                raise defs.not_found(name)
        for job in work:
            job.meant = row.pgt_id if row is not None else None
            job.stop(f'work on stream table "{name}" was cancelled by {caller.role}')
        self.around.stir()
        deadline = time.monotonic() + CANCEL_SECONDS
        while any(job in self.around.jobs() for job in work) and time.monotonic() < deadline:
            time.sleep(0.01)
        return bool(work)

    def resume(self, args: Mapping[str, Any], caller: defs.Caller) -> None:
        """Let a suspended stream table go on."""
        self.access.owned(args["name"], caller)
        with self.holding(args["name"], caller, self.with_readers) as row:
            self._resume(row)

    def _resume(self, row: StreamTable) -> None:
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
        self._finish_change(row)
