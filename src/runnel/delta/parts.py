"""The vocabulary of delta plans.

A term of a delta is a sum of signed parts. A part is a join tree in which every leaf is read at one version:

- `delta`   what changed in the leaf, as a Z-set;
- `after`   the leaf now;
- `before`  the leaf at the frontier, which is `after - delta`;
- `after_keys`, `before_keys`  the same, reduced to the columns a join compares, with multiplicities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runnel.plan.stage import Equi, Inner, LeafNode, Outer, Residual, Tree, tree_leaves

Version = Literal["delta", "after", "before", "after_keys", "before_keys"]


@dataclass(frozen=True, slots=True)
class Anti:
    """Rows of `left` without a match in `right`, padded with NULLs for the columns of `right`."""

    left: DeltaTree
    right: DeltaTree
    equi: tuple[Equi, ...]
    residual: tuple[Residual, ...]


DeltaTree = Tree | Anti


@dataclass(frozen=True, slots=True)
class Part:
    """One signed product of a delta."""

    sign: Literal[1, -1]
    tree: DeltaTree
    versions: Mapping[int, Version]


@dataclass(frozen=True, slots=True)
class Seed:
    """Where restricted reads start: this column of this leaf, limited to the changed keys."""

    leaf: int
    column: int
    sql: str
    array_type: str
    include_null: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """The contribution of one changed leaf."""

    leaf: int
    rule: str
    """The rule's name, for people."""
    parts: tuple[Part, ...]
    inside: frozenset[int] = frozenset()
    """For outer joins: the side that holds the leaf; keys are first followed inside of it."""
    seeds: tuple[Seed, ...] = field(default=())
    """Reads that restart from the join's own keys (outer joins); empty: keys follow from the delta alone."""
    restricted: bool = True


def leaf_set(tree: DeltaTree) -> frozenset[int]:
    """The leaves below a node of a delta tree."""
    match tree:
        case Anti(left=left, right=right):
            return leaf_set(left) | leaf_set(right)
        case LeafNode() | Inner() | Outer():
            return frozenset(tree_leaves(tree))


def required(tree: DeltaTree) -> frozenset[int]:
    """The leaves without whose rows the tree has none: all but those that an outer join may pad.

    >>> sorted(required(Inner((LeafNode(0), Outer("left", LeafNode(1), LeafNode(2))))))
    [0, 1]
    """
    match tree:
        case LeafNode(leaf):
            return frozenset({leaf})
        case Inner(children=children):
            return frozenset().union(*(required(c) for c in children))
        case Outer(kind="left", left=left) | Anti(left=left):
            return required(left)
        case Outer():
            return frozenset()
