"""LEFT and FULL joins whose padded side changed.

    A LEFT JOIN B = A JOIN B + (A ANTI B)

Wrt. B the first summand is linear; the second flips for the keys k of dB only. With n(k) the number of rows of B
under a key, known from a read of the keys alone, and n'(k) the number after:

    d(A ANTI B) = A|k x [n'(k) = 0]  -  A|k x [n(k) = 0]

FULL is LEFT plus the padding of the other side, by the same rule. When the padded side is itself a join, or
the condition has more than equalities, the rows under the touched keys are compared whole: J(after) - J(before).
Both are exact for any superset of the touched keys, because rows under untouched keys cancel.

Example: customer 7 has no order; order (1, customer 7) arrives.

    A JOIN dB                       {(7, 1): +1}
    A|7 x [n'=0] - A|7 x [n=0]      {(7, NULL): -1}          since n = 0 and n' = 1

State: none. Cost: the delta, the preserved rows under its keys, one count per key of the padded side.
"""

from __future__ import annotations

from collections.abc import Mapping

from runnel.delta.parts import Anti, DeltaTree, Part, Seed, Term, Version
from runnel.plan.stage import Equi, Inner, LeafNode, Outer, Tree, tree_leaves


def padding_join(tree: Tree, leaf: int) -> Outer | None:
    """The topmost outer join that may pad the leaf, or None when the tree is linear in it."""
    match tree:
        case LeafNode():
            return None
        case Inner(children=children):
            child = next(c for c in children if leaf in set(tree_leaves(c)))
            return padding_join(child, leaf)
        case Outer(kind=kind, left=left, right=right):
            if leaf in set(tree_leaves(right)) or kind == "full":
                return tree
            return padding_join(left, leaf)


def outer_term(tree: Tree, join: Outer, leaf: int, others: Mapping[int, Version]) -> Term:
    """The term of a leaf on a padded side (or on either side of a FULL join)."""
    in_right = leaf in set(tree_leaves(join.right))
    side = join.right if in_right else join.left
    key = _usable_key(join)
    if isinstance(side, LeafNode) and key is not None and not join.residual:
        return _counted(tree, join, leaf, others, in_right, key)
    return _compared(tree, join, leaf, others, frozenset(tree_leaves(side)), key)


def _usable_key(join: Outer) -> Equi | None:
    return min(join.equi, key=lambda e: e.null_safe, default=None)


def _counted(tree: Tree, join: Outer, leaf: int, others: Mapping[int, Version], in_right: bool, key: Equi) -> Term:
    changed: Tree = LeafNode(leaf)
    kept = join.left if in_right else join.right
    matched: Tree = Inner((changed, kept), join.equi, ())
    if join.kind == "full":
        # Rows of the changed side are themselves preserved: they keep their own padding.
        matched = Outer("left", changed, kept, join.equi, ())
    pad = Anti(kept, changed, join.equi, ())
    parts = (
        Part(1, _replace(tree, join, matched), {**others, leaf: "delta"}),
        Part(1, _replace(tree, join, pad), {**others, leaf: "after_keys"}),
        Part(-1, _replace(tree, join, pad), {**others, leaf: "before_keys"}),
    )
    return Term(
        leaf,
        "outer join: matches of the delta, and padding that flips for its keys",
        parts,
        inside=frozenset({leaf}),
        seeds=_seeds(key, leaf, include_null=key.null_safe)[:1],
    )


def _compared(
    tree: Tree, join: Outer, leaf: int, others: Mapping[int, Version], side: frozenset[int], key: Equi | None
) -> Term:
    parts = (
        Part(1, tree, {**others, leaf: "after"}),
        Part(-1, tree, {**others, leaf: "before"}),
    )
    rule = "outer join: rows under the touched keys, after minus before"
    if key is None:
        return Term(leaf, rule + " (no equality to narrow by: reads whole tables)", parts, restricted=False)
    inner_leaf = key.left_leaf if key.left_leaf in side else key.right_leaf
    nulls = key.null_safe or join.kind == "full"
    return Term(leaf, rule, parts, inside=side, seeds=_seeds(key, inner_leaf, include_null=nulls))


def _seeds(key: Equi, inner_leaf: int, *, include_null: bool) -> tuple[Seed, Seed]:
    """The two ends of the key: first the end on the changed side, then the other."""
    left = Seed(key.left_leaf, key.left, key.left_sql, key.array_type, include_null)
    right = Seed(key.right_leaf, key.right, key.right_sql, key.array_type, include_null)
    return (left, right) if key.left_leaf == inner_leaf else (right, left)


def _replace(tree: DeltaTree, old: Outer, new: DeltaTree) -> DeltaTree:
    if tree == old:
        return new
    match tree:
        case Inner(children=children, equi=equi, residual=residual):
            return Inner(tuple(_replace(c, old, new) for c in children), equi, residual)  # type: ignore[misc]
        case Outer(kind=kind, left=left, right=right, equi=equi, residual=residual):
            return Outer(kind, _replace(left, old, new), _replace(right, old, new), equi, residual)  # type: ignore[arg-type]
        case _:
            return tree
