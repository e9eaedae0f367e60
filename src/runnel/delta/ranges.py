"""Rows that are compared with a value that moves: only those between the old and the new value are concerned.

    SELECT .. FROM a CROSS JOIN (SELECT avg(x) AS v FROM b) s WHERE a.x > s.v

When v moves from v0 to v1, the delta of s has v0 with weight -1 and v1 with +1. A row of a is compared with both, and
below both or above both it gives the same answer twice, with opposite weights:

    { a : a.x > v1 } - { a : a.x > v0 }     needs of a only    least(v0, v1) <= a.x <= greatest(v0, v1)

This holds for any number of values whose weights add up to nothing, and for every comparison, since the order is the
one that PostgreSQL compares by. It needs that the branch has nothing else to do with s, and that neither side is
padded. NULL is not in the order: with one among the values, all rows are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from runnel.delta.outer_join import padding_join
from runnel.delta.parts import Term
from runnel.plan.stage import Branch, Computed, Inner, LeafNode, Outer, Relation, StageRef, Tree
from runnel.ports.rows import Restriction, weight_name

_COMPARISON = re.compile(r"\(?c(\d+) (?:<|<=|>|>=) c(\d+)\)?")
_NAME = re.compile(r"\bc(\d+)\b")
_CARRIED = re.compile(r"\((.*)\)::(?:text|int8)", re.DOTALL)
_ORDERED = frozenset({"int", "numeric", "date", "timestamp", "timestamptz"})


@dataclass(frozen=True, slots=True)
class Range:
    """A leaf's expression that is compared with values of another leaf."""

    leaf: int
    sql: str
    values: int
    """The leaf of the values, with which the branch has nothing else to do."""
    column: int
    type: str
    """Of the values, in PostgreSQL."""


@lru_cache(maxsize=1_000)
def ranges(branch: Branch) -> tuple[Range, ...]:
    """The comparisons of a branch with a value that may move."""
    found = []
    for condition in branch.late:
        match = _COMPARISON.fullmatch(condition)
        if match is None:
            continue
        left, right = int(match[1]), int(match[2])
        for rows, values in ((left, right), (right, left)):
            each = _range(branch, condition, rows, values)
            if each is not None:
                found.append(each)
    return tuple(found)


def _range(branch: Branch, condition: str, rows: int, values: int) -> Range | None:
    leaf, of_row = branch.carried[rows]
    other, of_value = branch.carried[values]
    if leaf == other or any(padding_join(branch.tree, each) is not None for each in (leaf, other)):
        return None
    row, value = branch.leaves[leaf].computed[of_row], branch.leaves[other].computed[of_value]
    sql = _CARRIED.fullmatch(row.sql)
    if sql is None or not (_is_ordered(row) and _is_ordered(value)) or not _is_read_by_postgres(branch, leaf):
        return None
    if _uses(branch, other, values, condition):
        return None
    return Range(leaf, sql[1], other, of_value, value.type.sql)


def _is_ordered(computed: Computed) -> bool:
    return computed.type.family in _ORDERED


def _is_read_by_postgres(branch: Branch, leaf: int) -> bool:
    source = branch.leaves[leaf].source
    return isinstance(source, StageRef) or (isinstance(source, Relation) and source.origin.selectable)


def _uses(branch: Branch, leaf: int, carried: int, condition: str) -> bool:
    """Whether a branch has more to do with a leaf than to compare one column of it, in one condition."""
    others = [text for text in (*branch.inputs, *branch.late) if text != condition]
    named = {int(number) for text in others for number in _NAME.findall(text)}
    of_leaf = {i for i, (each, _) in enumerate(branch.carried) if each == leaf}
    joined = {each for pair in _joined(branch.tree) for each in pair}
    return of_leaf != {carried} or carried in named or leaf in joined or any(each == leaf for each, _ in branch.sums)


def _joined(tree: Tree) -> Iterator[frozenset[int]]:
    """The leaves that each condition of a tree compares."""
    match tree:
        case LeafNode():
            return
        case Inner(children=children):
            below: tuple[Tree, ...] = children
        case Outer(left=left, right=right):
            below = (left, right)
    for key in tree.equi:
        yield frozenset({key.left_leaf, key.right_leaf})
    for residual in tree.residual:
        yield residual.leaves
    for child in below:
        yield from _joined(child)


def between(branch: Branch, term: Term, delta: object) -> tuple[int, Restriction] | None:
    """The leaf that is compared with the values that moved, and the range in which it has to be read."""
    if not isinstance(delta, pa.Table) or term.seeds or len(term.parts) != 1:
        return None
    for each in ranges(branch):
        if each.values != term.leaf:
            continue
        values = delta.column(branch.leaves[each.values].column(each.column))
        if values.null_count or pc.sum(delta.column(weight_name(each.values))).as_py() != 0:
            return None
        return each.leaf, Restriction(each.sql, each.type, tuple(values.to_pylist()), between=True)
    return None
