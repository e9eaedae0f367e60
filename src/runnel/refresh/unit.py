"""One refresh transaction, from BEGIN to COMMIT, over stream tables that move together.

1. what stands for sources elsewhere is brought in step with them, before the snapshot in which both are read;
2. BEGIN, REPEATABLE READ: from here on everything is read as of one moment;
3. the catalog: which stream tables, what they mean, where they stand; sources that no longer fit are drift;
4. every source of every table is opened, and with it the version that it is read at;
5. per stream table, upstream first: look, choose, compute, apply, log (`runnel.refresh.table`);
6. what changed is handed to its sinks;
7. history and frontier;
8. what others' code left behind in the session is swept; sinks elsewhere commit;
9. COMMIT: state, rows, log, history and frontier become visible together.

Before the COMMIT a failure or a crash leaves nothing behind. After it, only publications that were too large to wait
for are still to be made, each in a transaction of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg

from runnel.apply.scratch import Scratch
from runnel.catalog import store
from runnel.catalog.lost import is_lost
from runnel.catalog.owner import settle, sweep
from runnel.catalog.rows import StreamTable
from runnel.catalog.statistics import Statistics
from runnel.ports.sink import Later, Publication, Refreshed, Result
from runnel.refresh.choose import WhyFull
from runnel.refresh.history import record
from runnel.refresh.maintained import Maintained, Outcome, Position
from runnel.refresh.table import Shared, TableRefresh
from runnel.sinks.registry import Sinks
from runnel.sources.registry import Kinds
from runnel.spark.session import Sessions


class RefreshFailed(Exception):
    """One table of a unit failed; the transaction is gone."""

    def __init__(self, table: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.table = table
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Member:
    """A stream table of a unit, as the catalog has it in the refresh's snapshot."""

    table: Maintained
    row: StreamTable
    position: Position
    why_full: WhyFull

    @property
    def result(self) -> Result:
        """As its sinks see it."""
        table = self.table
        return Result(
            id=table.id,
            name=table.name,
            relid=table.relid,
            owner=table.owner,
            columns=table.columns,
            scales=table.scales,
            delta=table.tables(table.stages[-1]).delta,
            query=self.row.original_query,
            definition_version=self.row.definition_version,
        )


@dataclass
class Workplace:
    """What refreshes on one connection share, from one transaction to the next."""

    conn: psycopg.Connection
    dsn: str = field(repr=False)
    sessions: Sessions
    kinds: Kinds
    sinks: Sinks
    role: str
    """The engine's own."""
    statistics: Statistics = field(default_factory=Statistics)
    scratch: Scratch = field(default_factory=Scratch)

    def shared(self, versions: dict[int, int]) -> Shared:
        """What the tables of one transaction share; call it inside the transaction."""
        return Shared(
            self.conn, self.dsn, self.sessions, self.kinds, self.role, versions, self.statistics, self.scratch
        )

    def finish(self) -> None:
        """A transaction is over: sources let go of what was read in it."""
        for kind in self.kinds:
            kind.finish()

    def forget(self) -> None:
        """Temporary tables made in a lost transaction are lost with it."""
        self.scratch.forget()
        for kind in self.kinds:
            kind.forget()


@dataclass(frozen=True, slots=True)
class Order:
    """A refresh that somebody asked for."""

    members: Sequence[int]
    """Stream tables, upstream first."""
    load: Callable[[], Sequence[Member]]
    """Reads the catalog, inside the transaction."""
    versions: Callable[[], dict[int, int]]
    """Of all stream tables, after `load`."""
    initiated_by: str
    started: float
    before: Callable[[Publication], None] | None = None
    """A change of definition that is part of the transaction."""
    after: Callable[[TableRefresh], None] | None = None
    """Called for each table when it is refreshed, in the same snapshot."""


def refresh_unit(place: Workplace, order: Order, followed: Sequence[str]) -> list[Outcome]:
    """Refresh stream tables in one transaction; `followed`: the kinds of sources that they read."""
    conn = place.conn
    outcomes: list[Outcome] = []
    for kind in place.kinds:
        if kind.name in followed:
            kind.follow(conn)
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    current = order.members[0]
    try:
        with place.sinks.taking_part(conn) as publication, conn.transaction():
            if order.before is not None:
                order.before(publication)
            members = order.load()
            shared = place.shared(order.versions())
            refreshes = []
            for member in members:
                current = member.table.id
                version = member.result.definition_version
                published = publication.wants(current, changed=True, definition_version=version)
                refreshes.append(TableRefresh(shared, member.table, member.position, published=published))
            for member, refresh in zip(members, refreshes, strict=True):
                current = member.table.id
                publication.prepare(member.result)
                outcome = refresh.run(member.why_full)
                outcomes.append(outcome)
                _publish(conn, publication, outcome, member.result)
                record(conn, outcome, member.position.frontier, order.initiated_by, order.started)
                if order.after is not None:
                    order.after(refresh)
            if any(member.table.owner != place.role for member in members):
                sweep(conn)
            publication.before_commit()
            committing = time.perf_counter()
        for outcome in outcomes:
            outcome.timings["commit"] = round((time.perf_counter() - committing) * 1000, 3)
    except Exception as error:
        place.forget()
        if isinstance(error, RefreshFailed) or is_lost(conn):
            # When the connection is gone nothing is wrong with the table.
            raise
        raise RefreshFailed(current, error) from error
    finally:
        place.finish()
        if not conn.closed:
            conn.isolation_level = None
            settle(conn)
    for later in publication.later():
        _publish_later(place, later)
    return outcomes


def _publish(conn: psycopg.Connection, publication: Publication, outcome: Outcome, result: Result) -> None:
    """Hand what a refresh did to the table's sinks, in the same transaction."""
    version = result.definition_version
    if not publication.wants(result.id, changed=outcome.changed, definition_version=version):
        return
    outcome.refresh_id = store.new_refresh_id(conn)
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


def _publish_later(place: Workplace, later: Later) -> None:
    """Publish what had to wait for the commit."""
    conn, meter = place.conn, place.sessions.metered(str(later.result.name)).meter
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    try:
        with place.sinks.taking_part(conn) as publication, conn.transaction():
            with meter.jobs():
                done = publication.publish_later(later)
            if meter.work.jobs:
                meter.written(done.inserted)
            store.add_publication(conn, later.refreshed.id, done.timings, done.reason, meter.work.as_json())
            publication.before_commit()
    except Exception as error:
        if is_lost(conn):
            raise
        raise RefreshFailed(later.result.id, error) from error
    finally:
        if not conn.closed:
            conn.isolation_level = None
