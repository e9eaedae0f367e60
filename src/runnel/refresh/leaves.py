"""The leaves of a stream table during one refresh: whose they are, and who evaluates them.

A source offers rows as a SELECT for PostgreSQL, as a DataFrame for Spark's tasks, or as both, with an estimate
(`runnel.ports.rows.Rows`). Which of them is taken is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

import pyarrow as pa

from runnel.delta.restrict import Many
from runnel.model.frontier import Frontier
from runnel.plan.stage import Branch, Constant, Leaf, LeafNode, Relation, Stage, StageRef
from runnel.ports.rows import Frame, Query, Restriction, Rows, leaf_schema
from runnel.ports.source import Reading, Source
from runnel.refresh.cuts import planned_rows
from runnel.sources.arrow import read_arrow
from runnel.sources.constant import ConstantRows
from runnel.sources.slices import sliced_frame
from runnel.sources.stage.source import HiddenStage

SLICES_PER_TASK = 4
"""Of a table that tasks read: those that end early take another."""

SHARED_ROWS = 10_000
"""So many changes at most are kept for other stream tables of the same transaction."""

FOLLOWED = 20
"""In tables with so many times as many rows as changed, indexes find what the changes meet sooner than slices do."""

Evaluator = Literal["driver", "spark", "slices", "here"]
"""Who joins the leaves of a branch.

| | |
|---|---|
| driver | few rows: PostgreSQL reads them, the driver has Spark's operators join them |
| spark  | tasks read each leaf, Spark joins |
| slices | all rows are PostgreSQL's: tasks let it join slice by slice, so that only results travel, and Spark adds up |
| here   | the same, but the refresh transaction joins: it alone sees some rows, or indexes find the few that matter |
"""


def by_tasks(rows: Rows, threshold: int) -> bool:
    """Whether Spark's tasks read rows, instead of PostgreSQL handing them to the driver."""
    reads = rows.frame is not None or rows.slices is not None
    return reads and (rows.select is None or rows.estimate > threshold)


def evaluator(leaves: Sequence[Rows], threshold: int, *, joins_in_spark: bool) -> Evaluator:
    """Who joins these inputs, all of which are read whole."""
    if all(rows.estimate <= threshold for rows in leaves):
        return "driver"
    if any(rows.copied for rows in leaves):
        return "spark"
    if any(rows.slices is None for rows in leaves):
        return "here"
    return "spark" if joins_in_spark and len(leaves) > 1 else "slices"


def stays_in_postgres(stage: Stage, who: Sequence[Evaluator]) -> bool:
    """Whether changes need no Spark: few, and nothing to join."""
    return all(e == "driver" and isinstance(b.tree, LeafNode) for e, b in zip(who, stage.branches, strict=True))


@dataclass
class Leaves:
    """The way from a leaf to its rows."""

    reading: Reading
    frontier: Frontier
    relations: Mapping[int, Source]
    """Opened sources, by oid."""
    stages: Sequence[HiddenStage]
    """By the number of the stage."""
    rows_read: dict[str, int | None] = field(default_factory=dict)
    """Per source, changes included; None for a source that tasks scanned, whose rows nobody counts."""

    def source(self, leaf: Leaf) -> Source:
        """Where a leaf's rows come from."""
        match leaf.source:
            case StageRef(index=index):
                return self.stages[index]
            case Constant() as constant:
                return ConstantRows(self.reading, constant)
            case Relation(oid=oid):
                return self.relations[oid]

    def delta_query(self, leaf: Leaf) -> Query | None:
        """The SELECT of what changed in a leaf since the frontier; None when nothing did."""
        rows = self.offered(leaf)
        if rows is None:
            return None
        assert rows.select is not None, "what tasks need not read PostgreSQL can"
        return rows.select()

    def delta(self, leaf: Leaf) -> pa.Table | Many:
        """What changed in a leaf since the frontier; `Many` when tasks read it (`changes`)."""
        rows = self.offered(leaf)
        if rows is not None and by_tasks(rows, self.threshold):
            self.count(leaf, None)
            return Many(rows.estimate)
        schema = leaf_schema(leaf, weight=True)
        if rows is None:
            table = schema.empty_table()
        else:
            assert rows.select is not None
            table = self._read_once(leaf, rows.select(), schema)
        self.reading.spark.meter.driver(table.num_rows)
        self.count(leaf, table.num_rows)
        return table

    def _read_once(self, leaf: Leaf, query: Query, schema: pa.Schema) -> pa.Table:
        """Changes of a relation; those that another stream table of the transaction has read alike are not read again.

        They are the same rows: the transaction has one snapshot, and what the SELECT means depends on nothing but its
        text, its values, whose rights it has, and the settings.
        """
        reading = self.reading
        if not isinstance(leaf.source, Relation):
            return read_arrow(reading.as_owner, query, schema)
        key = reading.role, frozenset(reading.settings.items()), query.text, repr(query.params), schema
        if (known := reading.changes.get(key)) is None:
            known = read_arrow(reading.as_owner, query, schema)
            if known.num_rows <= SHARED_ROWS:
                reading.changes[key] = known
        return known

    def changes(self, leaf: Leaf) -> Frame:
        """What changed in a leaf since the frontier, read by tasks."""
        rows = self.offered(leaf)
        assert rows is not None
        return self._frame(rows, leaf_schema(leaf, weight=True))

    def who_builds(self, branch: Branch) -> Evaluator:
        """Who joins a branch when it is computed from nothing."""
        return self._who([self.source(leaf).read(leaf, None) for leaf in branch.leaves])

    def who_updates(self, branch: Branch) -> Evaluator:
        """Who joins what changed in a branch with the rest of it."""
        deltas = [rows for leaf in branch.leaves if (rows := self.offered(leaf)) is not None]
        if all(rows.estimate <= self.threshold for rows in deltas):
            return "driver"
        wholes = [self.source(leaf).read(leaf, None) for leaf in branch.leaves]
        who = self._who([*deltas, *wholes])
        followed = sum(rows.estimate for rows in deltas) * FOLLOWED <= sum(rows.estimate for rows in wholes)
        return "here" if who == "slices" and followed and len(wholes) > 1 else who

    def _who(self, rows: Sequence[Rows]) -> Evaluator:
        return evaluator(rows, self.threshold, joins_in_spark=self.reading.spark.joins)

    def _frame(self, rows: Rows, schema: pa.Schema) -> Frame:
        if rows.frame is not None:
            return rows.frame()
        assert rows.slices is not None
        return sliced_frame(self.reading, rows.slices(SLICES_PER_TASK * self.reading.spark.parallelism), schema)

    def waiting(self, leaf: Leaf) -> float:
        """At most, or about, how many changed rows wait."""
        rows = self.offered(leaf)
        return 0 if rows is None else rows.estimate

    @property
    def threshold(self) -> int:
        """Above how many rows tasks do the work."""
        return int(self.reading.spark.threshold)

    def offered(self, leaf: Leaf) -> Rows | None:
        """What a source offers of the changes of a leaf since the frontier."""
        source = self.source(leaf)
        return source.delta(leaf, self.frontier.versions.get(source.name))

    def after(self, leaf: Leaf, restriction: Restriction | None, *, few: bool = False) -> pa.Table | None:
        """A leaf now, on the driver; None when tasks read it (`scan`). `few`: of a large one few rows are expected."""
        if restriction is not None and restriction.is_empty:
            return leaf_schema(leaf, weight=False).empty_table()
        rows = self.source(leaf).read(leaf, restriction)
        if restriction is not None and restriction.between:
            # A value that moves far has most rows between: those are for tasks.
            found = self._at_most(leaf, rows, self.threshold)
            if found is None:
                return self.after(leaf, None)
            self.count(leaf, found.num_rows)
            return found
        if by_tasks(rows, self.threshold):
            found = self._at_most(leaf, rows, self.threshold) if few else None
            self.count(leaf, None if found is None else found.num_rows)
            return found
        return self._read(leaf, rows, None)

    def _at_most(self, leaf: Leaf, rows: Rows, most: int) -> pa.Table | None:
        """A leaf on the driver; None when it has more rows, whatever was expected."""
        assert rows.select is not None
        query = rows.select()
        some = replace(query, text=f"SELECT * FROM ({query.text}) AS few LIMIT {most + 1}")
        table = read_arrow(self.reading.as_owner, some, leaf_schema(leaf, weight=False))
        self.reading.spark.meter.driver(table.num_rows)
        return table if table.num_rows <= most else None

    def rows(self, leaf: Leaf) -> float:
        """About how many rows of a leaf pass its filters, if the driver may read them; to ask is a round trip."""
        rows = self.source(leaf).read(leaf, None)
        if rows.select is None or rows.copied:
            return inf
        expected = planned_rows(self.reading.as_owner, rows.select())
        return expected if expected <= self.threshold else inf

    def keys(self, leaf: Leaf, restriction: Restriction | None, columns: tuple[int, ...]) -> pa.Table:
        """The keys of a leaf with their multiplicities."""
        if restriction is not None and restriction.is_empty:
            return leaf_schema(leaf, columns, weight=True).empty_table()
        return self._read(leaf, self.source(leaf).read(leaf, restriction, columns), columns)

    def _read(self, leaf: Leaf, rows: Rows, columns: tuple[int, ...] | None) -> pa.Table:
        assert rows.select is not None
        schema = leaf_schema(leaf, columns, weight=columns is not None)
        table = read_arrow(self.reading.as_owner, rows.select(), schema)
        self.reading.spark.meter.driver(table.num_rows)
        self.count(leaf, table.num_rows)
        return table

    def scan(self, leaf: Leaf) -> Frame:
        """The whole leaf, read by tasks."""
        return self._frame(self.source(leaf).read(leaf, None), leaf_schema(leaf, weight=False))

    def cost(self, leaf: Leaf, sql: str, keys: int) -> float:
        """About how many rows a read narrowed by so many keys of an expression touches."""
        return self.source(leaf).cost(leaf, sql, keys)

    def count(self, leaf: Leaf, rows: int | None) -> None:
        """Add rows that a leaf has read."""
        match leaf.source:
            case StageRef(index=index):
                name = f"stage {index}"
            case Relation(name=relation):
                name = str(relation)
            case Constant():
                return
        known = self.rows_read.get(name, 0)
        self.rows_read[name] = None if rows is None or known is None else known + rows
