"""A stream table as the source of another: its rows, and its change log between two of its versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runnel.model.frontier import Version, stream_table_name
from runnel.plan.stage import Leaf, Relation
from runnel.ports.rows import Frame, Restriction, Rows, Totals
from runnel.ports.source import Pending, Reading
from runnel.sources.selects import key_cost, select_delta, select_rows
from runnel.sources.slices import WholeTables
from runnel.sources.statements import log_buffer, textual_columns


@dataclass
class UpstreamTable:
    """A `Source` over a stream table: its version counts its refreshes that changed something."""

    reading: Reading
    relation: Relation
    pgt_id: int
    whole: WholeTables
    _moved: bool = False

    @property
    def name(self) -> str:
        """Its name in frontiers."""
        return stream_table_name(self.pgt_id)

    def head(self) -> Version:
        """Its version now: it may have been refreshed a moment ago in the same transaction."""
        return self.reading.versions.get(self.pgt_id, 0)

    def pending(self, since: Version | None) -> Pending:
        """Whether it has moved; its log would have to be counted to know how far."""
        self._moved = since is None or self.head() != since
        return Pending(moved=self._moved)

    def delta(self, leaf: Leaf, since: Version | None) -> Rows | None:
        """What its log says, and what the clock moved."""
        if not (self._moved or leaf.clock_filters):
            return None
        columns = self.relation.columns
        used = {c.name: position for position, c in enumerate(columns) if c.name in leaf.uses}
        buffer = log_buffer(
            self.pgt_id, used, int(since or 0), int(self.head()),
            netted=leaf.may_raise, textual=textual_columns(columns),
        )  # fmt: skip
        relation = self.relation.name.sql()
        return Rows(0, select=lambda: select_delta(self.reading, leaf, buffer, relation))

    def read(self, leaf: Leaf, restriction: Restriction | None, keys: Sequence[int] | None = None) -> Rows:
        """Its rows; tasks may read a whole one, unless this very transaction has written to it."""
        relation = self.relation.name.sql()
        narrow = Rows(0, select=lambda: select_rows(self.reading, leaf, relation, restriction, keys))
        if restriction is not None or keys is not None or self.pgt_id in self.reading.fresh:
            return narrow
        return Rows(self.whole.estimate(self.relation), narrow.select, lambda: self.whole.frame(leaf, self.relation))

    def totals(self, leaf: Leaf, wanted: Totals) -> Frame | None:
        """Each task's SELECT groups its slice, unless this very transaction has written to the table."""
        return None if self.pgt_id in self.reading.fresh else self.whole.totals(leaf, self.relation, wanted)

    def change_totals(self, leaf: Leaf, since: Version | None, wanted: Totals) -> Frame | None:  # noqa: ARG002
        """None: PostgreSQL reads logs."""
        return None

    def cost(self, leaf: Leaf, sql: str, keys: int) -> float:
        """By PostgreSQL's statistics."""
        indexed = leaf.plain_column(sql) in self.relation.indexed
        return key_cost(self.reading, leaf, self.relation.name.sql(), sql, keys, indexed=indexed)

    def lend(self) -> None:
        """PostgreSQL reads it under its own name."""

    @property
    def changes(self) -> int:
        """Not counted."""
        return 0

    def effort(self) -> Mapping[str, int]:
        """None."""
        return {}
