"""A stream table as the source of another: its rows, and its change log between two of its versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runnel.model.frontier import Version, stream_table_name
from runnel.plan.stage import Leaf, Relation
from runnel.ports.rows import Query, Restriction, Rows
from runnel.ports.source import Pending, Reading, Source
from runnel.sources.selects import key_cost, select_delta, select_rows
from runnel.sources.slices import WholeTables
from runnel.sources.statements import Buffer, log_buffer, textual_columns


@dataclass
class UpstreamTable(Source):
    """A `Source` over a stream table: its version counts its refreshes that changed something."""

    reading: Reading
    relation: Relation
    pgt_id: int
    whole: WholeTables
    _moved: bool = False
    _count: int | None = None

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

        def select(where: str = "") -> Query:
            return select_delta(
                self.reading, leaf, self._buffer(leaf, int(since or 0), where), self.relation.name.sql()
            )

        def slices(most: int) -> Sequence[Query]:
            return self.whole.buffer_slices(leaf, f"pgtrickle_changes.log_{self.pgt_id}", select, most)

        return Rows(self._logged(int(since or 0)), select=select, slices=None if self._is_fresh else slices)

    def _logged(self, since: int) -> int:
        """How many rows its log has since a version; counting ends where tasks begin."""
        if self._count is None:
            most = int(self.reading.spark.threshold) + 1
            row = self.reading.conn.execute(
                f"SELECT count(*) FROM (SELECT FROM pgtrickle_changes.log_{self.pgt_id} WHERE pgt_version > %s "
                "AND pgt_version <= %s LIMIT %s) AS l".encode(),
                (since, int(self.head()), most),
            ).fetchone()
            self._count = int(row[0]) if row else 0
        return self._count

    def _buffer(self, leaf: Leaf, since: int, where: str) -> Buffer:
        columns = self.relation.columns
        used = {c.name: position for position, c in enumerate(columns) if c.name in leaf.uses}
        return log_buffer(
            self.pgt_id, used, since, int(self.head()),
            netted=leaf.may_raise, textual=textual_columns(columns), where=where,
        )  # fmt: skip

    @property
    def _is_fresh(self) -> bool:
        """Whether this very transaction has written to it: tasks cannot see that yet."""
        return self.pgt_id in self.reading.fresh

    def read(self, leaf: Leaf, restriction: Restriction | None, keys: Sequence[int] | None = None) -> Rows:
        """Its rows; tasks may read a whole one, unless this very transaction has written to it."""
        relation = self.relation.name.sql()
        narrow = Rows(0, select=lambda: select_rows(self.reading, leaf, relation, restriction, keys))
        if restriction is not None or keys is not None:
            return narrow
        slices = None if self._is_fresh else lambda most: self.whole.slices(leaf, self.relation, most)
        return Rows(self.whole.estimate(self.relation), narrow.select, slices=slices)

    def cost(self, leaf: Leaf, sql: str, keys: int) -> float:
        """By PostgreSQL's statistics."""
        indexed = leaf.plain_column(sql) in self.relation.indexed
        return key_cost(self.reading, leaf, self.relation.name.sql(), sql, keys, indexed=indexed)
