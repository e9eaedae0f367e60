"""Inner joins, and everything else that is linear in the changed leaf.

For F linear in leaf i:   F(.., A_i', ..) - F(.., A_i, ..) = F(.., dA_i, ..)

Projection, filter, inner and cross joins are linear in every input, and a LEFT join is linear in the side it
preserves. So the term of a changed leaf is the join tree itself with the leaf replaced by its delta.

Example: orders(1, 'tea') is inserted, products holds ('tea', 3).

    d(orders JOIN products) = {(1, 'tea')} JOIN products' = {(1, 'tea', 3): +1}

State: none. Cost: the delta, and the rows of the other leaves that its keys reach.
"""

from __future__ import annotations

from collections.abc import Mapping

from runnel.delta.parts import Part, Term, Version
from runnel.plan.stage import Tree


def linear_term(tree: Tree, leaf: int, others: Mapping[int, Version]) -> Term:
    """The tree with the changed leaf replaced by its delta."""
    versions: dict[int, Version] = {**others, leaf: "delta"}
    return Term(leaf, "linear: the join with the changed leaf replaced by its delta", (Part(1, tree, versions),))
