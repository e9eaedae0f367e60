"""SELECT list, GROUP BY, HAVING, DISTINCT -> a head, and what each branch must hand to it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from runnel.model.types import DECIMAL_DIGITS, LONG, SUM_HEADROOM, Column, PgType, decimal_form
from runnel.plan import expr as ex
from runnel.plan.stage import Aggregate, Branch, GroupHead, RowsHead, Strategy
from runnel.sql.aggregates import BOOLEANS, SUPPORTED, VARIANCES, is_aggregate
from runnel.sql.draft import NotDifferentiable, Scope
from runnel.sql.lower import Lowering

# Sums of numerics with more fractional digits than this are recomputed from their values: a running sum would
# remember the scale of values that are gone, and avg() rounds by that scale.
MAX_SUM_SCALE = 12


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate call, taken apart."""

    function: str
    arg: exp.Expr | None
    distinct: bool
    text: str


@dataclass
class BranchInput:
    """One branch while its head is being built."""

    lowering: Lowering
    scope: Scope
    items: list[exp.Expr]
    """The select list over leaves."""


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
    branches: list[BranchInput], select: exp.Select, columns: tuple[Column, ...]
) -> tuple[GroupHead, list[Branch]]:
    """GROUP BY with aggregates; all branches share the select list, each over its own leaves."""
    first = branches[0]
    group = select.args.get("group")
    texts: list[exp.Expr] = [g.unnest() for g in group.expressions] if group else []
    having = select.args.get("having")
    calls: list[exp.Expr] = []
    outputs = [_placeholders(e.unalias(), texts, calls) for e in select.expressions]
    having_expr = _placeholders(having.this, texts, calls) if having else None

    keys = [[b.scope.resolve(t) for t in texts] for b in branches]
    key_columns = [first.lowering.column_of(k) for k in keys[0]]
    parsed = [[parse_call(c, b.scope) for c in calls] for b in branches]
    aggregates: list[Aggregate] = []
    inputs = [[b.lowering.carry(k) for k in ks] for b, ks in zip(branches, keys, strict=True)]
    input_columns = list(key_columns)
    sums: list[list[tuple[int, int]]] = [[] for _ in branches]
    for j in range(len(calls)):
        per_branch = [p[j] for p in parsed]
        aggregate, arg_column = _aggregate(branches, per_branch, len(input_columns), len(sums[0]))
        if aggregate.partial is not None:
            scale = _digits(branches, per_branch)[1] if aggregate.strategy == "sum" else 0
            for b, call, into in zip(branches, per_branch, sums, strict=True):
                into.extend(_partials(b.lowering, call, aggregate, scale))
        elif aggregate.args:
            assert arg_column is not None
            for b, call, into_inputs in zip(branches, per_branch, inputs, strict=True):
                assert call.arg is not None
                into_inputs.append(b.lowering.carry(call.arg))
            input_columns.append(arg_column)
        aggregates.append(aggregate)
    head = GroupHead(
        keys=tuple(c.type for c in key_columns),
        key_collations=tuple(c.collation for c in key_columns),
        aggregates=tuple(aggregates),
        inputs=tuple(c.type for c in input_columns),
        outputs=tuple(ex.pg(o) for o in outputs),
        having=ex.pg(having_expr) if having_expr is not None else None,
    )
    built = [finish(b, i, tuple(input_columns), s) for b, i, s in zip(branches, inputs, sums, strict=True)]
    return head, built


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


def parse_call(node: exp.Expr, scope: Scope) -> Call:
    """Take an aggregate call apart and fold its FILTER clause into the argument."""
    text = ex.pg(node)
    condition = None
    if isinstance(node, exp.Filter):
        condition = scope.resolve(node.expression.this)
        node = node.this
    function = ex.pg(node).partition("(")[0].lower()
    arguments = [node.this, *node.expressions] if not isinstance(node, exp.Anonymous) else node.expressions
    arg = arguments[0] if arguments else None
    distinct = isinstance(arg, exp.Distinct)
    if isinstance(arg, exp.Distinct):
        if len(arg.expressions) != 1:
            raise NotDifferentiable(f"the aggregate {text}")
        arg = arg.expressions[0]
    if function not in SUPPORTED or isinstance(arg, exp.Order) or len([a for a in arguments if a is not None]) > 1:
        raise NotDifferentiable(f"the aggregate {text}")
    value: exp.Expr | None = None if arg is None or isinstance(arg, exp.Star) else scope.resolve(arg)
    if condition is not None:
        body = value if value is not None else exp.Literal.number(1)
        value = exp.Case(ifs=[exp.If(this=condition, true=body.copy())])
    return Call(function, value, distinct, text)


def _aggregate(
    branches: list[BranchInput], calls: list[Call], next_input: int, next_sum: int
) -> tuple[Aggregate, Column | None]:
    call, lowering = calls[0], branches[0].lowering
    if call.arg is None:
        return Aggregate("count", "rows", False, (), _type(lowering, call), call.text), None
    column = lowering.column_of(call.arg)
    strategy, squares, nan = _strategy(branches, calls, column)
    partial = None
    if strategy in ("count", "sum", "bools") and _spark_can_add(branches, calls, strategy, squares):
        partial = next_sum
    aggregate = Aggregate(
        function="bool_and" if call.function == "every" else call.function,
        strategy=strategy,
        distinct=call.distinct and call.function not in ("min", "max"),
        args=() if partial is not None else (next_input,),
        type=_type(lowering, call),
        text=call.text,
        squares=squares,
        nan=nan,
        partial=partial,
    )
    return aggregate, column


def _type(lowering: Lowering, call: Call) -> PgType:
    arg = exp.Star() if call.arg is None else call.arg
    inner = exp.Distinct(expressions=[arg.copy()]) if call.distinct else arg.copy()
    return lowering.column_of(exp.Anonymous(this=call.function, expressions=[inner])).type


def _strategy(branches: list[BranchInput], calls: list[Call], column: Column) -> tuple[Strategy, bool, bool]:
    call = calls[0]
    if call.function in BOOLEANS:
        return "bools", False, False
    if call.function == "count":
        return ("bag" if call.distinct else "count"), False, False
    if call.distinct or call.function in ("min", "max") or call.function.startswith("bit_"):
        return "bag", False, False
    bounds = [b.lowering.bounds(c.arg) for b, c in zip(branches, calls, strict=True) if c.arg is not None]
    if all(b is not None and b[1] <= MAX_SUM_SCALE for b in bounds):
        return "sum", call.function in VARIANCES, column.type.family == "numeric"
    return "bag", False, False


def _digits(branches: list[BranchInput], calls: list[Call]) -> tuple[int, int]:
    bounds = [b.lowering.bounds(c.arg) for b, c in zip(branches, calls, strict=True) if c.arg is not None]
    whole = max(b[0] - b[1] for b in bounds if b)
    scale = max(b[1] for b in bounds if b)
    return whole + scale, scale


def _spark_can_add(branches: list[BranchInput], calls: list[Call], strategy: Strategy, squares: bool) -> bool:
    for branch, call in zip(branches, calls, strict=True):
        if call.arg is None or branch.lowering.value_leaf(call.arg) is None:
            return False
    if strategy != "sum":
        return True
    precision = _digits(branches, calls)[0]
    return precision * (2 if squares else 1) + SUM_HEADROOM <= DECIMAL_DIGITS


def _partials(lowering: Lowering, call: Call, aggregate: Aggregate, scale: int) -> list[tuple[int, int]]:
    """What Spark adds up for one aggregate: count, then sum, squares and NaNs as the strategy needs."""
    assert call.arg is not None
    leaf = lowering.value_leaf(call.arg)
    assert leaf is not None
    result = [lowering.push_number(leaf, call.arg, "({e} IS NOT NULL)::int4::int8", LONG)]
    if aggregate.strategy == "bools":
        result.append(lowering.push_number(leaf, call.arg, "{e}::int4::int8", LONG))
    if aggregate.strategy == "sum":
        value = "nullif({e}::numeric, 'NaN')" if aggregate.nan else "{e}::numeric"
        result.append(lowering.push_number(leaf, call.arg, value, decimal_form(scale)))
        if aggregate.squares:
            result.append(lowering.push_number(leaf, call.arg, f"{value} * {value}", decimal_form(2 * scale)))
        if aggregate.nan:
            result.append(lowering.push_number(leaf, call.arg, "({e}::numeric = 'NaN')::int4::int8", LONG))
    return result
