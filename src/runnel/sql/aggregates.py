"""Aggregate calls in a parsed query: which nodes are calls, and the few names that have rules of their own.

PostgreSQL says which functions of a query are aggregates. Its own are known by name, because they are printed
without a schema; others are marked in the tree (`mark_aggregates`). A call with an OVER clause is a window function and
not an aggregate of its block, whatever its name; its arguments may hold aggregates:

    rank() OVER (ORDER BY sum(x))        one aggregate, sum(x)
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from sqlglot import exp

VARIANCES = frozenset({"variance", "var_samp", "var_pop", "stddev", "stddev_samp", "stddev_pop"})
BOOLEANS = frozenset({"bool_and", "bool_or", "every"})
SUMS = frozenset({"sum", "avg"}) | VARIANCES
"""Aggregates that counters can hold when the digits of the values are bounded."""
IDEMPOTENT = frozenset({"min", "max", "bit_and", "bit_or", "any_value", "range_agg", "range_intersect_agg"})
"""Aggregates to which a second copy of a value means nothing."""

_PAIRS = frozenset(
    {
        "corr", "covar_pop", "covar_samp", "regr_avgx", "regr_avgy", "regr_count", "regr_intercept", "regr_r2",
        "regr_slope", "regr_sxx", "regr_sxy", "regr_syy",
    }
)  # fmt: skip
STRICT = SUMS | BOOLEANS | IDEMPOTENT | _PAIRS | {"count", "bit_xor"}
"""Aggregates that skip a row as soon as one of their arguments is NULL."""

STANDARD = STRICT | {
    "array_agg", "cume_dist", "dense_rank", "json_agg", "json_agg_strict", "json_object_agg", "json_object_agg_strict",
    "json_object_agg_unique", "json_object_agg_unique_strict", "jsonb_agg", "jsonb_agg_strict", "jsonb_object_agg",
    "jsonb_object_agg_strict", "jsonb_object_agg_unique", "jsonb_object_agg_unique_strict", "mode", "percent_rank",
    "percentile_cont", "percentile_disc", "rank", "string_agg", "xmlagg",
}  # fmt: skip
"""PostgreSQL's own aggregates."""


# sqlglot prints its favourite of these.
_SYNONYMS = (
    frozenset({"variance", "var_samp"}),
    frozenset({"stddev", "stddev_samp"}),
    frozenset({"bool_and", "every"}),
)
# An argument that no printer looks at, so it stays with the call wherever the call is copied to.
_MARK = "aggregate"
_AROUND = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is a whole aggregate call: with its schema, WITHIN GROUP and FILTER if it has them."""
    parent = node.parent
    if isinstance(parent, exp.Dot) and node is parent.expression:
        return False
    if isinstance(node, (*_AROUND, exp.Dot)):
        return is_call(bare_call(node)) and not _is_window(node)
    return is_call(node) and not _is_window(node)


def is_call(node: exp.Expr) -> bool:
    """Whether a bare call is one of an aggregate, by its name."""
    if isinstance(node, exp.Anonymous):
        return bool(node.args.get(_MARK)) or (not isinstance(node.parent, exp.Dot) and node.name.lower() in STANDARD)
    return isinstance(node, exp.AggFunc)


def bare_call(node: exp.Expr) -> exp.Expr:
    """The call inside of what may surround it."""
    while isinstance(node, (*_AROUND, exp.Dot)):
        node = node.expression if isinstance(node, exp.Dot) else node.this
    return node


def _is_window(node: exp.Expr) -> bool:
    while isinstance(node.parent, (*_AROUND, exp.Dot)):
        node = node.parent
    return isinstance(node.parent, exp.Window) and node is node.parent.this


def aggregate_calls(expression: exp.Expr) -> Iterator[exp.Expr]:
    """The outermost aggregate calls of an expression, not looking into subqueries.

    >>> from runnel.sql.parse import parse_query
    >>> tree = parse_query("SELECT a + max(b), sum(c) OVER (ORDER BY min(d)), (SELECT count(*) FROM u) FROM t")
    >>> [call.sql() for item in tree.expressions for call in aggregate_calls(item)]
    ['MAX(b)', 'MIN(d)']
    """
    if isinstance(expression, exp.Query):
        return
    if is_aggregate(expression):
        yield expression
        return
    for child in expression.iter_expressions():
        yield from aggregate_calls(child)


def mark_aggregates(tree: exp.Query, names: Set[str]) -> None:
    """Mark the calls of aggregates that are not PostgreSQL's own; `names` are all aggregates that the query calls."""
    for node in tree.find_all(exp.Dot):
        call = node.expression
        if isinstance(call, exp.Anonymous) and call.name in names:
            call.set(_MARK, True)


def of_schema(schema: str, call: exp.Expr) -> exp.Expr:
    """The call of an aggregate that is not PostgreSQL's own."""
    call.set(_MARK, True)
    return exp.Dot(this=exp.to_identifier(schema, quoted=True), expression=call)


def called_names(tree: exp.Query) -> frozenset[str]:
    """Names of all aggregates called anywhere, as aggregates or as window functions, in every spelling."""
    names = {function_name(n) for n in tree.find_all(exp.Func) if is_call(n)}
    return frozenset(names).union(*(group for group in _SYNONYMS if names & group))


def function_name(call: exp.Expr) -> str:
    """The name of a bare call, in lower case when it is PostgreSQL's own.

    >>> from runnel.sql.parse import parse_query
    >>> [function_name(e) for e in parse_query("SELECT sum(x), corr(x, y), variance(x)").expressions]
    ['sum', 'corr', 'var_samp']
    """
    if isinstance(call, exp.Anonymous):
        return call.name if call.args.get(_MARK) else call.name.lower()
    return call.sql(dialect="postgres").partition("(")[0].lower()


def settle_calls(tree: exp.Expr) -> None:
    """Give every call one shape, in which it is also printed as it was written.

    sqlglot reads `s.f(x) FILTER (...)` as a column `FILTER` of a table `s`, and prints `f(DISTINCT a, b)` as a CASE;
    the schema belongs to the call, and DISTINCT in front of the first argument:

        f(DISTINCT a, b ORDER BY c)     arguments [DISTINCT a, b ORDER BY c]
    """
    for node in list(tree.find_all(exp.Column, exp.Dot)):
        inside = node.this if isinstance(node, exp.Column) else node.expression
        if not isinstance(inside, _AROUND):
            continue
        call = bare_call(inside)
        schema = node.args["table"] if isinstance(node, exp.Column) else node.this
        call.replace(exp.Dot(this=schema.copy(), expression=call.copy()))
        node.replace(inside)
    for distinct in list(tree.find_all(exp.Distinct)):
        if len(distinct.expressions) > 1 and not isinstance(distinct.parent, exp.Select):
            _split_distinct(distinct)


def _split_distinct(distinct: exp.Distinct) -> None:
    first, *rest = distinct.expressions
    order = distinct.parent if isinstance(distinct.parent, exp.Order) else None
    call = order.parent if order is not None else distinct.parent
    if not isinstance(call, exp.Anonymous):
        return
    arguments: list[exp.Expr] = [exp.Distinct(expressions=[first]), *rest]
    if order is not None:
        arguments[-1] = exp.Order(this=arguments[-1], expressions=order.expressions)
    call.set("expressions", arguments)
