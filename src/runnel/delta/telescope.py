"""The delta of a whole join tree: one term per changed leaf.

For any function F of leaves 1..n, whatever it does:

    F(A1', .., An') - F(A1, .., An) = sum over i of  F(A1', .., Ai', A(i+1), .., An) - F(A1', .., Ai, A(i+1), .., An)

Term i has leaf i changing, the changed leaves before it already `after`, those behind it still `before`. Unchanged
leaves are the same at both versions. So n changed leaves cost n terms, never 2^n.

>>> from runnel.plan.stage import Inner, LeafNode
>>> tree = Inner((LeafNode(0), LeafNode(1), LeafNode(2)))
>>> [dict(t.parts[0].versions) for t in telescope(tree, [0, 2])]
[{0: 'delta', 1: 'after', 2: 'before'}, {0: 'after', 1: 'after', 2: 'delta'}]
"""

from __future__ import annotations

from collections.abc import Sequence

from runnel.delta.inner_join import linear_term
from runnel.delta.outer_join import outer_term, padding_join
from runnel.delta.parts import Part, Term, Version
from runnel.plan.stage import Tree, tree_leaves


def telescope(tree: Tree, changed: Sequence[int]) -> list[Term]:
    """The terms of the delta, in the order of the changed leaves."""
    every = list(tree_leaves(tree))
    terms = []
    for position, leaf in enumerate(changed):
        behind = set(changed[position + 1 :])
        others: dict[int, Version] = {j: "before" if j in behind else "after" for j in every if j != leaf}
        join = padding_join(tree, leaf)
        if join is None:
            term = linear_term(tree, leaf, dict(sorted({**others, leaf: "delta"}.items())))
        else:
            term = outer_term(tree, join, leaf, others)
        terms.append(term)
    return terms


def from_nothing(tree: Tree) -> Term:
    """The delta from the empty version: the tree as it is now (first build, FULL)."""
    versions: dict[int, Version] = {j: "after" for j in tree_leaves(tree)}
    return Term(-1, "everything", (Part(1, tree, versions),), restricted=False)
