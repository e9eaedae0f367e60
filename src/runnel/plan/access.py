"""How a refresh reads the inputs of a join, and which of it costs more than the change.

A change of one leaf is followed along the equalities of the join. A leaf reached by an indexed column is read by
index, one that is reached by another column is scanned, and one that is not reached at all is read as a whole.

    orders o JOIN customers c ON c.id = o.customer_id

A change of orders reaches customers by their key. A change of customers reaches orders by customer_id: without an
index on it, a scan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from runnel.model.names import quote
from runnel.plan.stage import (
    Branch,
    Constant,
    Equi,
    GroupHead,
    Inner,
    Leaf,
    LeafNode,
    Outer,
    PartitionHead,
    Plan,
    Relation,
    RowsHead,
    Stage,
    StageRef,
    Tree,
    tree_leaves,
)


@dataclass
class Access:
    """How a leaf is read when others change."""

    indexed: list[str] = field(default_factory=list)
    """Expressions by which its rows are found through an index."""
    scanned: dict[str, list[int]] = field(default_factory=dict)
    """Expressions without an index, and the leaves whose change leads there."""
    whole: list[int] = field(default_factory=list)
    """Leaves whose change reads all of it."""


def accesses(plan: Plan, branch: Branch) -> dict[int, Access]:
    """Per leaf of a join."""
    found = {leaf.id: Access() for leaf in branch.leaves}
    edges = list(_edges(branch.tree))
    for start in branch.leaves:
        if isinstance(start.source, Constant):
            continue
        reached, waiting = {start.id}, {leaf.id for leaf in branch.leaves} - {start.id}
        while waiting:
            step = _step(plan, branch, edges, reached, waiting)
            if step is None:
                for leaf in waiting:
                    found[leaf].whole.append(start.id)
                break
            far, sql, by_index = step
            if by_index:
                if sql not in found[far].indexed:
                    found[far].indexed.append(sql)
            else:
                found[far].scanned.setdefault(sql, []).append(start.id)
            reached.add(far)
            waiting.discard(far)
    for leaf, sql in _padded_keys(branch.tree):
        # Whether padding flips depends on the other rows under the key.
        if not has_index(plan, branch.leaves[leaf], sql):
            causes = found[leaf].scanned.setdefault(sql, [])
            causes += [leaf] if leaf not in causes else []
    return found


def _padded_keys(tree: Tree) -> Iterator[tuple[int, str]]:
    match tree:
        case LeafNode():
            return
        case Inner(children=children):
            for child in children:
                yield from _padded_keys(child)
        case Outer(kind=kind, left=left, right=right, equi=equi):
            yield from _padded_keys(left)
            yield from _padded_keys(right)
            inside = set(tree_leaves(right)) | (set(tree_leaves(left)) if kind == "full" else set())
            for edge in equi[:1]:
                if edge.left_leaf in inside:
                    yield edge.left_leaf, edge.left_sql
                if edge.right_leaf in inside:
                    yield edge.right_leaf, edge.right_sql


def _step(
    plan: Plan, branch: Branch, edges: list[Equi], reached: set[int], waiting: set[int]
) -> tuple[int, str, bool] | None:
    candidates = []
    for edge in edges:
        for near, far, sql in (
            (edge.left_leaf, edge.right_leaf, edge.right_sql),
            (edge.right_leaf, edge.left_leaf, edge.left_sql),
        ):
            if near in reached and far in waiting:
                candidates.append((far, sql, has_index(plan, branch.leaves[far], sql)))
    return min(candidates, key=lambda c: (not c[2], c[0]), default=None)


def _edges(tree: Tree) -> Iterator[Equi]:
    match tree:
        case LeafNode():
            return
        case Inner(children=children, equi=equi):
            for child in children:
                yield from _edges(child)
        case Outer(left=left, right=right, equi=equi):
            yield from _edges(left)
            yield from _edges(right)
    yield from equi


def key_column(leaf: Leaf, sql: str) -> str | None:
    """The column that an expression is, if it is just one."""
    return next((c.name for c in leaf.source.columns if sql == f"l{leaf.id}.{quote(c.name)}"), None)


def has_index(plan: Plan, leaf: Leaf, sql: str) -> bool:
    """Whether rows are found by this expression without a scan."""
    column = key_column(leaf, sql)
    match leaf.source:
        case Relation(indexed=indexed):
            return column in indexed
        case StageRef(index=index):
            return column in plan.stages[index].indexed
        case _:
            return True


def create_index(leaf: Leaf, sql: str) -> str | None:
    """The statement that makes a restricted read cheap."""
    if not isinstance(leaf.source, Relation) or leaf.source.lake is not None:
        return None
    column = key_column(leaf, sql)
    own = re.sub(rf"\bl{leaf.id}\.", "", sql)
    over = quote(column) if column is not None else f"({own})"
    return f"CREATE INDEX ON {_plain(leaf.source.name.sql())} ({_plain(over)});"


def _plain(text: str) -> str:
    """Without quotes where a name needs none."""
    return re.sub(r'"([a-z_][a-z0-9_]*)"', r"\1", text)


def clock_columns(leaf: Leaf) -> list[str]:
    """Columns that are compared with the clock."""
    found: list[str] = []
    for text in leaf.clock_filters:
        found += [n for n in re.findall(rf'\bl{leaf.id}\."([^"]+)"', text) if n not in found]
    return found


def is_one_row(plan: Plan, stage: Stage) -> bool:
    """Whether a stage always holds at most one row."""
    match stage.head:
        case GroupHead(keys=()):
            return True
        case PartitionHead(rest=rest):
            return re.search(r"\b(LIMIT|FETCH FIRST) 1\b(?!.*WITH TIES)", rest) is not None
        case RowsHead():
            return len(stage.branches) == 1 and all(
                isinstance(leaf.source, StageRef)
                and not leaf.functions
                and is_one_row(plan, plan.stages[leaf.source.index])
                for leaf in stage.branches[0].leaves
            )
        case _:
            return False


def is_one_row_leaf(plan: Plan, leaf: Leaf) -> bool:
    """Whether a leaf reads a single value, or a row of them."""
    return isinstance(leaf.source, StageRef) and not leaf.functions and is_one_row(plan, plan.stages[leaf.source.index])
