"""Compute a stage's change on Spark: read leaves, evaluate terms, add up.

One Spark job per stage, whatever the number of changed leaves and branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from runnel.apply.load import carried_name
from runnel.delta.parts import Term, Version, required
from runnel.delta.telescope import from_nothing, telescope
from runnel.plan.stage import Branch, Leaf, Relation, Stage, StageRef
from runnel.refresh.steps import Steps
from runnel.sources.arrow import weight_name
from runnel.sources.restrict import Reads, edges, restricted_reads
from runnel.sources.statements import Restriction
from runnel.spark.evaluate import ZSet, evaluate
from runnel.spark.job import run
from runnel.spark.session import SMALL_ROWS, Sessions


@dataclass(frozen=True, slots=True)
class LeafReader:
    """How to read the leaves of a stage at this refresh."""

    after: Callable[[Leaf, Restriction | None], pa.Table | None]
    """On the driver; None when the read is too large for it."""
    keys: Callable[[Leaf, Restriction | None, tuple[int, ...]], pa.Table]
    scan: Callable[[Leaf], DataFrame]
    """In tasks, the whole leaf."""
    cost: Callable[[Leaf, str, int], float]
    """About how many rows a read narrowed by so many keys of an expression touches."""


@dataclass
class Counters:
    """What a refresh cost, for people."""

    rows_read: dict[str, int | None] = field(default_factory=dict)
    """Per source, changes included; None for a source that tasks scanned, whose rows nobody counts."""
    jobs: int = 0

    def read(self, leaf: Leaf, rows: int | None) -> None:
        """Add rows that a leaf has read."""
        match leaf.source:
            case StageRef(index=index):
                name = f"stage {index}"
            case Relation(name=relation):
                name = str(relation)
            case _:
                return
        known = self.rows_read.get(name, 0)
        self.rows_read[name] = None if rows is None or known is None else known + rows


def compute_stage(
    sessions: Sessions,
    stage: Stage,
    deltas: Mapping[tuple[int, int], pa.Table] | None,
    reader: LeafReader,
    counters: Counters,
    steps: Steps,
) -> pa.Table | None:
    """The stage's load rows; None when nothing changed. `deltas` is None for a build from nothing."""
    work: list[tuple[int, Branch, Term, Reads, dict[int, pa.Table]]] = []
    for number, branch in enumerate(stage.branches):
        changed = {} if deltas is None else {leaf: t for (b, leaf), t in deltas.items() if b == number and t.num_rows}
        terms = [from_nothing(branch.tree)] if deltas is None else telescope(branch.tree, sorted(changed))
        for term in terms:
            with steps("read"):
                reads = _read_term(branch, term, changed, reader, counters)
            kept = term if deltas is None else _without_empty_parts(term, reads, changed)
            if kept.parts:
                work.append((number, branch, kept, reads, changed))
    if not work:
        return None
    small = all(
        not reads.scanned and sum(t.num_rows for t in [*reads.after.values(), *changed.values()]) <= SMALL_ROWS
        for _, _, _, reads, changed in work
    )
    parts = [
        _project(branch, number, rows, sign)
        for number, branch, term, reads, changed in work
        for sign, rows in _evaluate_term(sessions, branch, term, reads, changed, reader, small)
    ]
    total = reduce(lambda x, y: x.unionByName(y, allowMissingColumns=True), parts)
    counters.jobs += 1
    result = _add_up(stage, total, sorted({number for number, *_ in work}))
    with steps("spark"):
        return run(result)


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
                counters.read(leaf, None)
                return None
            table = result
        counters.read(leaf, table.num_rows)
        return table

    def cost(leaf_id: int, sql: str, keys: int) -> float:
        return reader.cost(branch.leaves[leaf_id], sql, keys)

    return restricted_reads(branch, term, changed, read, cost)


def _without_empty_parts(term: Term, reads: Reads, changed: Mapping[int, pa.Table]) -> Term:
    """The term without the parts that certainly have no rows: Spark need not be asked."""

    def has_rows(leaf: int, version: Version) -> bool:
        if version == "delta":
            return bool(changed[leaf].num_rows)
        if leaf in reads.scanned or (version.startswith("before") and leaf in changed and changed[leaf].num_rows):
            return True
        return bool(reads.after[leaf].num_rows)

    parts = tuple(p for p in term.parts if all(has_rows(i, p.versions[i]) for i in required(p.tree)))
    return replace(term, parts=parts)


def key_columns(branch: Branch, leaf: int) -> tuple[int, ...]:
    """The computed columns of a leaf that any join compares."""
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
) -> Iterator[tuple[int, ZSet]]:
    """Each part of a term with its sign."""
    cache: dict[tuple[int, Version], ZSet] = {}

    def zset(leaf: int, version: Version) -> ZSet:
        if (leaf, version) not in cache:
            cache[leaf, version] = build(leaf, version)
        return cache[leaf, version]

    def build(leaf: int, version: Version) -> ZSet:
        columns = tuple(branch.leaves[leaf].column(i) for i in range(len(branch.leaves[leaf].computed)))
        match version:
            case "delta":
                return ZSet(sessions.frame(changed[leaf], small=small), columns, (weight_name(leaf),))
            case "after":
                if leaf in reads.scanned:
                    return ZSet(reader.scan(branch.leaves[leaf]), columns)
                return ZSet(sessions.frame(reads.after[leaf], small=small), columns)
            case "before":
                return zset(leaf, "after").union(zset(leaf, "delta").negated())
            case "after_keys":
                return _padded_keys(sessions.frame(reads.after[leaf], small=small), zset(leaf, "delta"), leaf)
            case "before_keys":
                # Only the keys are compared, so the rest of the delta's columns may be there or not.
                return zset(leaf, "after_keys").union(zset(leaf, "delta").negated())

    for part in term.parts:
        leaves = {leaf: zset(leaf, version) for leaf, version in part.versions.items()}
        yield part.sign, evaluate(part.tree, leaves, term.leaf)


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
        factor = f"CAST({weight} AS DECIMAL(10, 0))" if is_decimal(branch, leaf, index) else f"({weight})"
        sums.append(f"{factor} * {name} AS s{k}")
    return rows.rows.selectExpr(f"{number}S AS b", *carried, f"{weight} AS w", *sums)


def is_decimal(branch: Branch, leaf: int, index: int) -> bool:
    """Whether a computed column is added up as a decimal."""
    return branch.leaves[leaf].computed[index].form.kind == "decimal"


def _add_up(stage: Stage, rows: DataFrame, branches: Sequence[int]) -> DataFrame:
    added = ["w", *(f"s{k}" for k in range(len(stage.branches[0].sums)))]
    # Asking Spark for the names would cost a round trip each.
    carried = ["b", *(carried_name(n, i) for n in branches for i in range(len(stage.branches[n].carried)))]
    totals = [F.expr(f"sum({c}) AS {c}") for c in added]
    return rows.groupBy(*carried).agg(*totals).where(" OR ".join(f"{c} != 0" for c in added))
