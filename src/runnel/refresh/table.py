"""One stream table within a refresh transaction: look, choose, compute, apply, log."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from runnel.apply import ddl
from runnel.apply.log import write_log
from runnel.apply.output import all_as_delta, apply_delta, difference_sql, insert_all
from runnel.apply.scratch import Scratch
from runnel.apply.tables import StageTables
from runnel.catalog.owner import PINNED_PATH, AsOwner, as_owner
from runnel.catalog.statistics import Statistics
from runnel.model.frontier import POSTGRES, Frontier
from runnel.model.names import quote
from runnel.plan.stage import Stage
from runnel.ports.rows import Clock
from runnel.ports.source import Pending, Reading, Source
from runnel.refresh.choose import WhyFull, choose
from runnel.refresh.heads import operations
from runnel.refresh.leaves import Leaves
from runnel.refresh.maintained import Maintained, Outcome, Position
from runnel.refresh.rights import check_readable
from runnel.refresh.stagework import StageWork
from runnel.refresh.steps import Steps
from runnel.sources.registry import Kinds, open_sources
from runnel.sources.stage.source import HiddenStage
from runnel.spark.session import Sessions


@dataclass
class Shared:
    """What the refreshes of one transaction share. One connection, one snapshot; the caller commits."""

    conn: psycopg.Connection
    dsn: str = field(repr=False)
    sessions: Sessions
    kinds: Kinds
    engine_role: str
    versions: dict[int, int]
    """Of every stream table; moved as this transaction refreshes them."""
    statistics: Statistics
    scratch: Scratch
    fresh: set[int] = field(default_factory=set)
    """Stream tables that this transaction has written to."""
    changes: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """What was read of the changes of relations (`runnel.refresh.leaves`)."""

    def __post_init__(self) -> None:
        row = self.conn.execute("SELECT pg_current_snapshot()::text, now()::text").fetchone()
        assert row is not None
        self.snapshot, self.now = str(row[0]), str(row[1])

    def as_owner(self, table: Maintained) -> AsOwner:
        """The way to run a table's SQL: with its owner's rights, the creator's settings, and every name qualified."""
        return as_owner(self.conn, table.owner, {**table.settings, "search_path": PINNED_PATH})


class TableRefresh:
    """One refresh of one stream table, opened when its transaction begins: all of them read one moment."""

    def __init__(self, shared: Shared, table: Maintained, position: Position, *, published: bool = False) -> None:
        """Open the table's sources, and settle at which version each is read."""
        if position.populated and not position.reinit and position.frontier.plan != table.fingerprint:
            position = replace(position, reinit="its plan changed, so its state must be rebuilt")
        self.shared, self.table, self.position, self.published = shared, table, position, published
        self.steps = Steps()
        self.sessions = shared.sessions.metered(str(table.name))
        self.reading = Reading(
            conn=shared.conn, dsn=shared.dsn, spark=self.sessions, table_id=table.id, name=table.name,
            role=table.owner, settings=table.settings, snapshot=shared.snapshot,
            clock=Clock(position.frontier.clock, shared.now), versions=shared.versions, statistics=shared.statistics,
            step=self.steps, fresh=shared.fresh, changes=shared.changes, automatic=table.mode == "AUTO",
            forgotten=table.forgotten,
        )  # fmt: skip
        self.sources: Mapping[int, Source] = open_sources(shared.kinds, self.reading, table.sources)
        for source in self.sources.values():
            source.head()

    def look(self) -> dict[int, Pending]:
        """What waits at each source, by oid; nothing is asked about a table that is built from nothing anyway."""
        if not self.position.populated or self.position.reinit:
            return {}
        since = self.position.frontier.versions
        return {oid: source.pending(since.get(source.name)) for oid, source in self.sources.items()}

    def is_small(self, most: int) -> bool:
        """Whether a delta of at most so many changes is all there is to do."""
        if not self.position.populated or self.position.reinit or self.table.recomputes:
            return False
        waiting = self.look().values()
        return sum(p.rows for p in waiting) <= most and not any(p.recompute for p in waiting)

    def run(self, why_full: WhyFull) -> Outcome:
        """Bring the stream table to the transaction's snapshot."""
        table, position = self.table, self.position
        with self.steps("changes"):
            way = choose(table, position, self.look().values(), why_full)
        outcome = Outcome(
            table, way.action, False, self._frontier(), position.version, self.shared.now, way.settled, way.reason
        )
        outcome.timings = self.steps.times
        if not way.settled:
            self._work(outcome)
        outcome.changes_read = sum(s.changes for s in self.sources.values())
        if outcome.changed or not position.populated:
            outcome.version = position.version + 1
            self.shared.versions[table.id] = outcome.version
            self.shared.fresh.add(table.id)
            if table.logged and outcome.changed:
                last = table.stages[-1]
                write_log(self.shared.conn, table.id, last, table.tables(last), outcome.version)
        return outcome

    def _frontier(self) -> Frontier:
        """The versions that this refresh reads; PostgreSQL's own is always known."""
        versions = {POSTGRES: self.shared.snapshot, **{s.name: s.head() for s in self.sources.values()}}
        return Frontier(versions, clock=self.shared.now, plan=self.table.fingerprint)

    def _work(self, outcome: Outcome) -> None:
        table = self.table
        if table.owner != self.shared.engine_role:
            check_readable(self.shared.conn, table.owner, table.sources)
        places = [(s, table.tables(s)) for s in table.stages]
        self.shared.scratch.prepare(self.shared.conn, table.id, places, table.owner)
        with self.shared.as_owner(table).at_work() as owner:
            self.reading.owner = owner
            work = self._stage_work(owner)
            if outcome.action == "DIFFERENTIAL":
                changed = _differential(work)
            elif self._is_empty(owner):
                changed = False
                outcome.rows_inserted = self._fill(work)
            else:
                changed = True
                self._find_difference(work)
            if changed:
                with self.steps("apply"):
                    outcome.rows_inserted, outcome.rows_deleted = apply_delta(owner, *self._last, self._trigger_path)
        outcome.changed = bool(outcome.rows_inserted or outcome.rows_deleted)
        outcome.work, outcome.rows_read = self.sessions.meter.work, work.leaves.rows_read
        outcome.effort = next((e for s in self.sources.values() if (e := s.effort())), None)

    def leaves(self) -> Leaves:
        """The way from the plan's leaves to their rows."""
        table = self.table
        stages = [HiddenStage(self.reading, s, table.tables(s).output, table.tables(s).delta) for s in table.stages]
        return Leaves(self.reading, self.position.frontier, self.sources, stages)

    def _stage_work(self, owner: AsOwner) -> StageWork:
        return StageWork(self.table, owner, self.leaves(), self.shared.scratch, self.sessions, self.steps)

    def lend(self) -> None:
        """Let PostgreSQL read all sources, so that it can evaluate the query itself."""
        for source in self.sources.values():
            source.lend()

    @property
    def _last(self) -> tuple[Stage, StageTables]:
        """The last stage, which is the stream table itself."""
        last = self.table.stages[-1]
        return last, self.table.tables(last)

    @property
    def _trigger_path(self) -> str | None:
        return self.table.settings.get("search_path")

    def _is_empty(self, owner: AsOwner) -> bool:
        """Whether the stream table is filled for the first time."""
        if self.position.populated:
            return False
        return not owner.value(f"SELECT EXISTS (SELECT FROM {self._last[1].output})", "bool")

    def _fill(self, work: StageWork) -> int:
        """All rows straight into the stream table; the index and, if somebody needs it, the delta come afterwards."""
        last, tables = self._last
        rows = self._everything(work)
        with self.steps("apply"):
            ddl.look_away(work.owner.conn)
            ddl.drop_result_index(work.owner.conn, tables.output)
            inserted = insert_all(work.owner, last, tables, rows, self._trigger_path)
            ddl.index_result(work.owner.conn, tables.output, last.columns)
            if inserted and (self.table.logged or self.published):
                all_as_delta(work.owner, last, tables)
        return inserted

    def _find_difference(self, work: StageWork) -> None:
        """Everything anew; the rows that differ from the stream table's become its delta."""
        last, tables = self._last
        rows = self._everything(work)
        with self.steps("merge" if self.table.plan is not None else "query"):
            work.owner.run(f"INSERT INTO {tables.delta} {difference_sql(last, tables, rows)}")

    def _everything(self, work: StageWork) -> str:
        """A SELECT of all rows of the stream table, columns `o<i>`, from its sources as they are now."""
        if self.table.plan is not None:
            return _build(work)
        # Queries that have no plan: PostgreSQL evaluates them.
        (stage,) = self.table.stages
        work.use(stage)
        self.lend()
        names = ", ".join(f"o{i}" for i in range(len(stage.columns)))
        return f"SELECT * FROM ({self.table.over_lent or self.table.query}) AS q({names})"


def _differential(work: StageWork) -> bool:
    """Stage by stage, from the changes of the sources to the delta of the last stage; whether there is any."""
    changed = False
    for stage in work.table.stages:
        changed = operations(stage).merge(work, stage)
        if changed:
            work.use(stage)
        if changed and not work.table.is_last(stage):
            with work.steps("merge"):
                _hand_on(work, stage)
    return changed


def _hand_on(work: StageWork, stage: Stage) -> None:
    """Apply a hidden stage's delta, after later stages have seen what it replaces."""
    tables = work.tables(stage)
    row = work.owner.conn.execute(f"SELECT count(*) FROM {tables.delta}".encode()).fetchone()
    assert row is not None
    if not row[0]:
        return
    work.leaves.stages[stage.index].changed = int(row[0])
    for reader in work.table.stages[stage.index + 1 :]:
        operations(reader).before(work, reader, stage)
    apply_delta(work.owner, stage, tables)


def _build(work: StageWork) -> str:
    """Stage by stage from nothing; a SELECT of the rows of the last one."""
    table, conn = work.table, work.owner.conn
    output = ""
    for stage in table.stages:
        tables, last = table.tables(stage), table.is_last(stage)
        work.use(stage)
        with work.steps("merge"):
            ddl.create_state(conn, stage, tables, table.owner, is_last=last)
        output = operations(stage).build(work, stage)
        if not last:
            with work.steps("merge"):
                names = ", ".join(quote(c.name) for c in stage.columns)
                filled = work.owner.run(f"INSERT INTO {tables.output} ({names}) {output}")
                work.leaves.stages[stage.index].filled = filled
                ddl.index_output(conn, stage, tables)
    return output
