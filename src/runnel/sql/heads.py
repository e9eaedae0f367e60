"""SELECT list, GROUP BY, HAVING, DISTINCT -> a head, and what each branch must hand to it."""

from __future__ import annotations

from sqlglot import exp

from runnel.model.types import Column
from runnel.plan import expr as ex
from runnel.plan.stage import Branch, GroupHead, RowsHead
from runnel.sql.aggregates import bare_call, is_aggregate
from runnel.sql.aggregation import Aggregation, BranchInput
from runnel.sql.calls import Call, parse_call
from runnel.sql.draft import NotDifferentiable

__all__ = ["BranchInput", "distinct_head", "group_head", "rows_head"]


def rows_head(branches: list[BranchInput], columns: tuple[Column, ...]) -> tuple[RowsHead, list[Branch]]:
    """No aggregation: the select list is evaluated by PostgreSQL over carried columns."""
    built = []
    for branch in branches:
        inputs = [branch.lowering.carry(item) for item in branch.items]
        built.append(finish(branch, inputs, columns, []))
    return RowsHead(tuple(c.type for c in columns)), built


def distinct_head(branches: list[BranchInput], columns: tuple[Column, ...]) -> tuple[GroupHead, list[Branch]]:
    """DISTINCT and UNION: a group per row, no aggregates."""
    _, built = rows_head(branches, columns)
    types = tuple(c.type for c in columns)
    outputs = tuple(f"k{i}" for i in range(len(columns)))
    return GroupHead(types, tuple(c.collation for c in columns), (), types, outputs), built


def group_head(
    branches: list[BranchInput], select: exp.Select, _columns: tuple[Column, ...]
) -> tuple[GroupHead, list[Branch]]:
    """GROUP BY with aggregates; all branches share the select list, each over its own leaves."""
    first = branches[0]
    group = select.args.get("group")
    texts: list[exp.Expr] = [g.unnest() for g in group.expressions] if group else []
    having = select.args.get("having")
    calls: list[exp.Expr] = []
    outputs = [_placeholders(e.unalias(), texts, calls) for e in select.expressions]
    having_expr = _placeholders(having.this, texts, calls) if having else None
    if any(ex.mentions_clock(e) for e in [*outputs, *([having_expr] if having_expr is not None else [])]):
        raise NotDifferentiable("the current time as a value")
    parsed = [parse_call(c) for c in calls]
    direct = [_direct_arguments(p, texts) for p in parsed]

    key_columns = [first.lowering.column_of(first.scope.resolve(t)) for t in texts]
    aggregation = Aggregation(branches, key_columns)
    for text in texts:
        aggregation.add_input([b.scope.resolve(text) for b in branches], always=True)
    aggregates = tuple(aggregation.add(call, d) for call, d in zip(parsed, direct, strict=True))
    head = GroupHead(
        keys=tuple(c.type for c in key_columns),
        key_collations=tuple(c.collation for c in key_columns),
        aggregates=aggregates,
        inputs=tuple(c.type for c in aggregation.columns),
        outputs=tuple(ex.pg(o) for o in outputs),
        having=ex.pg(having_expr) if having_expr is not None else None,
        bags=tuple(aggregation.bags),
    )
    columns = tuple(aggregation.columns)
    parts = zip(branches, aggregation.inputs, aggregation.sums, strict=True)
    return head, [finish(b, i, columns, s) for b, i, s in parts]


def finish(
    branch: BranchInput, inputs: list[exp.Expr], columns: tuple[Column, ...], sums: list[tuple[int, int]]
) -> Branch:
    """Freeze a branch; each input is cast to the type that all branches share."""
    lowering = branch.lowering
    tree = lowering.lower_tree()
    return Branch(
        tree=tree,
        leaves=lowering.lower_leaves(),
        carried=tuple(lowering.carried),
        sums=tuple(sums),
        inputs=tuple(f"({ex.pg(i)})::{c.type.sql}" for i, c in zip(inputs, columns, strict=True)),
        late=tuple(ex.pg(c) for c in lowering.late),
    )


def _placeholders(expression: exp.Expr, keys: list[exp.Expr], calls: list[exp.Expr]) -> exp.Expr:
    """Replace group keys by `k<i>` and aggregate calls by `a<j>`."""

    def change(node: exp.Expr) -> exp.Expr | None:
        bare = node.unnest()
        for i, key in enumerate(keys):
            if bare == key:
                return exp.column(f"k{i}")
        if is_aggregate(node):
            if node not in calls:
                calls.append(node)
            return exp.column(f"a{calls.index(node)}")
        if isinstance(node, exp.Column):
            # Not grouped by, yet PostgreSQL accepted it: the grouped primary key determines it.
            keys.append(node)
            return exp.column(f"k{len(keys) - 1}")
        return None

    return ex.rewrite(expression, change)


def _direct_arguments(call: Call, keys: list[exp.Expr]) -> list[exp.Expr]:
    """The direct arguments of an ordered-set aggregate, over the group row `g`: one value per group."""
    if not isinstance(call.node, exp.WithinGroup):
        return []

    def change(node: exp.Expr) -> exp.Expr | None:
        return exp.column(node.name, table="g") if isinstance(node, exp.Column) else None

    return [ex.rewrite(_placeholders(a, keys, []), change) for a in bare_call(call.node).expressions]
