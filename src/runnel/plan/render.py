"""Plans as text, for people: stages, rules, what PostgreSQL evaluates, and what a refresh would read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runnel.plan.stage import (
    Branch,
    Computed,
    GroupHead,
    Inner,
    Leaf,
    LeafNode,
    Outer,
    PartitionHead,
    Plan,
    RecursiveHead,
    Relation,
    Stage,
    StageRef,
    Tree,
    tree_leaves,
)

_KEEPS = {
    "rows": "row count",
    "count": "counter",
    "sum": "counters (algebraic)",
    "bools": "counters (algebraic)",
    "bag": "multiset of values",
}


def render_plan(plan: Plan) -> Iterator[str]:
    """The whole plan, indented."""
    for stage in plan.stages:
        last = stage.index == len(plan.stages) - 1
        title = "the stream table" if last else "hidden, maintained like a stream table"
        yield f"Stage {stage.index} ({title})"
        yield from (f"  {line}" for line in _head(stage))
        for number, branch in enumerate(stage.branches):
            if len(stage.branches) > 1:
                yield f"  Branch {number} of UNION ALL"
            yield from (f"    {line}" for line in _branch(branch))


def _head(stage: Stage) -> Iterator[str]:
    if isinstance(stage.head, PartitionHead):
        source = stage.head.source.index
        yield f"{stage.head.rule}; delta = result after - before, for touched partitions of stage {source}"
        return
    if isinstance(stage.head, RecursiveHead):
        yield from _recursion(stage.head)
        return
    if not isinstance(stage.head, GroupHead):
        yield "Rows: no state; delta = delta of the rows"
        return
    head = stage.head
    if not head.aggregates:
        yield "Distinct: multiplicity per row; delta = rows whose multiplicity becomes or leaves zero"
        return
    keys = f"{len(head.keys)} key(s)" if head.keys else "no keys, always one row"
    yield f"Aggregate: {keys}; delta = output after - output before, for touched groups"
    for aggregate in head.aggregates:
        yield f"  {aggregate.text}: {_KEEPS[aggregate.strategy]}"
    if head.having:
        yield "  HAVING: evaluated from the counters"


def _recursion(head: RecursiveHead) -> Iterator[str]:
    rule = "rows that lost a derivation are removed and derived again" if head.distinct else "sum of the rounds' deltas"
    yield f"Recursion {head.name} ({'UNION' if head.distinct else 'UNION ALL'}): iterated by PostgreSQL; delta = {rule}"
    for text in head.constants:
        yield f"  starts from: {text}"
    for base in head.bases:
        yield f"  starts from: stage {base.stage}"
    for item in head.inputs:
        yield f"  reads {item.alias}: stage {item.stage}"


def _branch(branch: Branch) -> Iterator[str]:
    yield from (_readable(line, branch) for line in _tree(branch.tree, branch))
    if branch.late:
        yield "Filter in PostgreSQL after the join"


def _readable(line: str, branch: Branch) -> str:
    """A line with the query's own table names instead of leaf numbers."""
    for leaf in branch.leaves:
        line = re.sub(rf"\bl{leaf.id}(?=[.:])", leaf.alias.replace("\\", r"\\"), line)
    return re.sub(r'"([a-z_][a-z0-9_]*)"', r"\1", line)


def _tree(tree: Tree, branch: Branch) -> Iterator[str]:
    match tree:
        case LeafNode(leaf):
            yield from _leaf(branch.leaves[leaf], branch)
        case Inner(children=children, equi=equi, residual=residual):
            rule = "Join" if len(children) > 1 else "Filter"
            conditions = [f"{e.left_sql} = {e.right_sql}" for e in equi] + [r.sql for r in residual]
            delta = "delta = one term per changed input, others narrowed by its keys" if len(children) > 1 else "linear"
            yield f"{rule} [{delta}]{_on(conditions)}"
            for child in children:
                yield from (f"  {line}" for line in _tree(child, branch))
        case Outer(kind=kind, left=left, right=right, equi=equi, residual=residual):
            conditions = [f"{e.left_sql} = {e.right_sql}" for e in equi] + [r.sql for r in residual]
            simple = isinstance(right, LeafNode) and equi and not residual
            how = "matches + padding that flips, by key counts" if simple else "after - before under touched keys"
            yield f"{kind.upper()} JOIN [delta = {how}]{_on(conditions)}"
            for child in (left, right):
                yield from (f"  {line}" for line in _tree(child, branch))


def _on(conditions: list[str]) -> str:
    return f" on {' and '.join(conditions)}" if conditions else ""


def _leaf(leaf: Leaf, branch: Branch) -> Iterator[str]:
    source = leaf.source
    if isinstance(source, Relation):
        kind = "stream table" if source.pgt_id is not None else "table"
        yield f"l{leaf.id}: {kind} {source.name} [{_access(leaf, branch)}]"
    elif isinstance(source, StageRef):
        yield f"l{leaf.id}: stage {source.index}"
    else:
        yield f"l{leaf.id}: constant rows"
    for function in leaf.functions:
        yield f"  expanded in PostgreSQL: {function.sql}"
    for text in leaf.filters:
        yield f"  filter in PostgreSQL: {text}"
    for text in leaf.clock_filters:
        yield f"  filter in PostgreSQL, moving with the clock: {text}"
    for computed in leaf.computed:
        if not is_plain(computed):
            yield f"  computed in PostgreSQL: {computed.sql}"


def is_plain(computed: Computed) -> bool:
    """Whether a computed column is just a column in its travelling form."""
    return computed.sql.count("(") <= 1 or computed.sql.endswith("::int4::int8")


def _access(leaf: Leaf, branch: Branch) -> str:
    """How a restricted read would find its rows."""
    assert isinstance(leaf.source, Relation)
    if len(list(tree_leaves(branch.tree))) == 1:
        return "reads its changes only"
    indexed = {f'l{leaf.id}."{name}"': name for name in leaf.source.indexed}
    keys = _keys(branch.tree, leaf.id)
    usable = [indexed[k] for k in keys if k in indexed]
    if usable:
        return f"changes, and rows by index on {', '.join(sorted(set(usable)))}"
    if keys:
        return f"changes, and rows by scan: no index on {', '.join(sorted(set(keys)))}"
    return "changes, and the whole table"


def _keys(tree: Tree, leaf: int) -> list[str]:
    match tree:
        case LeafNode():
            return []
        case Inner(children=children, equi=equi):
            below = [k for c in children for k in _keys(c, leaf)]
        case Outer(left=left, right=right, equi=equi):
            below = _keys(left, leaf) + _keys(right, leaf)
    own = [e.left_sql for e in equi if e.left_leaf == leaf] + [e.right_sql for e in equi if e.right_leaf == leaf]
    return below + own
