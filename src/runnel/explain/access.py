"""How a refresh reads the inputs of a join, and which of it costs more than the change.

The change of one leaf is followed along the equalities of the join by the very functions that a refresh uses
(`runnel.delta.restrict`), only that nothing is read: one key is taken to lead on from each leaf. A leaf reached by an
indexed column is read by index, one that is reached by another column is scanned, and one that is not reached at all is
read as a whole.

    orders o JOIN customers c ON c.id = o.customer_id

A change of orders reaches customers by their key. A change of customers reaches orders by customer_id: without an
index on it, a scan.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from runnel.delta.restrict import Met, Unread, restricted_reads
from runnel.delta.telescope import telescope
from runnel.model.names import quote
from runnel.plan.stage import (
    Branch,
    Constant,
    GroupHead,
    Leaf,
    PartitionHead,
    Plan,
    RecursiveHead,
    Relation,
    RowsHead,
    Stage,
    StageRef,
)
from runnel.ports.rows import Restriction

_SCAN = 1_000_000.0
"""Rows that a scan is taken to touch: an index is always the better way."""


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

    def cost(leaf: int, sql: str, keys: int) -> float:
        return float(keys) if has_index(plan, branch.leaves[leaf], sql) else _SCAN

    for start in branch.leaves:
        if isinstance(start.source, Constant):
            continue
        for term in telescope(branch.tree, [start.id]):
            restricted_reads(branch, term, {start.id: Unread()}, _noted(plan, branch, found, start.id), cost)
    return found


def _noted(
    plan: Plan, branch: Branch, found: dict[int, Access], start: int
) -> Callable[[int, Restriction | None], Met | None]:
    """In place of a read: a note that the change of `start` leads to it."""

    def read(leaf: int, restriction: Restriction | None) -> Met | None:
        access = found[leaf]
        if restriction is None:
            if leaf != start and start not in access.whole:
                access.whole.append(start)
        elif has_index(plan, branch.leaves[leaf], restriction.sql):
            if leaf != start and restriction.sql not in access.indexed:
                access.indexed.append(restriction.sql)
        else:
            causes = access.scanned.setdefault(restriction.sql, [])
            causes += [start] if start not in causes else []
        return Unread()

    return read


def has_index(plan: Plan, leaf: Leaf, sql: str) -> bool:
    """Whether rows are found by this expression without a scan."""
    column = leaf.plain_column(sql)
    match leaf.source:
        case Relation(indexed=indexed):
            return column in indexed
        case StageRef(index=index):
            return column in plan.stages[index].indexed
        case Constant():
            return True


def create_index(leaf: Leaf, sql: str) -> str | None:
    """The statement that makes a restricted read cheap; None where no index can be made."""
    if not isinstance(leaf.source, Relation) or leaf.source.origin.by_statistics:
        return None
    column = leaf.plain_column(sql)
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
        case GroupHead(keys=keys):
            return not keys
        case PartitionHead(rest=rest):
            return re.search(r"\b(LIMIT|FETCH FIRST) 1\b(?!.*WITH TIES)", rest) is not None
        case RowsHead():
            return len(stage.branches) == 1 and all(is_one_row_leaf(plan, leaf) for leaf in stage.branches[0].leaves)
        case RecursiveHead():
            return False
        case unknown:
            assert_never(unknown)


def is_one_row_leaf(plan: Plan, leaf: Leaf) -> bool:
    """Whether a leaf reads a single value, or a row of them."""
    return isinstance(leaf.source, StageRef) and not leaf.functions and is_one_row(plan, plan.stages[leaf.source.index])
