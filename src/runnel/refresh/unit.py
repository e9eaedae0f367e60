"""One refresh transaction, from BEGIN to COMMIT, over stream tables that move together.

1. what stands for sources elsewhere is brought in step with them, before the snapshot in which both are read;
2. BEGIN, REPEATABLE READ: from here on everything is read as of one moment;
3. the catalog: which stream tables, what they mean, where they stand; sources that no longer fit are drift;
4. every source of every table is opened, and with it the version that it is read at;
5. per stream table, upstream first: look, choose, compute, apply, log (`runnel.refresh.table`);
6. tests look at what changed, and it is handed to its sinks;
7. history and frontier;
8. what others' code left behind in the session is swept; sinks elsewhere commit;
9. COMMIT: state, rows, log, history and frontier become visible together.

Before the COMMIT a failure or a crash leaves nothing behind. After it, only publications that were too large to wait
for are still to be made, each in a transaction of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import psycopg

from runnel.apply.scratch import Scratch
from runnel.catalog import store
from runnel.catalog.lost import insist, is_lost
from runnel.catalog.owner import settle, sweep
from runnel.catalog.rows import StreamTable
from runnel.catalog.statistics import Statistics
from runnel.model import progress
from runnel.model.looks import Looks, Seen
from runnel.model.spans import Fact, Facts, span
from runnel.ports.sink import Later, Publication, Refreshed, Result
from runnel.refresh.choose import WhyFull
from runnel.refresh.history import record
from runnel.refresh.looks import changed_rows
from runnel.refresh.maintained import Maintained, Outcome, Position
from runnel.refresh.table import Shared, TableRefresh
from runnel.refresh.testing import run_tests
from runnel.sinks.registry import Sinks
from runnel.sources.registry import Kinds
from runnel.spark.session import Sessions

MOST_TOGETHER = 1000
"""Changes of a stream table that is refreshed with others only because all of them are small."""
MAY_WRITE = """
SELECT oid::int8 FROM pg_class c WHERE oid = ANY(%s::oid[]) AND (relhasrules OR relhastriggers AND EXISTS (
    SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgfoid <> 'pgtrickle._guard'::regproc))
"""
"""Stream tables with triggers, foreign keys or rules of somebody's."""
CAPTURED = "SELECT source_relid::int8 FROM pgtrickle.pgt_change_tracking WHERE source_relid = ANY(%s::oid[])"
WRITTEN = """
SELECT source_relid::int8 FROM pgtrickle.pgt_change_tracking t
WHERE source_relid = ANY(%s::oid[]) AND capture <> 'trigger' AND EXISTS (
    SELECT FROM unnest(t.relations) r WHERE pg_stat_get_xact_tuples_inserted(r) + pg_stat_get_xact_tuples_updated(r)
                                            + pg_stat_get_xact_tuples_deleted(r) > 0)
"""
"""Of tables that are captured from the WAL: those that this transaction has written to. Its changes come later."""
OWN = "pgt_xid = pg_current_xact_id_if_assigned()"
"""Changes that this transaction has made itself."""


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
    looks: Looks = field(default_factory=Looks)

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
    together: bool = False
    """They have nothing to do with each other, and those that are not small are left out."""


def refresh_unit(place: Workplace, order: Order, followed: Sequence[str]) -> list[Outcome]:
    """Refresh stream tables in one transaction; `followed`: the kinds of sources that they read."""
    conn = place.conn
    outcomes: list[Outcome] = []
    seen: dict[int, Seen] = {}
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
            alone = _apart(conn, members, refreshes) if order.together else frozenset()
            started = order.started
            for member, refresh in zip(members, refreshes, strict=True):
                current = member.table.id
                if current in alone:
                    continue
                with span("refresh", stream_table=str(member.table.name), initiated_by=order.initiated_by) as work:
                    publication.prepare(member.result)
                    outcome = refresh.run(member.why_full)
                    outcomes.append(outcome)
                    if outcome.changed and place.looks.wants(current):
                        seen[current] = changed_rows(conn, member.table, outcome.version)
                    held = run_tests(shared, member.table, outcome) if member.row.tested else None
                    _publish(conn, publication, outcome, member.result, held)
                    # Of what was only looked at on the way to the one that was asked for, nothing has to be told.
                    passed = member is not members[-1] and _did_nothing(outcome)
                    asked_by = "SCHEDULER" if passed else order.initiated_by
                    record(conn, outcome, member.position.frontier, asked_by, started)
                    work.tell(_facts(outcome))
                started = time.time()
                if order.after is not None:
                    order.after(refresh)
            for overtaken in _overtaken(conn, members, outcomes):
                store.set_needs_reinit(conn, overtaken, True)
            if any(member.table.owner != place.role for member in members):
                sweep(conn)
            publication.before_commit()
            if order.before is None and all(_did_nothing(outcome) for outcome in outcomes):
                # Nothing was found to do. If the server lost that, it would be found again.
                conn.execute("SET LOCAL synchronous_commit = off")
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
        if not is_lost(conn):
            insist(conn, lambda: settle(conn))
            conn.isolation_level = None
    for table, rows in seen.items():
        if rows.rows:  # of a first fill nothing is told that everybody can read in the table
            place.looks.keep(table, rows)
    for later in publication.later():
        _publish_later(place, later)
    return outcomes


def _apart(conn: psycopg.Connection, members: Sequence[Member], refreshes: Sequence[TableRefresh]) -> frozenset[int]:
    """Stream tables that are better refreshed alone: what takes long, what is published, what may write to sources.

    What has tests may take long, too: nobody else should wait for somebody's SELECT.

    A trigger or a foreign key of a stream table can do that, and this transaction would see it before it counts. Who
    publishes may have to begin anew because of other writers.
    """
    found = conn.execute(MAY_WRITE, ([r.table.relid for r in refreshes],)).fetchall()
    writing = {relid for (relid,) in found}
    tested = {m.table.id for m in members if m.row.tested}
    return frozenset(
        r.table.id
        for r in refreshes
        if r.published or r.table.id in tested or r.table.relid in writing or not r.is_small(MOST_TOGETHER)
    )


def _overtaken(conn: psycopg.Connection, members: Sequence[Member], outcomes: Sequence[Outcome]) -> Iterator[int]:
    """Stream tables that read what a trigger or a publication of another one has written in this very transaction.

    They have seen it, but their frontier, which is older, has not: it would count once more. So they are rebuilt.
    """
    if len(members) < 2:
        return
    published = any(outcome.published is not None for outcome in outcomes)
    if not published and not conn.execute(MAY_WRITE, ([m.table.relid for m in members[:-1]],)).fetchall():
        return
    read = {used.relation.oid for member in members for used in member.table.sources}
    captured = conn.execute(CAPTURED, (list(read),)).fetchall()
    looks = [
        f"SELECT {oid} WHERE EXISTS (SELECT FROM pgtrickle_changes.changes_{oid} WHERE {OWN})" for (oid,) in captured
    ]
    written = {oid for (oid,) in conn.execute(" UNION ALL ".join(looks).encode())} if looks else set()
    written |= {oid for (oid,) in conn.execute(WRITTEN, (list(read),))}
    yield from (m.table.id for m in members if any(used.relation.oid in written for used in m.table.sources))


def _facts(outcome: Outcome) -> Facts:
    """What a trace tells of a refresh: numbers, and no values."""
    facts: dict[str, Fact] = {
        "action": outcome.action,
        "changes_read": outcome.changes_read,
        "rows_inserted": outcome.rows_inserted,
        "rows_deleted": outcome.rows_deleted,
    }
    if outcome.refresh_id is not None:
        facts["refresh_id"] = outcome.refresh_id
    return facts


def _did_nothing(outcome: Outcome) -> bool:
    return outcome.settled and outcome.published is None and not outcome.deferred


def _publish(
    conn: psycopg.Connection, publication: Publication, outcome: Outcome, result: Result, held: str | None
) -> None:
    """Hand what a refresh did to the table's sinks, in the same transaction; `held`: why it is not good."""
    version = result.definition_version
    if held is not None and not outcome.changed:
        return
    if not publication.wants(result.id, changed=outcome.changed, definition_version=version):
        return
    progress.phase("publish")
    with span("publish"):
        _hand_over(conn, publication, outcome, result, held)


def _hand_over(
    conn: psycopg.Connection, publication: Publication, outcome: Outcome, result: Result, held: str | None
) -> None:
    outcome.refresh_id = store.new_refresh_id(conn)
    refreshed = Refreshed(
        id=outcome.refresh_id,
        action=outcome.action,
        changed=outcome.changed,
        inserted=outcome.rows_inserted,
        deleted=outcome.rows_deleted,
        frontier=outcome.frontier.as_json(),
        at=outcome.data_timestamp,
        held=held,
    )
    done = publication.publish(result, refreshed)
    outcome.deferred = any(later.result.id == result.id for later in publication.later())
    if done is not None:
        outcome.published = done
        outcome.reason = "; ".join(filter(None, (outcome.reason, done.reason))) or None
        outcome.timings.update(done.timings)


def _publish_later(place: Workplace, later: Later) -> None:
    """Publish what had to wait for the commit."""
    progress.phase("publish")
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
        if not is_lost(conn):
            insist(conn, lambda: None)
            conn.isolation_level = None
