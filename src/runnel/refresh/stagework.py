"""What the work on one stage needs: its tables, its leaves, the owner's rights, Spark, and the clock that times it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from runnel.apply.load import count_load, load, load_leaf, load_query
from runnel.apply.scratch import Scratch
from runnel.apply.tables import StageTables
from runnel.catalog.owner import AsOwner
from runnel.delta.work import Work
from runnel.plan.stage import RowsHead, Stage
from runnel.refresh.large import LargeBranch
from runnel.refresh.leaves import Evaluator, Leaves, stays_in_postgres
from runnel.refresh.maintained import Maintained
from runnel.refresh.steps import Steps
from runnel.refresh.terms import read_changes, read_everything
from runnel.sources.arrow import table_as_csv
from runnel.spark.prepared import Owner
from runnel.spark.relay import Relay, relayed, relayed_slices
from runnel.spark.session import Sessions
from runnel.spark.terms import SmallTerms, is_large, load_names, terms_frame


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

    def load_changes(self, stage: Stage) -> bool:
        """Bring the delta of a stage's branches into its load table; whether there is any."""
        who = [self.leaves.who_updates(branch) for branch in stage.branches]
        if stays_in_postgres(stage, who):
            return self._load_leaves(stage)
        return self._load_branches(stage, who, changes=True)

    def load_everything(self, stage: Stage) -> None:
        """Bring all rows of a stage's branches into its load table."""
        who = [self.leaves.who_builds(branch) for branch in stage.branches]
        self._load_branches(stage, who, changes=False)

    def _load_branches(self, stage: Stage, who: Sequence[Evaluator], *, changes: bool) -> bool:
        """Each branch by whoever evaluates it; those that Spark joins are one plan."""
        # From nothing there is nothing to cancel, and rows without groups need not be added up.
        adds_up = changes or not isinstance(stage.head, RowsHead)
        loaded = False
        rest = []
        for number, each in enumerate(who):
            branch = LargeBranch(stage, number, self.leaves, changes, adds_up)
            if each == "here":
                loaded |= self._load_here(branch)
            elif each == "slices":
                loaded |= self._load_slices(branch)
            else:
                rest.append(number)
        with self.steps("read"):
            work = (read_changes if changes else read_everything)(stage, self.leaves, rest)
        return self._load(stage, work, adds_up) or loaded

    def _load_here(self, branch: LargeBranch) -> bool:
        """A branch that the refresh transaction joins itself."""
        owner = self.owner.under({**self.owner.settings, **branch.settings})
        names, tables = branch.schema.names, self.tables(branch.stage)
        with self.steps("read"):
            owner.pin()
            loaded = sum(load_query(owner, branch.stage, tables, query, names) for query in branch.queries())
            for name in branch.settings:
                owner.conn.execute(f"RESET {name}".encode())
            count_load(owner, branch.stage, tables)
        return loaded > 0

    def _load_slices(self, branch: LargeBranch) -> bool:
        """A branch that tasks let PostgreSQL join, slice by slice."""
        with self.steps("plan"):
            slices = branch.slices()
        if slices is None:
            return False
        return self._relay(branch.stage, branch.schema.names, relayed_slices(self.sessions, slices))

    def _load_leaves(self, stage: Stage) -> bool:
        """Nothing to join: what PostgreSQL reads is what it would be given back."""
        total = 0
        with self.steps("read"):
            for number, branch in enumerate(stage.branches):
                leaf = branch.leaves[0]
                query = self.leaves.delta_query(leaf)
                if query is not None:
                    loaded = load_leaf(self.owner, stage, self.tables(stage), number, query)
                    self.leaves.count(leaf, loaded)
                    total += loaded
        return total > 0

    def _load(self, stage: Stage, work: list[Work], adds_up: bool) -> bool:
        if not work:
            return False
        names = load_names(stage, {w.number for w in work})
        if is_large(self.sessions, work):
            with self.steps("plan"):
                frame = terms_frame(self.sessions, stage, work, self.leaves, adds_up=adds_up)
            return self._relay(stage, names, relayed(frame, self.sessions.meter))
        with self.steps("plan"):
            evaluate = SmallTerms(stage, work).plan(self.sessions, Owner(self.table.id, self.table.fingerprint))
        with self.steps("spark"):
            rows = evaluate()
        self.sessions.meter.driver(rows.num_rows)
        if not rows.num_rows:
            return False
        with self.steps("load"):
            load(self.owner, stage, self.tables(stage), names, table_as_csv(rows))
        return True

    def _relay(self, stage: Stage, names: list[str], rows: AbstractContextManager[Relay]) -> bool:
        """Rows of any number: the driver passes them on, and holds a few megabytes."""
        with ExitStack() as until_loaded:
            with self.steps("spark"):
                relay = until_loaded.enter_context(rows)
            if not relay.size:
                return False
            with self.steps("load"):
                load(self.owner, stage, self.tables(stage), names, relay.chunks)
                count_load(self.owner, stage, self.tables(stage))
        return True
