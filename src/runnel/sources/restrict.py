"""Follow join keys from a delta to the rows it can meet.

Starting at the changed leaf, the distinct keys of what was read narrow the read of each neighbour in the join
graph, and so on outwards. A read that cannot be narrowed, or only by too many keys, is a whole read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from runnel.delta.parts import Seed, Term
from runnel.model.names import quote
from runnel.plan.stage import Branch, Equi, Inner, Leaf, LeafNode, Outer, Relation, Tree
from runnel.sources.statements import Restriction

MAX_KEYS = 50_000
"""Above this many keys a read is not narrowed: sending and probing them costs more than a scan."""

ReadAfter = Callable[[int, Restriction | None], pa.Table | None]
"""Reads a leaf on the driver; None when it is too large for that (a scan in tasks instead)."""

Cost = Callable[[int, str, int], float]
"""(leaf, expression, number of keys) -> about how many rows a read narrowed by them touches."""


@dataclass
class Reads:
    """What one term has read: Arrow tables by leaf; a leaf that is missing is scanned by tasks."""

    after: dict[int, pa.Table] = field(default_factory=dict)
    scanned: set[int] = field(default_factory=set)
    deltas: Mapping[int, pa.Table] = field(default_factory=dict)

    def met(self, leaf: int) -> pa.Table:
        """The leaf's rows at either version: a row that is gone still led to its neighbours before."""
        after, delta = self.after[leaf], self.deltas.get(leaf)
        if delta is None:
            return after
        shared = [c for c in after.column_names if c in delta.column_names]
        return pa.concat_tables([after.select(shared), delta.select(shared)])


def edges(tree: Tree) -> Iterator[Equi]:
    """All join keys of a tree."""
    match tree:
        case LeafNode():
            return
        case Inner(children=children, equi=equi):
            for child in children:
                yield from edges(child)
        case Outer(left=left, right=right, equi=equi):
            yield from edges(left)
            yield from edges(right)
    yield from equi


def distinct_keys(table: pa.Table, column: str) -> tuple[object, ...]:
    """The distinct non-NULL values of a column."""
    return tuple(pc.unique(table.column(column)).drop_null().to_pylist())


def restricted_reads(branch: Branch, term: Term, deltas: Mapping[int, pa.Table], read: ReadAfter, cost: Cost) -> Reads:
    """All after-reads that a term needs besides the deltas of the changed leaves."""
    keys = list(edges(branch.tree))
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
        _spread(branch, {term.leaf: delta}, needed - {term.leaf}, keys, reads, read, cost)
        return reads
    return _reads_from_join_keys(branch, term, deltas, needed, keys, read, cost)


def _reads_from_join_keys(
    branch: Branch,
    term: Term,
    deltas: Mapping[int, pa.Table],
    needed: set[int],
    keys: list[Equi],
    read: ReadAfter,
    cost: Cost,
) -> Reads:
    """Outer joins compared whole: find the join's touched keys first, then read both sides under them."""
    inner, outer = term.seeds
    scouting = Reads(deltas=deltas)
    found: Mapping[int, pa.Table] = {term.leaf: deltas[term.leaf]}
    if inner.leaf != term.leaf:
        inside_keys = [k for k in keys if {k.left_leaf, k.right_leaf} <= term.inside]
        _spread(branch, found, set(term.inside) - {term.leaf}, inside_keys, scouting, read, cost)
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
    _spread(branch, known, needed - {inner.leaf, outer.leaf}, keys, reads, read, cost)
    return reads


def _seed_restriction(seed: Seed, table: pa.Table, branch: Branch) -> Restriction | None:
    return _values_restriction(seed, table, branch.leaves[seed.leaf].column(seed.column))


def _values_restriction(seed: Seed, table: pa.Table, column: str) -> Restriction | None:
    values = distinct_keys(table, column)
    if len(values) > MAX_KEYS:
        return None
    nulls = seed.include_null and table.column(column).null_count > 0
    return Restriction(seed.sql, seed.array_type, values, nulls)


def _spread(
    branch: Branch,
    known: Mapping[int, pa.Table],
    needed: set[int],
    keys: list[Equi],
    reads: Reads,
    read: ReadAfter,
    cost: Cost,
) -> None:
    frontier = dict(known)
    waiting = set(needed)
    while waiting:
        step = _best_step(branch, frontier, waiting, keys, cost)
        if step is None:
            for leaf in sorted(waiting):
                _take(reads, leaf, None, read)
            return
        leaf, restriction = step
        waiting.discard(leaf)
        _take(reads, leaf, restriction, read)
        if leaf in reads.after:
            frontier[leaf] = reads.met(leaf)


def _best_step(
    branch: Branch, frontier: Mapping[int, pa.Table], waiting: set[int], keys: list[Equi], cost: Cost
) -> tuple[int, Restriction] | None:
    """The next leaf to read and its keys: the read that touches the fewest rows."""
    candidates: list[tuple[float, int, Restriction]] = []
    for key in keys:
        for near, near_column, far, far_sql in (
            (key.left_leaf, key.left, key.right_leaf, key.right_sql),
            (key.right_leaf, key.right, key.left_leaf, key.left_sql),
        ):
            if near not in frontier or far not in waiting:
                continue
            column = branch.leaves[near].column(near_column)
            values = distinct_keys(frontier[near], column)
            if len(values) <= MAX_KEYS:
                # NULL may come from the rows or from padding.
                restriction = Restriction(far_sql, key.array_type, values, include_null=key.null_safe)
                candidates.append((cost(far, far_sql, len(values)), far, restriction))
    if not candidates:
        return None
    _, leaf, best = min(candidates, key=lambda c: c[:2])
    return leaf, best


def is_indexed(leaf: Leaf, sql: str) -> bool:
    """Whether a restriction on this expression can use an index."""
    source = leaf.source
    if not isinstance(source, Relation):
        return True
    return any(sql == f"l{leaf.id}.{quote(name)}" for name in source.indexed)


def _take(reads: Reads, leaf: int, restriction: Restriction | None, read: ReadAfter) -> None:
    table = read(leaf, restriction)
    if table is None:
        reads.scanned.add(leaf)
    else:
        reads.after[leaf] = table
