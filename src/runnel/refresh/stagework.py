"""What the work on one stage needs: its tables, its leaves, the owner's rights, Spark, and the clock that times it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Literal

from runnel.apply.load import count_load, load, load_leaf, load_query
from runnel.apply.scratch import Scratch
from runnel.apply.tables import StageTables
from runnel.catalog.owner import AsOwner
from runnel.delta.work import Work
from runnel.plan.stage import RowsHead, Stage
from runnel.refresh.copied import copied_changes
from runnel.refresh.files import file_branch
from runnel.refresh.large import LargeBranch
from runnel.refresh.leaves import Evaluator, Leaves, stays_in_postgres
from runnel.refresh.maintained import Maintained
from runnel.refresh.steps import Steps
from runnel.refresh.terms import read_changes, read_everything
from runnel.sources.arrow import table_as_csv
from runnel.spark.files import FileSlices, files_frame, share_rows
from runnel.spark.prepared import Owner
from runnel.spark.relay import Relay, relayed, relayed_slices
from runnel.spark.session import Sessions
from runnel.spark.slices import slice_rows
from runnel.spark.terms import SmallTerms, add_up, is_large, load_names, terms_frame

MANY = 10_000
"""Rows to merge, from which on it pays to let PostgreSQL plan each step of the merge when it knows the step before."""

_FEW_ROWS = 500_000
"""So many rows PostgreSQL adds up sooner than Spark exchanges them between its tasks."""
_ROW_BYTES = 40
"""A row of a stream table has seldom less."""

Loaded = Literal["nothing", "few", "many"]
"""What came into a load table."""


@dataclass
class StageWork:
    """One refresh of one stream table, as its heads see it."""

    table: Maintained
    owner: AsOwner
    leaves: Leaves
    scratch: Scratch
    sessions: Sessions
    steps: Steps

    def tables(self, stage: Stage) -> StageTables:
        """Where a stage keeps its rows."""
        return self.table.tables(stage)

    def use(self, stage: Stage) -> None:
        """Say that a stage's temporary tables are about to be filled."""
        self.scratch.use(self.table.id, [stage.index])

    def has_changed(self, index: int) -> bool:
        """Whether this refresh has changed the rows of an earlier stage."""
        return self.leaves.stages[index].changed > 0

    def load_changes(self, stage: Stage) -> Loaded:
        """Bring the delta of a stage's branches into its load table."""
        who = [self.leaves.who_updates(branch) for branch in stage.branches]
        if stays_in_postgres(stage, who):
            return _amount(self._load_leaves(stage))
        return self._load_branches(stage, who, changes=True)

    def load_everything(self, stage: Stage) -> None:
        """Bring all rows of a stage's branches into its load table."""
        who = [self.leaves.who_builds(branch) for branch in stage.branches]
        self._load_branches(stage, who, changes=False)

    def _load_branches(self, stage: Stage, who: Sequence[Evaluator], *, changes: bool) -> Loaded:
        """Each branch by whoever evaluates it; those that Spark joins are one plan."""
        adding = adds_up(stage, changes)
        loaded = False
        rest = []
        for number, each in enumerate(who):
            branch = LargeBranch(stage, number, self.leaves, changes, adding)
            if each == "here":
                loaded |= self._load_here(branch)
            elif each == "slices":
                loaded |= self._load_slices(branch)
            elif (files := self._files(branch, each)) is not None:
                loaded |= self._load_files(branch, files)
            else:
                rest.append(number)
        with self.steps("read"):
            work = (read_changes if changes else read_everything)(stage, self.leaves, rest)
        rest_loaded = self._load(stage, work, adding)
        return "many" if loaded else rest_loaded

    def _load_here(self, branch: LargeBranch) -> bool:
        """A branch that the refresh transaction joins itself."""
        names, tables = branch.schema.names, self.tables(branch.stage)
        self.scratch.use_for_many(self.table.id, branch.stage.index)
        with ExitStack() as until_loaded, self.steps("read"):
            if branch.changes:
                prefix = f"{self.table.id}_{branch.stage.index}_{branch.number}"
                changes = copied_changes(self.owner, prefix, branch.branch, branch.offers())
                branch.copies = until_loaded.enter_context(changes)
            loaded = sum(load_query(self.owner, branch.stage, tables, query, names) for query in branch.queries())
            count_load(self.owner, branch.stage, tables)
        return loaded > 0

    def _load_slices(self, branch: LargeBranch) -> bool:
        """A branch that tasks let PostgreSQL join, slice by slice."""
        with self.steps("plan"):
            slices = branch.slices()
        if slices is None:
            return False
        rows = relayed_slices(self.sessions, len(slices.queries), partial(slice_rows, slices))
        return self._relay(branch.stage, branch.schema.names, rows)

    def _files(self, branch: LargeBranch, who: Evaluator) -> list[FileSlices] | None:
        """A branch that tasks let DuckDB compute, if they may and it can."""
        if who != "spark":
            return None
        with self.steps("plan"):
            return file_branch(branch.stage, branch.number, self.leaves, changes=branch.changes, adds_up=branch.adds_up)

    def _load_files(self, branch: LargeBranch, parts: list[FileSlices]) -> bool:
        if not parts:
            return False
        names = parts[0].schema.names
        if len(parts) == 1 and branch.adds_up and self._has_few_groups(branch.stage, parts[0]):
            rows = relayed_slices(self.sessions, len(parts[0].shares), partial(share_rows, parts[0]))
            parts[0].count(self.sessions.meter)
            return self._relay(branch.stage, names, rows)
        with self.steps("plan"):
            frame = files_frame(self.sessions, parts)
            if branch.adds_up:
                frame = add_up(branch.stage, frame, names)
        return self._relay(branch.stage, names, relayed(frame, self.sessions.meter))

    def _has_few_groups(self, stage: Stage, slices: FileSlices) -> bool:
        """Whether PostgreSQL may add up what tasks found, because a stream table has been small so far."""
        if not self.table.is_last(stage):
            return False
        size = self.owner.conn.execute("SELECT pg_relation_size(%s::regclass)", (self.tables(stage).output,)).fetchone()
        assert size is not None
        return 0 < int(size[0]) / _ROW_BYTES * len(slices.shares) <= _FEW_ROWS

    def _load_leaves(self, stage: Stage) -> int:
        """Nothing to join: what PostgreSQL reads is what it would be given back. How many rows."""
        total = 0
        with self.steps("read"):
            for number, branch in enumerate(stage.branches):
                leaf = branch.leaves[0]
                query = self.leaves.delta_query(leaf)
                if query is not None:
                    loaded = load_leaf(self.owner, stage, self.tables(stage), number, query)
                    self.leaves.count(leaf, loaded)
                    total += loaded
        return total

    def _load(self, stage: Stage, work: list[Work], adds_up: bool) -> Loaded:
        if not work:
            return "nothing"
        names = load_names(stage, {w.number for w in work})
        if is_large(self.sessions, work):
            with self.steps("plan"):
                frame = terms_frame(self.sessions, stage, work, self.leaves, adds_up=adds_up)
            return "many" if self._relay(stage, names, relayed(frame, self.sessions.meter)) else "nothing"
        with self.steps("plan"):
            evaluate = SmallTerms(stage, work).plan(self.sessions, Owner(self.table.id, self.table.fingerprint))
        with self.steps("spark"):
            rows = evaluate()
        self.sessions.meter.driver(rows.num_rows)
        if not rows.num_rows:
            return "nothing"
        with self.steps("load"):
            load(self.owner, stage, self.tables(stage), names, table_as_csv(rows))
        return _amount(rows.num_rows)

    def _relay(self, stage: Stage, names: list[str], rows: AbstractContextManager[Relay]) -> bool:
        """Rows of any number: the driver passes them on, and holds a few megabytes."""
        with ExitStack() as until_loaded:
            with self.steps("spark"):
                relay = until_loaded.enter_context(rows)
            if relay.is_empty:
                return False
            self.scratch.use_for_many(self.table.id, stage.index)
            with self.steps("load"):
                load(self.owner, stage, self.tables(stage), names, relay.chunks)
                count_load(self.owner, stage, self.tables(stage))
        return True


def adds_up(stage: Stage, changes: bool) -> bool:
    """Whether equal rows become one: from nothing nothing cancels, and rows without groups may stay apart."""
    return changes or not isinstance(stage.head, RowsHead)


def _amount(rows: int) -> Loaded:
    return "nothing" if not rows else "few" if rows < MANY else "many"
