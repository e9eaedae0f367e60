"""Evaluate a delta tree over DataFrames.

Every frame is a Z-set: the leaf's computed columns and a weight `w`. A join multiplies weights; a union adds
them by standing side by side until somebody groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from runnel.delta.parts import Anti, DeltaTree, leaf_set
from runnel.plan.stage import Equi, Inner, LeafNode, Outer, Residual

WEIGHT = "w"


def evaluate(tree: DeltaTree, frames: Mapping[int, DataFrame], start: int) -> DataFrame:
    """The tree's rows as a Z-set; inner joins are ordered outwards from the leaf `start`."""
    match tree:
        case LeafNode(leaf):
            return frames[leaf]
        case Inner(children=children, equi=equi, residual=residual):
            return _inner(children, equi, residual, frames, start)
        case Outer(kind=kind, left=left, right=right, equi=equi, residual=residual):
            a, b = evaluate(left, frames, start), evaluate(right, frames, start)
            rows = _join(a, b, equi, residual).unionByName(_anti(a, b, equi, residual))
            return rows.unionByName(_anti(b, a, equi, residual)) if kind == "full" else rows
        case Anti(left=left, right=right, equi=equi, residual=residual):
            return _anti(evaluate(left, frames, start), evaluate(right, frames, start), equi, residual)


def _inner(
    children: Sequence[DeltaTree],
    equi: Sequence[Equi],
    residual: Sequence[Residual],
    frames: Mapping[int, DataFrame],
    start: int,
) -> DataFrame:
    waiting = list(children)
    first = next((c for c in waiting if start in leaf_set(c)), waiting[0])
    waiting.remove(first)
    result, have = evaluate(first, frames, start), set(leaf_set(first))
    pending_equi, pending = list(equi), list(residual)
    while waiting:
        # Follow the join keys outwards; a cross product only when nothing connects.
        following = next((c for c in waiting if _connected(c, have, pending_equi)), waiting[0])
        waiting.remove(following)
        side = leaf_set(following)
        have |= side
        usable = [e for e in pending_equi if {e.left_leaf, e.right_leaf} <= have]
        ready = [r for r in pending if r.leaves <= have]
        pending_equi = [e for e in pending_equi if e not in usable]
        pending = [r for r in pending if r not in ready]
        result = _join(result, evaluate(following, frames, start), usable, ready)
    for condition in pending:
        result = result.where(F.expr(condition.sql))
    for key in pending_equi:
        result = result.where(_equality(key))
    return result


def _connected(child: DeltaTree, have: set[int], equi: Iterable[Equi]) -> bool:
    side = leaf_set(child)
    return any(
        (e.left_leaf in have and e.right_leaf in side) or (e.right_leaf in have and e.left_leaf in side) for e in equi
    )


def _equality(key: Equi) -> Column:
    left, right = F.col(f"l{key.left_leaf}_{key.left}"), F.col(f"l{key.right_leaf}_{key.right}")
    return left.eqNullSafe(right) if key.null_safe else left == right


def _condition(equi: Sequence[Equi], residual: Sequence[Residual]) -> Column | None:
    parts = [_equality(e) for e in equi] + [F.expr(r.sql) for r in residual]
    return reduce(lambda a, b: a & b, parts) if parts else None


def _join(left: DataFrame, right: DataFrame, equi: Sequence[Equi], residual: Sequence[Residual]) -> DataFrame:
    other = right.withColumnRenamed(WEIGHT, "_w")
    condition = _condition(equi, residual)
    joined = left.crossJoin(other) if condition is None else left.join(other, condition, "inner")
    columns = [c for c in joined.columns if c not in (WEIGHT, "_w")]
    return joined.select(*columns, (F.col(WEIGHT) * F.col("_w")).alias(WEIGHT))


def _anti(left: DataFrame, right: DataFrame, equi: Sequence[Equi], residual: Sequence[Residual]) -> DataFrame:
    """Rows of left without a match: weights on the right are added first, so what was deleted does not match."""
    condition = _condition(equi, residual)
    names = [c for c in right.columns if c != WEIGHT]
    if residual:
        compared = names
    else:
        ends = {f"l{e.left_leaf}_{e.left}" for e in equi} | {f"l{e.right_leaf}_{e.right}" for e in equi}
        compared = [c for c in names if c in ends]
    present = right.groupBy(*compared).agg(F.sum(WEIGHT).alias("_n")).where("_n > 0").drop("_n")
    alone = left.join(present, F.lit(True) if condition is None else condition, "left_anti")
    types = {f.name: f.dataType for f in right.schema.fields}
    return alone.select(
        *[c for c in left.columns if c != WEIGHT],
        *[F.lit(None).cast(types[c]).alias(c) for c in names],
        WEIGHT,
    )


def weighted_sum(column: str, is_decimal: bool) -> Column:
    """`w * value`, without losing digits of decimals."""
    weight = F.col(WEIGHT).cast("decimal(10,0)") if is_decimal else F.col(WEIGHT)
    return weight * F.col(column)
