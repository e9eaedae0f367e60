"""Compute a stage's change on Spark: read leaves, evaluate terms, add up.

One Spark job per stage, whatever the number of changed leaves and branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from runnel.apply.load import carried_name
from runnel.delta.parts import Term, Version
from runnel.delta.telescope import from_nothing, telescope
from runnel.plan.stage import Branch, Leaf, Stage
from runnel.sources.restrict import Reads, restricted_reads
from runnel.sources.statements import Restriction
from runnel.spark.evaluate import WEIGHT, evaluate, weighted_sum
from runnel.spark.session import SMALL_ROWS, Sessions


@dataclass(frozen=True, slots=True)
class LeafReader:
    """How to read the leaves of a stage at this refresh."""

    after: Callable[[Leaf, Restriction | None], pa.Table | None]
    """On the driver; None when the read is too large for it."""
    keys: Callable[[Leaf, Restriction | None, tuple[int, ...]], pa.Table]
    scan: Callable[[Leaf], DataFrame]
    """In tasks, the whole leaf."""


@dataclass
class Counters:
    """What a refresh cost, for people."""

    rows_read: int = 0
    jobs: int = 0
    rows_by_leaf: dict[str, int] = field(default_factory=dict)


def compute_stage(
    sessions: Sessions,
    stage: Stage,
    deltas: Mapping[tuple[int, int], pa.Table] | None,
    reader: LeafReader,
    counters: Counters,
) -> pa.Table | None:
    """The stage's load rows; None when nothing changed. `deltas` is None for a build from nothing."""
    work: list[tuple[int, Branch, Term, Reads, dict[int, pa.Table]]] = []
    for number, branch in enumerate(stage.branches):
        changed = {} if deltas is None else {leaf: t for (b, leaf), t in deltas.items() if b == number and t.num_rows}
        terms = [from_nothing(branch.tree)] if deltas is None else telescope(branch.tree, sorted(changed))
        for term in terms:
            reads = _read_term(branch, term, changed, reader, counters)
            work.append((number, branch, term, reads, changed))
    if not work:
        return None
    small = all(
        not reads.scanned and sum(t.num_rows for t in [*reads.after.values(), *changed.values()]) <= SMALL_ROWS
        for _, _, _, reads, changed in work
    )
    frames = [
        _project(stage, number, branch, _evaluate_term(sessions, branch, term, reads, changed, reader, small))
        for number, branch, term, reads, changed in work
    ]
    total = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)
    counters.jobs += 1
    return _add_up(stage, total).toArrow()


def _read_term(
    branch: Branch, term: Term, changed: Mapping[int, pa.Table], reader: LeafReader, counters: Counters
) -> Reads:
    counted = {leaf for part in term.parts for leaf, v in part.versions.items() if v.endswith("_keys")}

    def read(leaf_id: int, restriction: Restriction | None) -> pa.Table | None:
        leaf = branch.leaves[leaf_id]
        if leaf_id in counted:
            table = reader.keys(leaf, restriction, key_columns(branch, leaf_id))
        else:
            result = reader.after(leaf, restriction)
            if result is None:
                return None
            table = result
        counters.rows_read += table.num_rows
        return table

    empty = pa.table({})
    return restricted_reads(branch, term, changed.get(term.leaf, empty), read)


def key_columns(branch: Branch, leaf: int) -> tuple[int, ...]:
    """The computed columns of a leaf that any join compares."""
    from runnel.sources.restrict import edges  # noqa: PLC0415

    found: set[int] = set()
    for key in edges(branch.tree):
        if key.left_leaf == leaf:
            found.add(key.left)
        if key.right_leaf == leaf:
            found.add(key.right)
    return tuple(sorted(found))


def _evaluate_term(
    sessions: Sessions,
    branch: Branch,
    term: Term,
    reads: Reads,
    changed: Mapping[int, pa.Table],
    reader: LeafReader,
    small: bool,
) -> DataFrame:
    cache: dict[tuple[int, Version], DataFrame] = {}

    def frame(leaf: int, version: Version) -> DataFrame:
        if (leaf, version) not in cache:
            cache[leaf, version] = build(leaf, version)
        return cache[leaf, version]

    def build(leaf: int, version: Version) -> DataFrame:
        match version:
            case "delta":
                return sessions.frame(changed[leaf], small=small)
            case "after":
                if leaf in reads.scanned:
                    scanned = reader.scan(branch.leaves[leaf])
                else:
                    scanned = sessions.frame(reads.after[leaf], small=small)
                return scanned.drop("nothing").withColumn(WEIGHT, F.lit(1).cast("long"))
            case "before":
                return frame(leaf, "after").unionByName(_negated(frame(leaf, "delta")))
            case "after_keys":
                return sessions.frame(reads.after[leaf], small=small)
            case "before_keys":
                keys = frame(leaf, "after_keys")
                return keys.unionByName(_negated(frame(leaf, "delta")).select(*keys.columns))

    def padded(leaf: int, version: Version) -> DataFrame:
        """Key frames get the leaf's other columns as NULLs, so that both kinds of part have the same columns."""
        result = frame(leaf, version)
        if not version.endswith("_keys"):
            return result
        types = {f.name: f.dataType for f in frame(leaf, "delta").schema.fields}
        missing = [F.lit(None).cast(t).alias(n) for n, t in types.items() if n not in result.columns]
        return result.select("*", *missing)

    pieces = []
    for part in term.parts:
        frames = {leaf: padded(leaf, version) for leaf, version in part.versions.items()}
        rows = evaluate(part.tree, frames, term.leaf)
        pieces.append(rows if part.sign == 1 else _negated(rows))
    return reduce(lambda a, b: a.unionByName(b), pieces)


def _negated(rows: DataFrame) -> DataFrame:
    return rows.withColumn(WEIGHT, -F.col(WEIGHT))


def _project(stage: Stage, number: int, branch: Branch, rows: DataFrame) -> DataFrame:
    """Carried columns under the branch's names, and the weighted values to add up."""
    carried = [
        F.col(branch.leaves[leaf].column(index)).alias(carried_name(number, i))
        for i, (leaf, index) in enumerate(branch.carried)
    ]
    sums = []
    for k, (leaf, index) in enumerate(branch.sums):
        is_decimal = branch.leaves[leaf].computed[index].form.kind == "decimal"
        sums.append(weighted_sum(branch.leaves[leaf].column(index), is_decimal).alias(f"s{k}"))
    return rows.select(F.lit(number).cast("short").alias("b"), *carried, WEIGHT, *sums)


def _add_up(stage: Stage, rows: DataFrame) -> DataFrame:
    sums = [f"s{k}" for k in range(len(stage.branches[0].sums))]
    carried = [c for c in rows.columns if c != WEIGHT and c not in sums]
    totals = [F.sum(c).alias(c) for c in [WEIGHT, *sums]]
    added = rows.groupBy(*carried).agg(*totals)
    changed = reduce(lambda a, b: a | b, [F.col(c) != 0 for c in [WEIGHT, *sums]])
    return added.where(changed)
