"""A hidden stage as the source of later stages: its table, and the delta that it has just produced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runnel.model.frontier import POSTGRES, Version
from runnel.plan.stage import Leaf, Stage
from runnel.ports.rows import Restriction, Rows
from runnel.ports.source import Pending, Reading, Source
from runnel.sources.selects import key_cost, select_delta, select_rows
from runnel.sources.statements import stage_buffer


@dataclass
class HiddenStage(Source):
    """A `Source` over an earlier stage of the same stream table.

    Its changes belong to the running refresh: they are in its `delta` table once the stage has been worked on.
    """

    reading: Reading
    stage: Stage
    output: str
    delta_table: str
    changed: int = 0
    """How many rows this refresh has put into its delta."""
    filled: int = 0
    """How many rows this refresh has built it from nothing with."""
    name: str = POSTGRES

    def head(self) -> Version:
        """The version that this refresh reads."""
        return self.reading.snapshot

    def pending(self, since: Version | None) -> Pending:  # noqa: ARG002
        """Nothing waits: what changes in it comes from the sources of the stage itself."""
        return Pending()

    def delta(self, leaf: Leaf, since: Version | None) -> Rows | None:  # noqa: ARG002
        """What the stage has just produced, and what the clock moved."""
        if not (self.changed or leaf.clock_filters):
            return None
        buffer = stage_buffer(self.delta_table, [c.name for c in leaf.source.columns])
        return Rows(self.changed, select=lambda: select_delta(self.reading, leaf, buffer, self.output))

    def read(self, leaf: Leaf, restriction: Restriction | None, keys: Sequence[int] | None = None) -> Rows:
        """Its rows; tasks cannot see what this transaction wrote, so only PostgreSQL reads them."""
        known = self.filled if restriction is None and keys is None else 0
        return Rows(known, select=lambda: select_rows(self.reading, leaf, self.output, restriction, keys))

    def cost(self, leaf: Leaf, sql: str, keys: int) -> float:
        """By the statistics of its table, which is indexed by the columns that later stages join by."""
        indexed = leaf.plain_column(sql) in self.stage.indexed
        return key_cost(self.reading, leaf, self.output, sql, keys, indexed=indexed)
