"""The terms of a stage on Spark: join what was read, add up equal rows.

One plan per stage, whatever the number of changed leaves and branches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from runnel.delta.parts import Version
from runnel.delta.work import Side, Work
from runnel.plan.stage import Branch, Leaf, Stage, carried_name
from runnel.ports.rows import weight_name
from runnel.spark.evaluate import ZSet, evaluate
from runnel.spark.job import run
from runnel.spark.prepared import Owner, PreparedPlan
from runnel.spark.session import Sessions
from runnel.spark.shape import Shape, shape_of


class Scans(Protocol):
    """Whole leaves, read by tasks."""

    def scan(self, leaf: Leaf) -> DataFrame:
        """All rows."""

    def changes(self, leaf: Leaf) -> DataFrame:
        """All changes, with weights."""


def is_large(sessions: Sessions, work: Sequence[Work]) -> bool:
    """Whether Spark's usual machinery should do the work, in tasks: it begins with a scan, or has many rows."""
    return any(w.rows > sessions.threshold or w.by_tasks for w in work)


def load_names(stage: Stage, branches: Collection[int]) -> list[str]:
    """The columns of `terms_frame`, in order; asking Spark for them would cost a round trip."""
    carried = [carried_name(n, i) for n in sorted(branches) for i in range(len(stage.branches[n].carried))]
    return ["b", *carried, "w", *(f"s{k}" for k in range(len(stage.branches[0].sums)))]


Frames = Callable[[int, int, Side], DataFrame]
"""The rows of a leaf: by the position of the term in the work, the leaf, and what of it."""


def terms_frame(sessions: Sessions, stage: Stage, work: Sequence[Work], scans: Scans, *, adds_up: bool) -> DataFrame:
    """The stage's load rows, yet to be computed by tasks: per branch its carried columns, weight and sums.

    `adds_up`: whether equal rows become one.
    """

    def frame(position: int, leaf: int, side: Side) -> DataFrame:
        term = work[position]
        rows = term.rows_of(leaf, side)
        if isinstance(rows, pa.Table):
            return sessions.frame(rows)
        return (scans.changes if side == "delta" else scans.scan)(term.branch.leaves[leaf])

    return _load_rows(stage, work, frame, adds_up)


@dataclass(frozen=True, slots=True)
class SmallTerms:
    """A stage's load rows where few rows are read: by a plan that is prepared once per shape, on the driver."""

    stage: Stage
    work: Sequence[Work]

    def plan(self, sessions: Sessions, owner: Owner) -> Callable[[], pa.Table]:
        """What computes the rows; equal rows become one."""
        shape, tables = shape_of(self.stage, self.work)
        schemas = tuple(table.schema for table in tables)
        # Parts without rows stay: whether there are any is no reason for another plan.
        work = [replace(w, term=w.whole) for w in self.work]

        def build(frames: Sequence[DataFrame]) -> DataFrame:
            def frame(position: int, leaf: int, side: Side) -> DataFrame:
                return frames[shape.slot[work[position].number, work[position].term.leaf, leaf, side]]

            return _load_rows(self.stage, work, frame, adds_up=True)

        others = sessions.prepared.instead_of(owner, shape, schemas)
        larger_ones = [(other, theirs) for other, theirs in others if isinstance(other, Shape)]
        for larger, theirs in sorted(larger_ones, key=lambda other: len(other[0].terms)):
            inputs = larger.inputs_for(shape, tables, theirs)
            known = None if inputs is None else sessions.prepared.find(owner, larger, theirs)
            if inputs is not None and known is not None:
                sessions.meter.prepared()
                return partial(self._run_larger, known, inputs)
        plan = sessions.prepared.find(owner, shape, schemas, build)
        if plan is not None:
            sessions.meter.prepared()
            return partial(plan.run, tables)
        sessions.meter.one_task_jobs()
        return partial(run, build([sessions.small_frame(table) for table in tables]))

    def _run_larger(self, plan: PreparedPlan, tables: Sequence[pa.Table]) -> pa.Table:
        """Other branches have no rows, and their columns none but NULLs."""
        return plan.run(tables).select(load_names(self.stage, {w.number for w in self.work}))


def _load_rows(stage: Stage, work: Sequence[Work], frame: Frames, adds_up: bool) -> DataFrame:
    parts = [
        _project(w.branch, w.number, rows, sign)
        for position, w in enumerate(work)
        for sign, rows in _parts(w, partial(frame, position))
    ]
    total = reduce(lambda x, y: x.unionByName(y, allowMissingColumns=True), parts)
    names = load_names(stage, {w.number for w in work})
    return add_up(stage, total, names) if adds_up else total.select(*names)


def _parts(work: Work, frame: Callable[[int, Side], DataFrame]) -> Iterator[tuple[int, ZSet]]:
    """Each part of a term with its sign."""
    branch = work.branch
    cache: dict[tuple[int, Version], ZSet] = {}

    def zset(leaf: int, version: Version) -> ZSet:
        if (leaf, version) not in cache:
            cache[leaf, version] = build(leaf, version)
        return cache[leaf, version]

    def build(leaf: int, version: Version) -> ZSet:
        columns = tuple(branch.leaves[leaf].column(i) for i in range(len(branch.leaves[leaf].computed)))
        match version:
            case "delta":
                return ZSet(frame(leaf, "delta"), columns, (weight_name(leaf),))
            case "after":
                return ZSet(frame(leaf, "after"), columns)
            case "before":
                return zset(leaf, "after").union(zset(leaf, "delta").negated())
            case "after_keys":
                return _padded_keys(frame(leaf, "after"), zset(leaf, "delta"), leaf)
            case "before_keys":
                # Only the keys are compared, so the rest of the delta's columns may be there or not.
                return zset(leaf, "after_keys").union(zset(leaf, "delta").negated())

    for part in work.term.parts:
        leaves = {leaf: zset(leaf, version) for leaf, version in part.versions.items()}
        yield part.sign, evaluate(part.tree, leaves, work.term.leaf)


def _padded_keys(keys: DataFrame, like: ZSet, leaf: int) -> ZSet:
    """Keys with the leaf's other columns as NULLs, so that all parts of a term have the same columns."""
    types = dict(like.rows.dtypes)
    items = [c if c in keys.columns else f"CAST(NULL AS {types[c]}) AS {c}" for c in like.columns]
    return ZSet(keys.selectExpr(*items, weight_name(leaf)), like.columns, (weight_name(leaf),))


def _project(branch: Branch, number: int, rows: ZSet, sign: int) -> DataFrame:
    """Carried columns under the branch's names, and the weighted values to add up."""
    weight = rows.weight if sign == 1 else f"-({rows.weight})"
    carried = [
        f"{branch.leaves[leaf].column(index)} AS {carried_name(number, i)}"
        for i, (leaf, index) in enumerate(branch.carried)
    ]
    sums = []
    for k, (leaf, index) in enumerate(branch.sums):
        name = branch.leaves[leaf].column(index)
        is_decimal = branch.leaves[leaf].computed[index].form.kind == "decimal"
        factor = f"CAST({weight} AS DECIMAL(10, 0))" if is_decimal else f"({weight})"
        # A product of decimals costs more than all the rest of a row, and most rows of a table count once.
        once = not rows.weights and sign == 1
        sums.append(f"{name} AS s{k}" if once else f"{factor} * {name} AS s{k}")
    return rows.rows.selectExpr(f"{number}S AS b", *carried, f"{weight} AS w", *sums)


def add_up(stage: Stage, rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Load rows with equal ones as one; those that add up to nothing are left out."""
    added = ["w", *(f"s{k}" for k in range(len(stage.branches[0].sums)))]
    carried = [name for name in names if name not in added]
    totals = [F.expr(f"sum({c}) AS {c}") for c in added]
    return rows.groupBy(*carried).agg(*totals).where(" OR ".join(f"{c} != 0" for c in added))
