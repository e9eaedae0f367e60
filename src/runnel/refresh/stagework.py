"""What the work on one stage needs: its tables, its leaves, the owner's rights, Spark, and the clock that times it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from runnel.apply.load import load, load_query
from runnel.apply.scratch import Scratch
from runnel.apply.tables import StageTables
from runnel.catalog.owner import AsOwner
from runnel.delta.work import Work
from runnel.plan.stage import Stage
from runnel.ports.rows import Frame
from runnel.refresh.leaves import Leaves, stays_in_postgres
from runnel.refresh.maintained import Maintained
from runnel.refresh.steps import Steps
from runnel.refresh.terms import read_changes, read_everything
from runnel.sources.arrow import printed
from runnel.spark.job import run
from runnel.spark.relay import relayed
from runnel.spark.session import Sessions
from runnel.spark.terms import is_large, load_names, terms_frame


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
        return self.leaves.stages[index].changed

    def load_changes(self, stage: Stage) -> bool:
        """Bring the delta of a stage's branches into its load table; whether there is any."""
        if stays_in_postgres(stage, self.leaves):
            return self._load_leaves(stage)
        with self.steps("read"):
            work = read_changes(stage, self.leaves)
        return self._load(stage, work)

    def load_everything(self, stage: Stage) -> None:
        """Bring all rows of a stage's branches into its load table."""
        with self.steps("read"):
            work = read_everything(stage, self.leaves)
        self._load(stage, work)

    def _load_leaves(self, stage: Stage) -> bool:
        """Nothing to join: what PostgreSQL reads is what it would be given back."""
        total = 0
        with self.steps("read"):
            for number, branch in enumerate(stage.branches):
                leaf = branch.leaves[0]
                query = self.leaves.delta_query(leaf)
                if query is not None:
                    loaded = load_query(self.owner, stage, self.tables(stage), number, query)
                    self.leaves.count(leaf, loaded)
                    total += loaded
        return total > 0

    def _load(self, stage: Stage, work: list[Work]) -> bool:
        if not work:
            return False
        with self.steps("plan"):
            frame = terms_frame(self.sessions, stage, work, self.leaves)
        names = load_names(stage, work)
        if is_large(self.sessions, work):
            return self._load_large(stage, names, frame)
        with self.steps("spark"):
            rows = run(frame)
        self.sessions.meter.small_job(rows.num_rows)
        if not rows.num_rows:
            return False
        with self.steps("load"):
            load(self.owner, stage, self.tables(stage), names, printed(rows))
        return True

    def _load_large(self, stage: Stage, names: list[str], frame: Frame) -> bool:
        """Rows of any number: the driver passes them on, and holds a few megabytes."""
        with ExitStack() as until_loaded:
            with self.steps("spark"):
                relay = until_loaded.enter_context(relayed(frame, self.sessions.meter))
            if not relay.size:
                return False
            with self.steps("load"):
                load(self.owner, stage, self.tables(stage), names, relay.chunks())
        return True
