"""The refresh transaction.

One connection, one REPEATABLE READ transaction: it reads every source in one snapshot, sees its own writes (the
stages below), and its COMMIT makes state, results, change logs, history and frontiers visible together. Any failure
before that leaves nothing behind. Tasks that read large tables import the same snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import psycopg
import pyarrow as pa

from runnel.apply import ddl
from runnel.apply.groups import build_groups, merge_groups, outputs_sql
from runnel.apply.load import inputs_sql, load, load_query
from runnel.apply.output import apply_delta, consolidate_sql, difference_sql, write_log
from runnel.apply.partitions import all_rows_sql, recompute_partitions, touch_partitions
from runnel.apply.recursion import build_recursion, merge_recursion
from runnel.apply.scratch import Scratch
from runnel.apply.tables import TEXTUAL, StageTables
from runnel.catalog.owner import PINNED_PATH, AsOwner, as_owner
from runnel.errors import SchemaDriftError
from runnel.model.frontier import Frontier
from runnel.model.names import quote
from runnel.model.types import PgType
from runnel.plan.stage import GroupHead, LeafNode, PartitionHead, RecursiveHead, Stage
from runnel.refresh.changes import Pending, pending_changes
from runnel.refresh.compute import Counters, compute_stage
from runnel.refresh.lakes import LakeAccess
from runnel.refresh.leaves import LeafAccess
from runnel.refresh.maintained import Action, Maintained, Outcome, Position
from runnel.refresh.rights import check_readable
from runnel.refresh.steps import Steps
from runnel.sources.ducklake.catalogs import LakeCatalogs
from runnel.sources.ducklake.copies import Staging
from runnel.sources.ducklake.reads import LakeReads
from runnel.sources.statements import Clock
from runnel.sources.statistics import Statistics
from runnel.spark.session import Sessions

FLOAT4 = 700
FLOAT4_DIGITS, FLOAT8_DIGITS = 3, 12
"""To which `verify` compares: PostgreSQL itself adds floating-point numbers in no fixed order."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The version every source is read at."""

    snapshot: str
    now: str


@dataclass
class RefreshTransaction:
    """Refreshes inside one open transaction; the caller commits."""

    conn: psycopg.Connection
    dsn: str
    sessions: Sessions
    engine_role: str
    versions: dict[int, int]
    """Current version of every stream table; moved as this transaction refreshes them."""
    statistics: Statistics = field(default_factory=Statistics)
    scratch: Scratch = field(default_factory=Scratch)
    fresh: set[int] = field(default_factory=set)
    staging: Staging = field(default_factory=Staging)
    catalogs: LakeCatalogs = field(default_factory=LakeCatalogs)

    def __post_init__(self) -> None:
        row = self.conn.execute("SELECT pg_current_snapshot()::text, now()::text").fetchone()
        assert row is not None
        self.at = Snapshot(row[0], row[1])
        self.lakes = LakeReads(self.conn, self.catalogs)

    def fix_lakes(self, tables: Iterable[Maintained]) -> None:
        """Settle at which snapshots lakes are read: those published here may follow others that are not seen."""
        for source in (s for table in tables for s in table.lakes):
            self.lakes.head(source.ref)

    def refresh(self, table: Maintained, position: Position, *, full: Callable[[int], str | None]) -> Outcome:
        """Bring one stream table to the transaction's snapshot.

        `full` says why to recompute it, given the number of captured rows that wait, or None.
        """
        if position.populated and not position.reinit and position.frontier.plan != table.fingerprint:
            position = replace(position, reinit="its plan changed, so its state must be rebuilt")
        steps = Steps()
        with steps("changes"):
            lakes = self._lake_access(table)
            if position.populated and not position.reinit:
                lakes.look(position.frontier)
            pending = pending_changes(self.conn, table, position.frontier, self.versions)
            pending = replace(pending, lakes=bool(lakes.changes), lake_rows=lakes.waiting)
        forced = full(pending.total) or lakes.expired or lakes.why_full()
        moving = table.polled or (table.plan is not None and table.plan.uses_clock)
        settled = position.populated and not position.reinit and not forced and not pending.any and not moving
        reason: str | None = None
        action: Action = "FULL" if self._recomputes(table) else "DIFFERENTIAL"
        if not settled:
            action, reason = self._choose(table, position, pending, forced)
        outcome = Outcome(
            table, action, False, self._frontier(table, lakes), position.version, self.at.now, settled, reason,
            sum(pending.rows.values()),
        )  # fmt: skip
        outcome.timings = steps.times
        if settled:
            return outcome
        counters = Counters()
        if table.owner != self.engine_role:
            check_readable(self.conn, table.owner, {**table.sources, **{s.oid: s.columns for s in table.lakes}})
        self.scratch.prepare(self.conn, table.id, [(s, table.tables(s)) for s in table.stages], table.owner)
        with steps("lake"):
            if action == "DIFFERENTIAL":
                lakes.stage_changes()
            elif table.plan is None:
                lakes.stage_whole()
        with self.as_owner(table).at_work() as owner:
            access = LeafAccess(
                owner, self.dsn, self.sessions, table, Clock(position.frontier.clock, self.at.now),
                self._attributes(table), self.versions, pending, self.statistics, lakes, fresh=frozenset(self.fresh),
            )  # fmt: skip
            if action == "DIFFERENTIAL":
                changed = self._differential(owner, table, position, access, counters, steps)
            elif table.plan is None:
                changed = self._recompute_in_postgres(owner, table, steps)
            else:
                changed = self._rebuild(owner, table, access, counters, steps)
            if changed:
                last = table.stages[-1]
                with steps("apply"):
                    path = table.settings.get("search_path")
                    inserted, deleted = apply_delta(owner, last, table.tables(last), path)
                outcome.rows_inserted, outcome.rows_deleted = inserted, deleted
                changed = bool(inserted or deleted)
        outcome.changed = changed
        outcome.spark_jobs, outcome.rows_read = counters.jobs, counters.rows_read
        outcome.changes_read += lakes.changes_read
        outcome.lake_io = lakes.io.as_json() if table.lakes else None
        if changed or not position.populated:
            outcome.version = position.version + 1
            self.versions[table.id] = outcome.version
            self.fresh.add(table.id)
            if table.logged and changed:
                write_log(self.conn, table.id, last, table.tables(last), outcome.version)
        return outcome

    # -- which way -----------------------------------------------------------------------------------------

    @staticmethod
    def _recomputes(table: Maintained) -> bool:
        """Whether every refresh of the table recomputes it."""
        return table.plan is None or table.mode == "FULL"

    def _choose(
        self, table: Maintained, position: Position, pending: Pending, full: str | None
    ) -> tuple[Action, str | None]:
        if not position.populated:
            return "INITIAL", None
        if position.reinit:
            return "REINITIALIZE", position.reinit
        if full:
            return "FULL", full
        if self._recomputes(table):
            return "FULL", table.reason or "refresh_mode is FULL"
        if pending.markers:
            return "FULL", "a source was truncated or its partitions changed"
        return "DIFFERENTIAL", None

    def _lake_access(self, table: Maintained) -> LakeAccess:
        return LakeAccess(self.conn, self.sessions, self.lakes, self.staging, table)

    def _frontier(self, table: Maintained, lakes: LakeAccess) -> Frontier:
        return Frontier(
            snapshot=self.at.snapshot,
            clock=self.at.now,
            stream_tables={up: self.versions.get(up, 0) for up in table.upstream},
            plan=table.fingerprint,
            lakes=lakes.frontier,
        )

    # -- the three ways ------------------------------------------------------------------------------------

    def _differential(
        self,
        owner: AsOwner,
        table: Maintained,
        position: Position,
        access: LeafAccess,
        counters: Counters,
        steps: Steps,
    ) -> bool:
        changed = False
        for stage in table.stages:
            tables = table.tables(stage)
            if isinstance(stage.head, PartitionHead):
                changed = stage.head.source.index in access.moved
                if changed:
                    with steps("merge"):
                        source = table.tables_at(stage.head.source.index)
                        recompute_partitions(owner, stage, tables, source)
            elif isinstance(stage.head, RecursiveHead):
                self.scratch.use(table.id, [stage.index])
                with steps("merge"):
                    changed = merge_recursion(owner, stage, tables, table.tables_at)
            else:
                changed = self._load_changes(owner, stage, tables, position, access, counters, steps)
                if changed:
                    with steps("merge"):
                        if isinstance(stage.head, GroupHead):
                            merge_groups(owner, stage, tables)
                        else:
                            owner.run(f"INSERT INTO {tables.delta} {_rows_sql(table, stage)}")
            if changed:
                self.scratch.use(table.id, [stage.index])
            if changed and not table.is_last(stage):
                with steps("merge"):
                    self._hand_on(owner, table, stage, access)
        return changed

    def _load_changes(
        self,
        owner: AsOwner,
        stage: Stage,
        tables: StageTables,
        position: Position,
        access: LeafAccess,
        counters: Counters,
        steps: Steps,
    ) -> bool:
        """Bring the stage's delta into its load table; whether there is any."""
        if all(isinstance(branch.tree, LeafNode) for branch in stage.branches):
            # Nothing to join: what PostgreSQL reads is what it would be given back.
            with steps("read"):
                total = 0
                for number, branch in enumerate(stage.branches):
                    leaf = branch.leaves[0]
                    if access.may_have_changed(leaf):
                        query = access.delta_query(leaf, position.frontier)
                        loaded = load_query(owner, stage, tables, number, query)
                        counters.read(leaf, loaded)
                        total += loaded
            return total > 0
        with steps("read"):
            deltas: dict[tuple[int, int], pa.Table] = {}
            for number, branch in enumerate(stage.branches):
                for leaf in branch.leaves:
                    deltas[number, leaf.id] = access.delta(leaf, position.frontier)
                    counters.read(leaf, deltas[number, leaf.id].num_rows)
        with steps("plan"):
            rows = compute_stage(self.sessions, stage, deltas, access.reader(), counters, steps)
        if rows is None or not rows.num_rows:
            return False
        with steps("load"):
            load(owner, stage, tables, rows)
        return True

    def _hand_on(self, owner: AsOwner, table: Maintained, stage: Stage, access: LeafAccess) -> None:
        """Apply a hidden stage's delta, after the stages that recompute partitions have seen what it replaces."""
        tables = table.tables(stage)
        row = self.conn.execute(f"SELECT EXISTS (SELECT FROM {tables.delta})".encode()).fetchone()
        assert row is not None
        if not row[0]:
            return
        access.moved.add(stage.index)
        for reader in table.stages[stage.index + 1 :]:
            if isinstance(reader.head, PartitionHead) and reader.head.source.index == stage.index:
                self.scratch.use(table.id, [reader.index])
                touch_partitions(owner, reader, table.tables(reader), tables)
        apply_delta(owner, stage, tables)

    def _rebuild(self, owner: AsOwner, table: Maintained, access: LeafAccess, counters: Counters, steps: Steps) -> bool:
        """Recompute every stage on Spark; the result's rows that differ become its delta."""
        self.scratch.use(table.id, [stage.index for stage in table.stages])
        for stage in table.stages:
            tables, last = table.tables(stage), table.is_last(stage)
            if stage.branches:
                with steps("plan"):
                    rows = compute_stage(self.sessions, stage, None, access.reader(), counters, steps)
                assert rows is not None
                with steps("load"):
                    load(owner, stage, tables, rows)
            with steps("merge"):
                ddl.create_state(self.conn, stage, tables, table.owner, is_last=last)
                if isinstance(stage.head, GroupHead):
                    build_groups(owner, stage, tables)
                    ddl.index_state(self.conn, stage, tables)
                    output = _expanded(stage, outputs_sql(stage, tables, weight=1, touched_only=False))
                elif isinstance(stage.head, PartitionHead):
                    output = all_rows_sql(stage, table.tables_at(stage.head.source.index))
                elif isinstance(stage.head, RecursiveHead):
                    output = build_recursion(owner, stage, tables, table.tables_at)
                else:
                    output = _expanded(stage, _named(stage, _rows_sql(table, stage)))
                if last:
                    owner.run(f"INSERT INTO {tables.delta} {difference_sql(stage, tables, output)}")
                else:
                    names = ", ".join(quote(c.name) for c in stage.columns)
                    owner.run(f"INSERT INTO {tables.output} ({names}) {output}")
                    ddl.index_output(self.conn, stage, tables)
        return True

    def _recompute_in_postgres(self, owner: AsOwner, table: Maintained, steps: Steps) -> bool:
        """Queries that have no plan: PostgreSQL evaluates them, and only the difference is written."""
        (stage,) = table.stages
        tables = table.tables(stage)
        self.scratch.use(table.id, [stage.index])
        names = ", ".join(f"o{i}" for i in range(len(stage.columns)))
        with steps("query"):
            delta = difference_sql(stage, tables, f"SELECT * FROM ({table.staged or table.query}) AS q({names})")
            owner.run(f"INSERT INTO {tables.delta} {delta}")
        return True

    # -- verification --------------------------------------------------------------------------------------

    def differences(self, table: Maintained, limit: int = 50) -> list[tuple[str, int]]:
        """Rows in which the stream table and its query differ in this very snapshot: (row, weight).

        Positive: the query has it and the table lacks it. Floating-point columns are compared to 12 digits.
        """
        stage = table.stages[-1]
        current = ", ".join(quote(c.name) for c in stage.columns)
        names = ", ".join(f"o{i}" for i in range(len(stage.columns)))
        compared = ", ".join(_compared(f"o{i}", c.type) for i, c in enumerate(stage.columns))
        self._lake_access(table).stage_whole()
        with self.as_owner(table).at_work() as owner:
            rows = owner.rows(
                f"""SELECT ROW({compared})::text, sum(w)::int8 FROM (
                      SELECT {names}, 1 AS w FROM ({table.staged or table.query}) AS q({names})
                      UNION ALL
                      SELECT {names}, -1 FROM (SELECT {current} FROM {table.name.sql()}) AS s({names})) AS d
                    GROUP BY {compared} HAVING sum(w) <> 0 ORDER BY 1 LIMIT {int(limit)}""",
                ["text", "int8"],
            )
        return [(str(r), int(w)) for r, w in rows]

    def count(self, table: Maintained) -> int:
        """The rows of a stream table."""
        with self.as_owner(table).at_work() as owner:
            return int(owner.value(f"SELECT count(*) FROM {table.name.sql()}", "int8"))

    # -- details -------------------------------------------------------------------------------------------

    def as_owner(self, table: Maintained, **more: str) -> AsOwner:
        """The way to run a table's SQL: with its owner's rights, the creator's settings, and every name qualified."""
        return as_owner(self.conn, table.owner, {**table.settings, "search_path": PINNED_PATH, **more})

    def _attributes(self, table: Maintained) -> dict[int, dict[str, int]]:
        """Attribute numbers of captured columns; a column that capture has lost is drift."""
        if not table.sources:
            return {}
        found: dict[int, dict[str, int]] = {}
        rows = self.conn.execute(
            "SELECT source_relid::int8, columns FROM pgtrickle.pgt_change_tracking WHERE source_relid = ANY(%s)",
            (list(table.sources),),
        )
        for oid, columns in rows:
            found[oid] = {c["name"]: int(c["attnum"]) for c in columns}
        for oid, names in table.sources.items():
            missing = [n for n in names if n not in found.get(oid, {})]
            if missing:
                raise SchemaDriftError(
                    f"stream table {table.name}: column {missing[0]!r} of one of its sources is gone",
                    hint="Change the query with pgtrickle.alter_stream_table, or drop the stream table.",
                )
        return found


def _rows_sql(table: Maintained, stage: Stage) -> str:
    """The loaded rows of a stage without state, as a consolidated delta."""
    tables = table.tables(stage)
    renamed = ", ".join(f"i{i} AS o{i}" for i in range(len(stage.columns)))
    return consolidate_sql(stage, f"SELECT {renamed}, w FROM ({inputs_sql(stage, tables)}) AS i")


def _compared(name: str, type_: PgType) -> str:
    """A result column as `verify` compares it."""
    if type_.family != "float":
        return f"({name})::text" if type_.oid in TEXTUAL else name
    # Only the final value is rounded: what the query makes of floating-point numbers on the way is its own matter.
    # Adding zero turns -0 into 0: they are equal, and which of them a group shows is chance.
    digits = "9" * (FLOAT4_DIGITS if type_.oid == FLOAT4 else FLOAT8_DIGITS)
    rounded = f"to_char({name} + '0', '9.{digits[1:]}EEEE')"
    return f"CASE WHEN {name} - {name} = '0' THEN {rounded} ELSE ({name})::text END"


def _named(stage: Stage, rows: str) -> str:
    names = ", ".join([*(f"o{i}" for i in range(len(stage.columns))), "w"])
    return f"SELECT * FROM ({rows}) AS named({names})"


def _expanded(stage: Stage, rows: str) -> str:
    """Rows with weights as plain rows."""
    names = ", ".join(f"o{i}" for i in range(len(stage.columns)))
    return f"SELECT {names} FROM ({rows}) AS e, generate_series(1, e.w)"
