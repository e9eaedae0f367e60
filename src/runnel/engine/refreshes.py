"""Run refreshes: one transaction per unit, history, failures and back-off."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg

from runnel.apply.output import OutputDrift
from runnel.apply.scratch import Scratch
from runnel.catalog import store
from runnel.catalog.lost import ended, is_lost
from runnel.catalog.owner import settle, sweep
from runnel.catalog.rows import Refresh, StreamTable
from runnel.catalog.statistics import Statistics
from runnel.dsn import without_secrets
from runnel.engine.advice import missing_grant
from runnel.engine.masking import condition, public_message
from runnel.engine.registry import Registry, position, ready
from runnel.errors import SchemaDriftError, TransientError
from runnel.model.frontier import Frontier
from runnel.ports.sink import Conflict, Later, Publication, Refreshed, Result
from runnel.ports.source import Pending
from runnel.refresh.maintained import Maintained, Outcome
from runnel.refresh.table import Shared, TableRefresh
from runnel.refresh.verify import count, differences
from runnel.schedule.choose import MIN_CHANGES, full_is_cheaper
from runnel.schedule.dag import descendants, ordered
from runnel.sinks.registry import Sinks, open_sinks
from runnel.sources.registry import Kinds
from runnel.spark.session import Sessions

log = logging.getLogger(__name__)

SUSPEND_AFTER = 3
NEVER = 2**31 - 1
FIRST_BACKOFF = 2.0
LONGEST_BACKOFF = 300.0
LONGEST_WAIT = 30.0
"""Between two tries while nothing is wrong but the world around: a store that is down, another server that is busy."""
CONFLICTS = 10
"""Tries in a row against other writers."""

RECENT = """
SELECT action, coalesce(changes_read, 0), (extract(epoch FROM end_time - start_time) * 1000)::float8
FROM pgtrickle.pgt_refresh_history WHERE pgt_id = %s AND status = 'COMPLETED' ORDER BY refresh_id DESC LIMIT 20
"""


class RefreshFailed(Exception):
    """One table of a unit failed; the transaction is gone."""

    def __init__(self, table: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.table = table
        self.cause = cause


@dataclass
class Refresher:
    """Refreshes stream tables on one connection."""

    conn: psycopg.Connection
    dsn: str
    sessions: Sessions
    registry: Registry
    role: str
    role_oid: int
    on_event: Callable[[str], None]
    statistics: Statistics = field(default_factory=Statistics)
    scratch: Scratch = field(default_factory=Scratch)
    sinks: Sinks = field(init=False)

    @property
    def kinds(self) -> Kinds:
        """Of sources."""
        return self.registry.kinds

    def __post_init__(self) -> None:
        self.sinks = open_sinks(self.dsn, self.sessions)

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
                if isinstance(failure.cause, Conflict) and conflicts < CONFLICTS:
                    # Another writer was faster: the same work again, on what it left.
                    conflicts += 1
                    time.sleep(random.uniform(0, 0.02 * conflicts))  # noqa: S311  (they should not meet again)
                    continue
                if force_full is None and isinstance(failure.cause, (psycopg.DataError, psycopg.errors.RaiseException)):
                    # A value that is gone, or never reaches the result, may have hurt the delta. The whole query knows.
                    force_full = f"the delta failed: {condition(failure.cause.sqlstate)}"
                    continue
                self._record_failure(failure, initiated_by, started)
                if initiated_by != "SCHEDULER":
                    raise
                gone = {failure.table} | descendants(self.registry.graph, failure.table)
                waiting = [m for m in waiting if m not in gone]
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

    def look(self, pgt_id: int) -> dict[str, Pending]:
        """What waits for a stream table, by the name of each relation that it reads."""
        table = self.registry.maintained(self.conn, pgt_id)
        try:
            with self.conn.transaction():
                refresh = TableRefresh(self._shared(), table, position(self.registry.rows[pgt_id]))
                waiting = refresh.look()
        finally:
            self._finish_reading()
        return {str(u.relation.name): waiting[u.relation.oid] for u in table.sources if u.relation.oid in waiting}

    def _shared(self) -> Shared:
        return Shared(
            self.conn, self.dsn, self.sessions, self.kinds, self.role,
            {i: r.version for i, r in self.registry.rows.items()}, self.statistics, self.scratch,
        )  # fmt: skip

    def _finish_reading(self) -> None:
        for kind in self.kinds:
            kind.finish()

    def _transaction(
        self,
        members: Sequence[int],
        initiated_by: str,
        started: float,
        force_full: str | None,
        before: Callable[[Publication], None] | None = None,
        after: Callable[[TableRefresh], None] | None = None,
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for kind in self.kinds:
            if any(self.registry.reads(m, kind.name) for m in members):
                # DDL elsewhere reaches what stands for it here before the snapshot in which both are read.
                kind.follow(self.conn)
        self.conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        current = members[0]
        try:
            with self.sinks.taking_part(self.conn) as publication, self.conn.transaction():
                if before is not None:
                    before(publication)
                self.registry.reload(self.conn)
                rows = self.registry.rows
                self._check_sources(members)
                tables = self._compiled(members)
                shared = self._shared()
                refreshes = []
                for table in tables:
                    current = table.id
                    refreshes.append(TableRefresh(shared, table, position(rows[table.id])))
                for refresh in refreshes:
                    table = refresh.table
                    current = table.id
                    result = _result(table, rows[table.id])
                    publication.prepare(result)
                    outcome = refresh.run(partial(self._why_full, force_full, table, rows[table.id]))
                    outcomes.append(outcome)
                    self._publish(publication, outcome, result)
                    self._record(outcome, position(rows[table.id]).frontier, initiated_by, started)
                    if after is not None:
                        after(refresh)
                if any(table.owner != self.role for table in tables):
                    sweep(self.conn)
                publication.before_commit()
                committing = time.perf_counter()
            for outcome in outcomes:
                outcome.timings["commit"] = round((time.perf_counter() - committing) * 1000, 3)
        except Exception as error:
            # Temporary tables made in the lost transaction are lost with it.
            self._forget_scratch()
            if isinstance(error, RefreshFailed) or is_lost(self.conn):
                # When the connection is gone nothing is wrong with the table.
                raise
            raise RefreshFailed(current, error) from error
        finally:
            self._finish_reading()
            if not self.conn.closed:
                self.conn.isolation_level = None
                settle(self.conn)
        for later in publication.later():
            self._publish_later(later)
        self._report(outcomes)
        return outcomes

    def drop_leftovers(self, redefined: int | None = None) -> None:
        """Drop the temporary tables of stream tables that are gone, or of one whose plan is another now."""
        living = self.registry.rows.keys() - {redefined}
        relations = self.registry.relations(living)
        with self.conn.transaction():
            self.scratch.keep_only(self.conn, living)
            for kind in self.kinds:
                kind.tidy(self.conn, living, relations)

    def _forget_scratch(self) -> None:
        self.scratch.forget()
        for kind in self.kinds:
            kind.forget()

    def _why_full(self, forced: str | None, table: Maintained, row: StreamTable, changes: int) -> str | None:
        """Why to recompute a table for which this many captured rows wait: told to, or cheaper by its history."""
        judged = table.mode == "AUTO" and table.plan is not None and row.is_populated and changes >= MIN_CHANGES
        if forced or not judged:
            return forced
        return full_is_cheaper(self.conn.execute(RECENT, (table.id,)).fetchall(), changes)

    def _compiled(self, members: Iterable[int]) -> list[Maintained]:
        tables = []
        for member in members:
            if self.registry.rows[member].needs_reinit:
                # A view among its sources may mean something else now, although the definition is the same.
                self.registry.forget(member)
            try:
                self.registry.refuse_broken(member)
                tables.append(self.registry.maintained(self.conn, member))
            except Exception as error:
                if is_lost(self.conn):
                    raise
                raise RefreshFailed(member, error) from error
        return tables

    def _check_sources(self, members: Iterable[int]) -> None:
        """Sources that no longer fit, on servers where no event trigger has told us."""
        wanted = set(members)
        for pgt_id, problem in self.conn.execute("SELECT pgt_id, problem FROM pgtrickle._check_sources()").fetchall():
            if pgt_id in wanted:
                raise RefreshFailed(pgt_id, SchemaDriftError(problem))

    def _publish(self, publication: Publication, outcome: Outcome, result: Result) -> None:
        """Hand what a refresh did to the table's sinks, in the same transaction."""
        version = result.definition_version
        if not publication.wants(result.id, changed=outcome.changed, definition_version=version):
            return
        outcome.refresh_id = store.new_refresh_id(self.conn)
        refreshed = Refreshed(
            id=outcome.refresh_id,
            action=outcome.action,
            changed=outcome.changed,
            inserted=outcome.rows_inserted,
            deleted=outcome.rows_deleted,
            frontier=outcome.frontier.as_json(),
            at=outcome.data_timestamp,
        )
        done = publication.publish(result, refreshed)
        outcome.deferred = any(later.result.id == result.id for later in publication.later())
        if done is not None:
            outcome.published = done
            outcome.reason = "; ".join(filter(None, (outcome.reason, done.reason))) or None
            outcome.timings.update(done.timings)

    def _publish_later(self, later: Later) -> None:
        """Publish what had to wait for the commit."""
        self.conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        try:
            with self.sinks.taking_part(self.conn) as publication, self.conn.transaction():
                done = publication.publish_later(later)
                store.add_publication(self.conn, later.refreshed.id, done.timings, done.reason)
                publication.before_commit()
        except Exception as error:
            if is_lost(self.conn):
                raise
            raise RefreshFailed(later.result.id, error) from error
        finally:
            if not self.conn.closed:
                self.conn.isolation_level = None

    def tidy_sinks(self) -> None:
        """Let the sinks do what was left for a quiet moment."""

        def result(pgt_id: int) -> Result:
            self.registry.reload(self.conn)
            return _result(self.registry.maintained(self.conn, pgt_id), self.registry.rows[pgt_id])

        self.sinks.tidy(self.conn, result)

    def _record(self, outcome: Outcome, before: Frontier, initiated_by: str, started: float) -> None:
        pgt_id = outcome.table.id
        frontier = outcome.frontier.as_json()
        rebuilt = outcome.action != "DIFFERENTIAL" and not outcome.settled
        worked = outcome.changed or rebuilt or bool(outcome.changes_read) or initiated_by != "SCHEDULER"
        worked = worked or outcome.published is not None or outcome.deferred
        now = outcome.frontier
        moved = now.elsewhere != before.elsewhere
        clocked = outcome.table.plan is not None and outcome.table.plan.uses_clock
        if not (worked or moved or clocked):
            return
        at = datetime.fromisoformat(outcome.data_timestamp) if outcome.data_timestamp else None
        refresh = Refresh(
            action=outcome.action,
            initiated_by="INITIAL" if outcome.action == "INITIAL" else initiated_by,
            start_time=datetime.fromtimestamp(started, UTC),
            data_timestamp=at,
            changes_read=outcome.changes_read,
            rows_inserted=outcome.rows_inserted,
            rows_deleted=outcome.rows_deleted,
            reason=outcome.reason,
            timings=dict(outcome.timings),
            spark_jobs=outcome.spark_jobs,
            rows_read=dict(outcome.rows_read),
            effort=None if outcome.effort is None else dict(outcome.effort),
        )
        if worked:
            store.record_success(self.conn, pgt_id, refresh, outcome.refresh_id)
        store.advance(self.conn, pgt_id, frontier, outcome.version, at, rebuilt=rebuilt)

    def _record_failure(self, failure: RefreshFailed, initiated_by: str, started: float) -> None:
        cause = failure.cause
        message = describe_failure(cause)
        grant = missing_grant(message, self.role)
        message = f"{message}. {grant}" if grant else message
        row = self.registry.rows.get(failure.table)
        if row is None:
            return  # it was dropped meanwhile: nobody to tell
        log.warning("refresh of %s.%s failed: %s", row.pgt_schema, row.pgt_name, message)
        # A session beside ours that ended (of a task, of an observer) says nothing about the table either.
        outside = isinstance(cause, TransientError) or ended(cause)
        longest = LONGEST_WAIT if outside else LONGEST_BACKOFF
        backoff = min(FIRST_BACKOFF * 2 ** min(row.consecutive_errors, 16), longest)
        refresh = Refresh(
            action=row.effective_mode,
            initiated_by=initiated_by,
            start_time=datetime.fromtimestamp(started, UTC),
        )
        with self.conn.transaction():
            store.record_failure(
                self.conn, failure.table, refresh, message, public=public_message(cause),
                backoff=timedelta(seconds=backoff), suspend_after=NEVER if outside else SUSPEND_AFTER,
            )  # fmt: skip
            if isinstance(cause, SchemaDriftError):
                store.set_status(self.conn, failure.table, "ERROR", message)
            elif isinstance(cause, (OutputDrift, psycopg.errors.CheckViolation)):
                store.set_needs_reinit(self.conn, failure.table, True)
        self.registry.reload(self.conn)

    def _report(self, outcomes: Iterable[Outcome]) -> None:
        for o in outcomes:
            if o.changed:
                spent = sum(o.timings.values())
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


def _result(table: Maintained, row: StreamTable) -> Result:
    """A stream table as its sinks see it."""
    return Result(
        id=table.id,
        name=table.name,
        relid=table.relid,
        owner=table.owner,
        columns=table.columns,
        scales=table.scales,
        delta=table.tables(table.stages[-1]).delta,
        query=row.original_query,
        definition_version=row.definition_version,
    )


def describe_failure(cause: Exception) -> str:
    """One line for people: PostgreSQL's or our own message, without a stack."""
    if isinstance(cause, psycopg.Error):
        return cause.diag.message_primary or str(cause).strip().splitlines()[0]
    text = without_secrets(str(cause).strip())
    return text.splitlines()[0][:500] if text else type(cause).__name__
