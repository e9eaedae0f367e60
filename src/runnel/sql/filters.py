"""Where a condition over several leaves belongs in a draft tree, and which outer joins it makes inner ones.

    (a LEFT JOIN b) WHERE a.x = c.y        the condition concerns a alone: it goes below the outer join
    (a LEFT JOIN b) WHERE b.z > a.x        NULL for a padded b, so padded rows are dropped: an inner join

Both give join keys to the joins below, and keys are what narrows reads.
"""

from __future__ import annotations

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.draft import DInner, DLeaf, DOuter, DTree, leaves


def sunk(tree: DTree, condition: exp.Expr) -> DTree:
    """The tree with the condition at the lowest place that sees all of its leaves."""
    used = ex.leaves_of(condition)
    match tree:
        case DInner(children=children, conditions=conditions):
            for i, child in enumerate(children):
                if isinstance(child, (DInner, DOuter)) and used <= set(leaves(child)) and _may_enter(child, used):
                    return DInner([*children[:i], sunk(child, condition), *children[i + 1 :]], conditions)
            return DInner(children, [*conditions, condition])
        case DOuter(kind="left", left=left, right=right, conditions=conditions) if used <= set(leaves(left)) and used:
            return DOuter("left", sunk(left, condition), right, conditions)
        case _:
            return DInner([tree], [condition])


def _may_enter(child: DTree, used: frozenset[int]) -> bool:
    return isinstance(child, DInner) or (
        isinstance(child, DOuter) and child.kind == "left" and used <= set(leaves(child.left)) and bool(used)
    )


def without_padding(tree: DTree, condition: exp.Expr) -> DTree:
    """The tree as it is seen through a condition that drops some padded rows."""
    if not ex.is_strict(condition):
        return tree
    return _rejected(tree, ex.leaves_of(condition))


def _rejected(tree: DTree, present: frozenset[int]) -> DTree:
    """The tree without the padding of the leaves in `present`."""
    match tree:
        case DLeaf():
            return tree
        case DInner(children=children, conditions=conditions):
            return DInner([_rejected(c, present) for c in children], conditions)
        case DOuter(kind=kind, left=left, right=right, conditions=conditions):
            on_left, on_right = bool(present & set(leaves(left))), bool(present & set(leaves(right)))
            if (kind == "left" and on_right) or (on_left and on_right):
                # Inside an inner join the conditions reject padding of their own.
                inner: DTree = DInner([_rejected(left, present), _rejected(right, present)], [])
                for condition in conditions:
                    inner = sunk(without_padding(inner, condition), condition)
                return _flat(inner)
            if kind == "full" and on_left:
                return DOuter("left", _rejected(left, present), right, conditions)
            if kind == "full" and on_right:
                return DOuter("left", _rejected(right, present), left, conditions)
            return DOuter(kind, _rejected(left, present), right, conditions)


def _flat(tree: DTree) -> DTree:
    """Nested inner joins as one, so that their order is free."""
    if not isinstance(tree, DInner):
        return tree
    children: list[DTree] = []
    conditions = list(tree.conditions)
    for child in tree.children:
        if isinstance(child, DInner):
            children += child.children
            conditions += child.conditions
        else:
            children.append(child)
    return DInner(children, conditions)
