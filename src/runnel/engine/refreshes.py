"""Run refreshes: one transaction per unit, history, failures and back-off."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg

from runnel.apply.output import OutputDrift
from runnel.catalog import store
from runnel.catalog.lost import ended, is_lost
from runnel.catalog.masking import condition, public_message
from runnel.catalog.rows import Refresh, StreamTable
from runnel.dsn import without_secrets
from runnel.engine.advice import missing_grant
from runnel.engine.drift import notice
from runnel.engine.job import Job
from runnel.engine.registry import Registry, position, ready
from runnel.errors import Cancelled, Outdated, SchemaDriftError, TransientError
from runnel.explain.evaluators import StageForecast
from runnel.model.about import about
from runnel.ports.sink import Conflict, Publication, Result
from runnel.ports.source import Pending
from runnel.refresh.forecast import forecast
from runnel.refresh.maintained import Maintained, Outcome
from runnel.refresh.table import TableRefresh
from runnel.refresh.unit import Member, Order, RefreshFailed, Workplace, refresh_unit
from runnel.refresh.verify import count, differences
from runnel.schedule.choose import MIN_CHANGES, full_is_cheaper
from runnel.schedule.dag import descendants, ordered
from runnel.sinks.registry import Sinks

log = logging.getLogger(__name__)

SUSPEND_AFTER = 3
NEVER = 2**31 - 1
FIRST_BACKOFF = 2.0
LONGEST_BACKOFF = 300.0
LONGEST_WAIT = 30.0
"""Between two tries while nothing is wrong but the world around: a store that is down, another server that is busy."""
CONFLICTS = 10
"""Tries in a row against other writers."""
UNKNOWN = -2
"""A count of changes that no engine has: what a registry knows is not what the catalog says."""
SNAPSHOTS = 5
"""Tries with another snapshot."""
OVERTAKEN = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""Somebody else has changed a row of the catalog meanwhile, or waited for us as we for them."""

RECENT = """
SELECT action, coalesce(changes_read, 0), (extract(epoch FROM end_time - start_time) * 1000)::float8
FROM pgtrickle.pgt_refresh_history WHERE pgt_id = %s AND status = 'COMPLETED' ORDER BY refresh_id DESC LIMIT 20
"""
CHECK_SOURCES = "SELECT pgt_id, problem FROM pgtrickle._check_sources_of(%s) LIMIT 1"


class Drifted(Cancelled):
    """What a definition rests on has changed: it is compiled anew before the table is refreshed."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a refresh would find and do now."""

    waiting: Mapping[str, Pending]
    """By the name of each relation."""
    stages: Sequence[StageForecast]
    """Empty if PostgreSQL evaluates the whole query."""
    threshold: int
    """Above how many rows tasks do the work."""


@dataclass
class Refresher:
    """Refreshes stream tables on one connection: whole units, failures and all."""

    place: Workplace
    registry: Registry
    on_event: Callable[[str], None]
    on_refreshed: Callable[[Sequence[Outcome]], None]
    """Called when a transaction is committed."""
    structure: Callable[[], int] = lambda: -1
    """Counts the changes of definitions that the engine has made or heard of."""
    job: Job = field(default_factory=lambda: Job("call", "work"))
    """What it is at."""

    @property
    def conn(self) -> psycopg.Connection:
        """The connection that refreshes."""
        return self.place.conn

    @property
    def sinks(self) -> Sinks:
        """All sinks."""
        return self.place.sinks

    def refresh_unit(
        self, members: Sequence[int], initiated_by: str, *, force_full: str | None = None
    ) -> list[Outcome]:
        """Refresh tables in one transaction. When one fails it and its readers are left out, the others go on."""
        waiting = [m for m in members if ready(self.registry.graph, self.registry.rows, m)]
        conflicts = 0
        while waiting:
            started = time.time()
            try:
                return self._transaction(waiting, initiated_by, started, force_full)
            except RefreshFailed as failure:
                if isinstance(failure.cause, (Conflict, *OVERTAKEN)) and conflicts < CONFLICTS:
                    # Another writer was faster: the same work again, on what it left.
                    conflicts += 1
                    time.sleep(random.uniform(0, 0.02 * conflicts))  # noqa: S311  (they should not meet again)
                    continue
                if force_full is None and isinstance(failure.cause, (psycopg.DataError, psycopg.errors.RaiseException)):
                    # A value that is gone, or never reaches the result, may have hurt the delta. The whole query knows.
                    force_full = f"the delta failed: {condition(failure.cause.sqlstate)}"
                    continue
                if isinstance(failure.cause, Drifted):
                    raise
                unfit = initiated_by == "SCHEDULER" and isinstance(failure.cause, SchemaDriftError)
                if unfit and self._has_drifted(failure.table):
                    # Whoever compiles it anew knows better what has changed, and may well be able to.
                    raise RefreshFailed(failure.table, Drifted("it is compiled anew first")) from failure
                if isinstance(failure.cause, Cancelled) and (initiated_by != "SCHEDULER" or self.job.ending):
                    raise
                self._record_failure(failure, initiated_by, started)
                if initiated_by != "SCHEDULER":
                    raise
                if isinstance(failure.cause, Cancelled):
                    return []
                gone = {failure.table} | descendants(self.registry.graph, failure.table)
                waiting = [m for m in waiting if m not in gone]
        return []

    def refresh_together(self, members: Sequence[int]) -> list[Outcome]:
        """Refresh small tables that have nothing to do with each other in one transaction.

        Those that are too large for that are left out. When one fails nothing has happened, and nobody is blamed.
        """
        waiting = [m for m in members if ready(self.registry.graph, self.registry.rows, m)]
        started = time.time()
        if not waiting:
            return []
        try:
            return self._transaction(waiting, "SCHEDULER", started, None, together=True)
        except RefreshFailed as failure:
            meant = self.job.meant
            if isinstance(failure.cause, Cancelled) and meant in waiting and not self.job.ending:
                self._record_failure(RefreshFailed(meant, failure.cause), "SCHEDULER", started)
            else:
                log.debug("refreshed alone: %s", describe_failure(failure.cause))
            return []

    def fail(self, pgt_id: int, error: Exception) -> None:
        """Record what keeps a stream table from being refreshed at all."""
        self._record_failure(RefreshFailed(pgt_id, error), "SCHEDULER", time.time())

    def redefine(self, pgt_id: int, before: Callable[[Publication], None]) -> None:
        """Change a definition and rebuild the table, in one transaction."""
        self._transaction([pgt_id], "MANUAL", time.time(), None, before=before)

    def verify(self, pgt_id: int, members: Sequence[int]) -> tuple[list[Outcome], list[tuple[str, int]], int]:
        """Refresh, and compare with the query in that very snapshot: (outcomes, differing rows, rows)."""
        found: list[tuple[str, int]] = []
        rows = 0

        def compare(refresh: TableRefresh) -> None:
            nonlocal rows
            if refresh.table.id == pgt_id:
                found.extend(differences(refresh))
                rows = count(refresh)

        outcomes = self._transaction(members, "MANUAL", time.time(), None, after=compare)
        return outcomes, found, rows

    def look(self, pgt_id: int) -> Outlook:
        """What waits for a stream table, and who would evaluate it."""
        table = self.registry.maintained(self.conn, pgt_id)
        try:
            with self.conn.transaction():
                shared = self.place.shared(self._versions())
                refresh = TableRefresh(shared, table, position(self.registry.rows[pgt_id]))
                found = refresh.look()
                stages = forecast(table.stages, refresh.leaves()) if table.plan is not None else []
        finally:
            self.place.finish()
        waiting = {str(u.relation.name): found[u.relation.oid] for u in table.sources if u.relation.oid in found}
        return Outlook(waiting, stages, self.place.sessions.threshold)

    def _transaction(
        self,
        members: Sequence[int],
        initiated_by: str,
        started: float,
        force_full: str | None,
        before: Callable[[Publication], None] | None = None,
        after: Callable[[TableRefresh], None] | None = None,
        *,
        together: bool = False,
    ) -> list[Outcome]:
        if before is not None:
            self.registry.changes = UNKNOWN
        order = Order(
            members,
            lambda: self._load(members, force_full, by_schedule=initiated_by == "SCHEDULER"),
            self._versions,
            initiated_by,
            started,
            before,
            after,
            together,
        )
        with self.job.interruptible(self.conn):
            outcomes = self._begun_anew(order, members)
        self.on_refreshed(outcomes)
        self._report(outcomes)
        return outcomes

    def _begun_anew(self, order: Order, members: Sequence[int]) -> list[Outcome]:
        """A refresh; once more if something happened after its snapshot without which it makes no sense."""
        for left in reversed(range(SNAPSHOTS)):
            try:
                return refresh_unit(self.place, order, self.registry.kinds_read(members))
            except RefreshFailed as failure:
                if not left or not isinstance(failure.cause, Outdated):
                    raise
                time.sleep(0.1)
        raise AssertionError("the last attempt returns or raises")

    def _versions(self) -> dict[int, int]:
        return {i: row.version for i, row in self.registry.rows.items()}

    def _load(self, members: Sequence[int], force_full: str | None, *, by_schedule: bool = False) -> list[Member]:
        """The members of a unit as the catalog has them now."""
        self.reload(members)
        for member in members if by_schedule else ():
            # A rebuild under the old definition would count as having followed the change.
            if self.registry.rows[member].drift is not None:
                raise RefreshFailed(member, Drifted("it is compiled anew first"))
        self._check_sources(members)
        return [self._member(member, force_full) for member in members]

    def reload(self, members: Collection[int]) -> None:
        """What the catalog says of these; everything, if definitions have changed since it was last read."""
        structure = self.structure()
        if structure < 0 or structure != self.registry.changes or not self.registry.reload_only(self.conn, members):
            self.registry.reload(self.conn)
            self.registry.changes = structure

    def _member(self, pgt_id: int, force_full: str | None) -> Member:
        if self.registry.rows[pgt_id].needs_reinit:
            # A view among its sources may mean something else now, although the definition is the same.
            self.registry.forget(pgt_id)
        try:
            self.registry.refuse_broken(pgt_id)
            table = self.registry.maintained(self.conn, pgt_id)
        except Exception as error:
            if is_lost(self.conn):
                raise
            raise RefreshFailed(pgt_id, error) from error
        row = self.registry.rows[pgt_id]
        return Member(table, row, position(row), partial(self._why_full, force_full, table, row))

    def drop_leftovers(self, redefined: int | None = None) -> None:
        """Drop the temporary tables of stream tables that are gone, or of one whose plan is another now."""
        living = self.registry.rows.keys() - {redefined}
        relations = self.registry.relations(living)
        with self.conn.transaction():
            self.place.scratch.keep_only(self.conn, living)
            for kind in self.place.kinds:
                kind.tidy(self.conn, living, relations)

    def _why_full(self, forced: str | None, table: Maintained, row: StreamTable, changes: int) -> str | None:
        """Why to recompute a table for which this many captured rows wait: told to, or cheaper by its history."""
        judged = table.mode == "AUTO" and table.plan is not None and row.is_populated and changes >= MIN_CHANGES
        if forced or not judged:
            return forced
        return full_is_cheaper(self.conn.execute(RECENT, (table.id,)).fetchall(), changes)

    def _check_sources(self, members: Iterable[int]) -> None:
        """Sources that no longer fit, on servers where no event trigger has told us."""
        found = self.conn.execute(CHECK_SOURCES, (list(members),))
        for pgt_id, problem in found.fetchall():
            row = store.load_stream_table(self.conn, pgt_id)
            # The trigger that saw the change knows more: a column was renamed, of which here the new name is not known.
            told = row.last_error if row is not None and row.status == "ERROR" else None
            raise RefreshFailed(pgt_id, SchemaDriftError(told or problem))

    def tidy_sinks(self, mine: Callable[[int], None]) -> None:
        """Let the sinks do what was left for a quiet moment; `mine` raises if somebody works on a stream table."""

        def result(pgt_id: int) -> Result:
            mine(pgt_id)
            self.registry.reload(self.conn)
            return self._member(pgt_id, None).result

        self.sinks.tidy(self.conn, result)

    def _has_drifted(self, pgt_id: int) -> bool:
        """Whether something that a definition rests on has changed, looked at now."""
        notice(self.conn)
        self.registry.reload(self.conn)
        row = self.registry.rows.get(pgt_id)
        return row is not None and row.drift is not None

    def _record_failure(self, failure: RefreshFailed, initiated_by: str, started: float) -> None:
        cause = failure.cause
        message = describe_failure(cause)
        grant = missing_grant(message, self.place.role)
        message = f"{message}. {grant}" if grant else message
        row = self.registry.rows.get(failure.table)
        if row is None:
            return  # it was dropped meanwhile: nobody to tell
        # A session beside ours that ended (of a task, of an observer) says nothing about the table either.
        outside = isinstance(cause, TransientError) or ended(cause)
        longest = LONGEST_WAIT if outside else LONGEST_BACKOFF
        backoff = min(FIRST_BACKOFF * 2 ** min(row.consecutive_errors, 16), longest)
        refresh = Refresh(
            action=row.effective_mode,
            initiated_by=initiated_by,
            start_time=datetime.fromtimestamp(started, UTC),
        )
        recorded = None
        try:
            recorded = self._recorded_failure(failure, refresh, message, timedelta(seconds=backoff), outside=outside)
        finally:
            with about(f"{row.pgt_schema}.{row.pgt_name}", recorded):
                log.warning("refresh of %s.%s failed: %s", row.pgt_schema, row.pgt_name, message)
        self.registry.reload(self.conn)

    def _recorded_failure(
        self, failure: RefreshFailed, refresh: Refresh, message: str, backoff: timedelta, *, outside: bool
    ) -> int | None:
        """The number of the refresh that failed."""
        cause = failure.cause
        with self.conn.transaction():
            _, _, recorded = store.record_failure(
                self.conn, failure.table, refresh, message, public=public_message(cause),
                backoff=backoff, suspend_after=NEVER if outside else SUSPEND_AFTER,
            )  # fmt: skip
            if isinstance(cause, SchemaDriftError):
                store.set_status(self.conn, failure.table, "ERROR", message)
            elif isinstance(cause, (OutputDrift, psycopg.errors.CheckViolation)):
                store.set_needs_reinit(self.conn, failure.table, True)
        return recorded

    def _report(self, outcomes: Iterable[Outcome]) -> None:
        for o in outcomes:
            if o.changed:
                spent = sum(o.timings.values())
                with about(str(o.table.name), o.refresh_id):
                    self.on_event(
                        f"{o.table.name}: {o.action} +{o.rows_inserted} -{o.rows_deleted} rows "
                        f"from {o.changes_read} changes in {spent:.0f} ms"
                    )

    def closure(self, pgt_id: int) -> list[int]:
        """A stream table with everything it reads, upstream first: what a manual refresh brings up to date."""
        wanted = {pgt_id}
        while True:
            more = {u for w in wanted for u in self.registry.graph[w]}
            for unit in self.registry.units():
                if wanted & set(unit):
                    more |= {m for m in unit if m == pgt_id or pgt_id in descendants(self.registry.graph, m)}
            if more <= wanted:
                break
            wanted |= more
        return [n for n in ordered(self.registry.graph) if n in wanted]


def describe_failure(cause: Exception) -> str:
    """One line for people: PostgreSQL's or our own message, without a stack."""
    if isinstance(cause, psycopg.Error):
        return cause.diag.message_primary or str(cause).strip().splitlines()[0]
    text = without_secrets(str(cause).strip())
    return text.splitlines()[0][:500] if text else type(cause).__name__
