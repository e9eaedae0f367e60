"""The terms of a stage on Spark: join what was read, add up equal rows.

One Spark job per stage, whatever the number of changed leaves and branches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from runnel.delta.parts import Version
from runnel.delta.restrict import Many
from runnel.delta.work import Work
from runnel.plan.stage import Branch, Leaf, Stage, carried_name
from runnel.ports.rows import weight_name
from runnel.spark.evaluate import ZSet, evaluate
from runnel.spark.session import Sessions


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


def terms_frame(
    sessions: Sessions,
    stage: Stage,
    work: Sequence[Work],
    scans: Scans,
    *,
    adds_up: bool,
) -> DataFrame:
    """The stage's load rows, yet to be computed: per branch its carried columns, weight and sums.

    `adds_up`: whether equal rows become one.
    """
    small = not is_large(sessions, work)
    parts = [_project(w.branch, w.number, rows, sign) for w in work for sign, rows in _parts(sessions, w, scans, small)]
    total = reduce(lambda x, y: x.unionByName(y, allowMissingColumns=True), parts)
    names = load_names(stage, {w.number for w in work})
    return _add_up(stage, total, names) if adds_up else total.select(*names)


def _parts(sessions: Sessions, work: Work, scans: Scans, small: bool) -> Iterator[tuple[int, ZSet]]:
    """Each part of a term with its sign."""
    branch, reads, changed = work.branch, work.reads, work.changed
    cache: dict[tuple[int, Version], ZSet] = {}

    def zset(leaf: int, version: Version) -> ZSet:
        if (leaf, version) not in cache:
            cache[leaf, version] = build(leaf, version)
        return cache[leaf, version]

    def build(leaf: int, version: Version) -> ZSet:
        columns = tuple(branch.leaves[leaf].column(i) for i in range(len(branch.leaves[leaf].computed)))
        match version:
            case "delta":
                rows = changed[leaf]
                many = isinstance(rows, Many)
                frame = scans.changes(branch.leaves[leaf]) if many else sessions.frame(rows, small=small)
                return ZSet(frame, columns, (weight_name(leaf),))
            case "after":
                if leaf in reads.scanned:
                    return ZSet(scans.scan(branch.leaves[leaf]), columns)
                return ZSet(sessions.frame(work.after(leaf), small=small), columns)
            case "before":
                return zset(leaf, "after").union(zset(leaf, "delta").negated())
            case "after_keys":
                return _padded_keys(sessions.frame(work.after(leaf), small=small), zset(leaf, "delta"), leaf)
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


def _add_up(stage: Stage, rows: DataFrame, names: Sequence[str]) -> DataFrame:
    added = ["w", *(f"s{k}" for k in range(len(stage.branches[0].sums)))]
    carried = [name for name in names if name not in added]
    totals = [F.expr(f"sum({c}) AS {c}") for c in added]
    return rows.groupBy(*carried).agg(*totals).where(" OR ".join(f"{c} != 0" for c in added))
