"""Follow join keys from a delta to the rows it can meet.

Starting at the changed leaf, the distinct keys of what was read narrow the read of each neighbour in the join
graph, and so on outwards. A leaf that a join compares by several columns is narrowed by all of them whose other
side is known.

Rows that find no partner in an inner join lead nowhere. So whenever a leaf was read, the leaves known before are
thinned out by its keys, and those by theirs, before keys are followed on: with A the changed leaf, B filtered, C large,

    A = B and A = C:    read B by the keys of A;  A1 = the rows of A with a partner in B;  read C by the keys of A1

B is known at both versions where it changed, and all rows of it that A can meet are there, so a row of A without a
partner has none before and none after. Only what is followed is thinned out, not what is joined.

Rows that are compared with a value that moved are read between the old and the new one (`runnel.delta.ranges`).

Where keys are too many to narrow a read by, a leaf that PostgreSQL expects to have few rows is read whole, and thins
out the others. What still cannot be narrowed is a whole read.

`explain` takes the same way with `Unread` in place of rows, so it tells what a refresh does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from runnel.delta.parts import Seed, Term
from runnel.delta.ranges import between
from runnel.plan.stage import Branch, Equi, Inner, LeafNode, Outer, Tree, tree_leaves
from runnel.ports.rows import Restriction

MAX_KEYS = 50_000
"""Above this many keys a read is not narrowed: sending and probing them costs more than a scan."""


@dataclass(frozen=True, slots=True)
class Unread:
    """In place of rows that nobody reads: one key leads on from them, whatever it is."""


@dataclass(frozen=True, slots=True)
class Many:
    """In place of rows that tasks read: nobody looks for keys in them, there are too many."""

    rows: float


Met: TypeAlias = pa.Table | Unread | Many
ReadAfter = Callable[[int, Restriction | None], Met | None]
"""Reads a leaf on the driver; None when it is too large for that (a scan in tasks instead)."""

Cost = Callable[[int, str, int], float]
"""(leaf, expression, number of keys) -> about how many rows a read narrowed by them touches."""

Few = Callable[[int], float]
"""About how many rows a leaf has that pass its own filters; a whole read of few is made on the driver."""


def _nobody_knows(leaf: int) -> float:  # noqa: ARG001
    return math.inf


@dataclass
class Reads:
    """What one term has read: Arrow tables by leaf; a leaf that is missing is scanned by tasks."""

    after: dict[int, Met] = field(default_factory=dict)
    scanned: set[int] = field(default_factory=set)
    deltas: Mapping[int, Met] = field(default_factory=dict)

    def met(self, leaf: int) -> Met:
        """The leaf's rows at either version: a row that is gone still led to its neighbours before."""
        after, delta = self.after[leaf], self.deltas.get(leaf)
        if isinstance(delta, Many):
            return delta
        if delta is None or not isinstance(after, pa.Table) or not isinstance(delta, pa.Table):
            return after
        shared = [c for c in after.column_names if c in delta.column_names]
        return pa.concat_tables([after.select(shared), delta.select(shared)])


@dataclass(frozen=True, slots=True)
class Way:
    """From the rows of one leaf to those of another, by a join key."""

    near: int
    column: int
    far: int
    sql: str
    key: Equi
    join: int
    """Which join of the tree it belongs to."""


def edges(tree: Tree) -> Iterator[Equi]:
    """All join keys of a tree."""
    for join in joins(tree):
        yield from join.equi


def ways(tree: Tree, changed: int) -> list[Way]:
    """The ways by which keys may be followed when the leaf `changed` changes.

    Rows that an outer join preserves are there whether they find a match or not. So the matches must not narrow them,
    unless it is the matches that change: then only the rows that meet one are concerned.
    """
    found = []
    for number, join in enumerate(joins(tree)):
        for key in join.equi:
            for near, column, far, sql in (
                (key.left_leaf, key.left, key.right_leaf, key.right_sql),
                (key.right_leaf, key.right, key.left_leaf, key.left_sql),
            ):
                if _may_follow(join, near, changed):
                    found.append(Way(near, column, far, sql, key, number))
    return found


def _may_follow(join: Inner | Outer, near: int, changed: int) -> bool:
    if isinstance(join, Inner):
        return True
    from_right = near in set(tree_leaves(join.right))
    if join.kind == "left" and not from_right:
        return True
    return changed in set(tree_leaves(join.right if from_right else join.left))


def joins(tree: Tree) -> Iterator[Inner | Outer]:
    """Every join of a tree."""
    match tree:
        case LeafNode():
            return
        case Inner(children=children):
            for child in children:
                yield from joins(child)
        case Outer(left=left, right=right):
            yield from joins(left)
            yield from joins(right)
    yield tree


def distinct_keys(table: Met, column: str) -> tuple[object, ...] | None:
    """The distinct non-NULL values of a column; None when they are too many to narrow a read by."""
    if isinstance(table, Unread):
        return (table,)
    if isinstance(table, Many):
        return None
    keys = pc.unique(table.column(column)).drop_null()
    return tuple(keys.to_pylist()) if len(keys) <= MAX_KEYS else None


def restricted_reads(
    branch: Branch,
    term: Term,
    deltas: Mapping[int, Met],
    read: ReadAfter,
    cost: Cost,
    few: Few = _nobody_knows,
) -> Reads:
    """All after-reads that a term needs besides the deltas of the changed leaves."""
    keys = ways(branch.tree, term.leaf)
    needed = {leaf for part in term.parts for leaf, version in part.versions.items() if version != "delta"}
    reads = Reads(deltas=deltas)
    if not term.restricted:
        for leaf in sorted(needed):
            _take(reads, leaf, None, read)
        return reads
    delta = deltas[term.leaf]
    if len(term.seeds) < 2:
        if term.seeds:
            seed = term.seeds[0]
            _take(reads, seed.leaf, _seed_restriction(seed, delta, branch), read)
        known: dict[int, Met] = {term.leaf: delta}
        moved = between(branch, term, delta)
        if moved is not None:
            _take(reads, *moved, read)
            needed.discard(moved[0])
            known |= {leaf: reads.met(leaf) for leaf in reads.after}
        _spread(branch, known, needed - {term.leaf}, keys, reads, read, cost, few)
        return reads
    return _reads_from_join_keys(branch, term, deltas, needed, keys, read, cost, few)


def _reads_from_join_keys(
    branch: Branch,
    term: Term,
    deltas: Mapping[int, Met],
    needed: set[int],
    keys: list[Way],
    read: ReadAfter,
    cost: Cost,
    few: Few,
) -> Reads:
    """Outer joins compared whole: find the join's touched keys first, then read both sides under them."""
    inner, outer = term.seeds
    scouting = Reads(deltas=deltas)
    found: Mapping[int, Met] = {term.leaf: deltas[term.leaf]}
    if inner.leaf != term.leaf:
        inside_keys = [k for k in keys if {k.near, k.far} <= term.inside]
        _spread(branch, found, set(term.inside) - {term.leaf}, inside_keys, scouting, read, cost, few)
        if inner.leaf not in scouting.after:
            for leaf in sorted(needed):
                _take(scouting, leaf, None, read)
            return scouting
        found = {inner.leaf: scouting.met(inner.leaf)}
    touched = found[inner.leaf]
    reads = Reads(deltas=deltas)
    for seed in (inner, outer):
        column = branch.leaves[inner.leaf].column(inner.column)
        _take(reads, seed.leaf, _values_restriction(seed, touched, column), read)
    known = {leaf: reads.met(leaf) for leaf in (inner.leaf, outer.leaf) if leaf in reads.after}
    _spread(branch, known, needed - {inner.leaf, outer.leaf}, keys, reads, read, cost, few)
    return reads


def _seed_restriction(seed: Seed, table: Met, branch: Branch) -> Restriction | None:
    return _values_restriction(seed, table, branch.leaves[seed.leaf].column(seed.column))


def _values_restriction(seed: Seed, table: Met, column: str) -> Restriction | None:
    values = distinct_keys(table, column)
    if values is None:
        return None
    nulls = seed.include_null and (not isinstance(table, pa.Table) or table.column(column).null_count > 0)
    return Restriction(seed.sql, seed.array_type, values, nulls)


def _spread(
    branch: Branch,
    known: Mapping[int, Met],
    needed: set[int],
    keys: list[Way],
    reads: Reads,
    read: ReadAfter,
    cost: Cost,
    few: Few,
) -> None:
    frontier = dict(known)
    waiting = set(needed)
    while waiting:
        step = _best_step(branch, frontier, waiting, keys, cost) or _smallest(waiting, few)
        if step is None:
            for leaf in sorted(waiting):
                _take(reads, leaf, None, read)
            return
        leaf, restriction = step
        waiting.discard(leaf)
        _take(reads, leaf, restriction, read)
        if leaf in reads.after:
            frontier[leaf] = reads.met(leaf)
            if waiting:
                _thin_out(branch, frontier, leaf)


def _smallest(waiting: set[int], few: Few) -> tuple[int, None] | None:
    """The leaf to read whole where no keys lead on: its rows may lead on to the others."""
    rows, leaf = min((few(leaf), leaf) for leaf in waiting)
    return (leaf, None) if rows <= MAX_KEYS else None


def _thin_out(branch: Branch, frontier: dict[int, Met], read: int) -> None:
    """Leave out the rows that lead nowhere, now that one more leaf is known."""
    inner = [key for join in joins(branch.tree) if isinstance(join, Inner) for key in join.equi if not key.null_safe]
    changed = [read]
    while changed:
        by = changed.pop()
        for key in inner:
            for near, column, other, other_column in (
                (key.left_leaf, key.left, key.right_leaf, key.right),
                (key.right_leaf, key.right, key.left_leaf, key.left),
            ):
                if other != by:
                    continue
                kept = _with_partner(branch, frontier, (near, column), (other, other_column))
                if kept is not None:
                    frontier[near] = kept
                    changed.append(near)


def _with_partner(
    branch: Branch, frontier: Mapping[int, Met], near: tuple[int, int], by: tuple[int, int]
) -> pa.Table | None:
    """The rows of a leaf whose key another leaf has; None when these are all, or nobody can tell."""
    rows, partners = frontier.get(near[0]), frontier.get(by[0])
    if not isinstance(rows, pa.Table) or not isinstance(partners, pa.Table):
        return None
    keys = partners.column(branch.leaves[by[0]].column(by[1]))
    kept = rows.filter(pc.is_in(rows.column(branch.leaves[near[0]].column(near[1])), value_set=keys.drop_null()))
    return kept if kept.num_rows < rows.num_rows else None


def _best_step(
    branch: Branch, frontier: Mapping[int, Met], waiting: set[int], keys: list[Way], cost: Cost
) -> tuple[int, Restriction] | None:
    """The next leaf to read and its keys: the read that touches the fewest rows."""
    steps: list[tuple[float, int, Way, Restriction]] = []
    for way in keys:
        if way.near not in frontier or way.far not in waiting:
            continue
        values = distinct_keys(frontier[way.near], branch.leaves[way.near].column(way.column))
        if values is not None:
            # NULL may come from the rows or from padding.
            restriction = Restriction(way.sql, way.key.array_type, values, include_null=way.key.null_safe)
            steps.append((cost(way.far, way.sql, len(values)), way.far, way, restriction))
    if not steps:
        return None
    _, leaf, best, restriction = min(steps, key=lambda s: s[:2])
    also = tuple(r for _, far, way, r in steps if far == leaf and way != best and way.join == best.join)
    return leaf, replace(restriction, also=also)


def _take(reads: Reads, leaf: int, restriction: Restriction | None, read: ReadAfter) -> None:
    table = read(leaf, restriction)
    if table is None:
        reads.scanned.add(leaf)
    else:
        reads.after[leaf] = table
