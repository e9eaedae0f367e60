"""Evaluate a delta tree over DataFrames.

A Z-set is a DataFrame and the names of the columns whose product is a row's weight (none: every row counts once).
Keeping the factors apart makes a join a single operation; they are multiplied where rows are unioned or added up.
Expressions are given as Spark SQL text: each call into the JVM costs about as much as planning a small operator.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from runnel.delta.parts import Anti, DeltaTree, leaf_set
from runnel.plan.stage import Equi, Inner, LeafNode, Outer, Residual

_names = itertools.count()


@dataclass(frozen=True, slots=True)
class ZSet:
    """Rows with weights."""

    rows: DataFrame
    columns: tuple[str, ...]
    """The value columns."""
    weights: tuple[str, ...] = ()

    @property
    def weight(self) -> str:
        """SQL of a row's weight."""
        return " * ".join(self.weights) or "1L"

    def union(self, other: ZSet) -> ZSet:
        """Both together, each row with its weight in one column."""
        name = f"w_{next(_names)}"
        left = self.rows.selectExpr(*self.columns, f"{self.weight} AS {name}")
        right = other.rows.selectExpr(*self.columns, f"{other.weight} AS {name}")
        return ZSet(left.union(right), self.columns, (name,))

    def negated(self) -> ZSet:
        """The same rows with opposite weights."""
        name = f"w_{next(_names)}"
        return ZSet(self.rows.selectExpr(*self.columns, f"-({self.weight}) AS {name}"), self.columns, (name,))


def evaluate(tree: DeltaTree, leaves: Mapping[int, ZSet], start: int) -> ZSet:
    """The tree's rows; inner joins are ordered outwards from the leaf `start`."""
    match tree:
        case LeafNode(leaf):
            return leaves[leaf]
        case Inner(children=children, equi=equi, residual=residual):
            return _inner(children, equi, residual, leaves, start)
        case Outer(kind=kind, left=left, right=right, equi=equi, residual=residual):
            a, b = evaluate(left, leaves, start), evaluate(right, leaves, start)
            rows = _join(a, b, equi, residual).union(_anti(a, b, equi, residual))
            return rows.union(_anti(b, a, equi, residual)) if kind == "full" else rows
        case Anti(left=left, right=right, equi=equi, residual=residual):
            return _anti(evaluate(left, leaves, start), evaluate(right, leaves, start), equi, residual)


def _inner(
    children: Sequence[DeltaTree],
    equi: Sequence[Equi],
    residual: Sequence[Residual],
    leaves: Mapping[int, ZSet],
    start: int,
) -> ZSet:
    waiting = list(children)
    first = next((c for c in waiting if start in leaf_set(c)), waiting[0])
    waiting.remove(first)
    result, have = evaluate(first, leaves, start), set(leaf_set(first))
    pending_equi, pending = list(equi), list(residual)
    while waiting:
        # Follow the join keys outwards; a cross product only when nothing connects.
        following = next((c for c in waiting if _connected(c, have, pending_equi)), waiting[0])
        waiting.remove(following)
        have |= leaf_set(following)
        usable = [e for e in pending_equi if {e.left_leaf, e.right_leaf} <= have]
        ready = [r for r in pending if r.leaves <= have]
        pending_equi = [e for e in pending_equi if e not in usable]
        pending = [r for r in pending if r not in ready]
        result = _join(result, evaluate(following, leaves, start), usable, ready)
    condition = _condition(pending_equi, pending)
    return ZSet(result.rows.where(condition), result.columns, result.weights) if condition else result


def _connected(child: DeltaTree, have: set[int], equi: Iterable[Equi]) -> bool:
    side = leaf_set(child)
    return any(
        (e.left_leaf in have and e.right_leaf in side) or (e.right_leaf in have and e.left_leaf in side) for e in equi
    )


def _condition(equi: Sequence[Equi], residual: Sequence[Residual]) -> str:
    parts = [f"l{e.left_leaf}_{e.left} {'<=>' if e.null_safe else '='} l{e.right_leaf}_{e.right}" for e in equi] + [
        r.sql for r in residual
    ]
    return " AND ".join(parts)


def _join(left: ZSet, right: ZSet, equi: Sequence[Equi], residual: Sequence[Residual]) -> ZSet:
    condition = _condition(equi, residual)
    rows = left.rows.join(right.rows, F.expr(condition)) if condition else left.rows.crossJoin(right.rows)
    return ZSet(rows, left.columns + right.columns, left.weights + right.weights)


def _anti(left: ZSet, right: ZSet, equi: Sequence[Equi], residual: Sequence[Residual]) -> ZSet:
    """Rows of left without a match, padded: weights on the right are added first, so what is gone does not match."""
    ends = {f"l{e.left_leaf}_{e.left}" for e in equi} | {f"l{e.right_leaf}_{e.right}" for e in equi}
    compared = [c for c in right.columns if residual or c in ends]
    types = dict(right.rows.dtypes)
    present = right.rows.select(*compared)
    if right.weights:
        counted = right.rows.selectExpr(*compared, f"{right.weight} AS _n").groupBy(*compared)
        present = counted.agg(F.sum("_n").alias("_n")).where("_n > 0").select(*compared)
    condition = _condition(equi, residual) or "true"
    alone = left.rows.join(present, F.expr(condition), "left_anti")
    padding = [f"CAST(NULL AS {types[c]}) AS {c}" for c in right.columns]
    return ZSet(alone.selectExpr("*", *padding), left.columns + right.columns, left.weights)
