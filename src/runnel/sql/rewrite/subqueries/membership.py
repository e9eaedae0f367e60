"""IN, ANY and ALL over a subquery, with SQL's three truth values.

`x IN (SELECT y ..)` is true if some y equals x, else NULL if x or some y is NULL (and there is a y at all), else
false. So one derived table answers whether x is among the distinct values, another whether there are rows and NULLs.
The orderings need only the least and the greatest y: `x < ALL (..)` is `x < min(y)`.
"""

from __future__ import annotations

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.rewrite.subqueries import aggregated, build, exists, limits, queries
from runnel.sql.rewrite.subqueries.block import Block, never_null
from runnel.sql.rewrite.subqueries.correlation import Detached, detach
from runnel.sql.rewrite.subqueries.shells import distinct_keys, grouped_by_keys, shell_of

_ORDERINGS = (exp.LT, exp.LTE, exp.GT, exp.GTE)
_ORDERED_FAMILIES = frozenset({"int", "numeric", "float", "text", "date", "timestamp", "timestamptz"})


def query_of(node: exp.Expr) -> exp.Expr | None:
    """The subquery of an IN, ANY or ALL, if it has one."""
    found: exp.Expr | None = None
    if isinstance(node, exp.In):
        found = node.args.get("query")
        if found is None and len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Values):
            found = node.expressions[0]
    elif isinstance(node, exp.Binary) and isinstance(node.expression, (exp.Any, exp.All)):
        found = queries.unwrap(node.expression.this)
    return found if found is not None and isinstance(queries.unwrap(found), (exp.Query, exp.Values)) else None


def semi_join(node: exp.In, block: Block) -> list[exp.Expr]:
    """IN as a condition that has to hold: join the block, and return what remains to be checked."""
    query = _prepared(node, block)
    if _one_row(query, block):
        return [value(node, block)]
    operands = _operands(node.this)
    found = detach(query, block, duplicates=True)
    if not found.keys and not _has_columns(operands):
        return [_matches_constant(found, operands, block)]
    alias = block.ctx.fresh("q")
    on = [*found.on(alias), *_equalities(found, operands, alias)]
    block.inner_join(distinct_keys(found, found.names, block), alias, on)
    return found.gate


def value(node: exp.Expr, block: Block) -> exp.Expr:
    """IN, ANY or ALL as a boolean that may be NULL."""
    if isinstance(node, exp.In):
        return _in(node, block)
    assert isinstance(node, exp.Binary)
    every = isinstance(node.expression, exp.All)
    query = queries.plain(query_of(node) or node, block)
    if isinstance(node, exp.EQ) and not every:
        return _in(exp.In(this=node.this.copy(), query=exp.Subquery(this=query)), block)
    if isinstance(node, exp.NEQ) and every:
        return exp.paren(exp.Not(this=_in(exp.In(this=node.this.copy(), query=exp.Subquery(this=query)), block)))
    return _quantified(node, query, every, block)


def _prepared(node: exp.Expr, block: Block) -> exp.Query:
    query = queries.plain(query_of(node) or node, block)
    if not (query.args.get("limit") or query.args.get("offset")):
        distinct = query.args.get("distinct") if isinstance(query, exp.Select) else None
        if distinct is None or not distinct.args.get("on"):
            query.set("order", None)
    return query


def _operands(left: exp.Expr) -> list[exp.Expr]:
    left = left.unnest()
    if isinstance(left, exp.Tuple):
        return list(left.expressions)
    if isinstance(left, exp.Anonymous) and str(left.this).upper() == "ROW":
        return list(left.expressions)
    return [left]


def _has_columns(operands: list[exp.Expr]) -> bool:
    return any(o.find(exp.Column) for o in operands)


def _equalities(found: Detached, operands: list[exp.Expr], alias: str) -> list[exp.Expr]:
    return [
        exp.EQ(this=build.column(name, alias), expression=ex.group(operand.copy()))
        for name, operand in zip(found.names, operands, strict=True)
    ]


def _one_row(query: exp.Query, block: Block) -> bool:
    """Whether the subquery is an aggregate over everything, or a row made of expressions."""
    if not isinstance(query, exp.Select) or query.args.get("offset"):
        return False
    if queries.is_scalar_aggregate(query, block.ctx):
        return limits.literal(query.args.get("limit")) != 0
    return query.args.get("from_") is None and not query.args.get("limit")


def _row(query: exp.Query, block: Block) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """The only row of such a query, and the conditions under which it is there."""
    assert isinstance(query, exp.Select)
    if queries.is_scalar_aggregate(query, block.ctx):
        row = aggregated.lift(query, block)
        return row.items, [row.having] if row.having is not None else []
    return [e.unalias().copy() for e in query.expressions], build.where_of(query)


def _in(node: exp.In, block: Block) -> exp.Expr:
    query = _prepared(node, block)
    operands = _operands(node.this)
    if _one_row(query, block):
        items, conditions = _row(query, block)
        same = build.every(
            exp.EQ(this=ex.group(o.copy()), expression=ex.group(i)) for o, i in zip(operands, items, strict=True)
        )
        assert same is not None
        if not conditions:
            return exp.paren(same)
        return exp.paren(build.case([(build.is_true(conditions), same)], exp.false()))
    found = detach(query, block, duplicates=True)
    nullable = not all(block.never_null(o) for o in operands) or not _values_never_null(found, block)
    if nullable and len(operands) > 1:
        return _rows_in(query, operands, block)
    present = _match(found, operands, block)
    if not nullable:
        return present
    any_row, has_null = _facts(found, block)
    unknown = exp.Or(this=build.is_null(operands[0]), expression=has_null)
    branches = [(present, exp.true()), (exp.Not(this=any_row), exp.false()), (unknown, exp.null())]
    if found.gate:
        branches.insert(0, (exp.Not(this=build.is_true(found.gate)), exp.false()))
    return exp.paren(build.case(branches, exp.false()))


def _match(found: Detached, operands: list[exp.Expr], block: Block) -> exp.Expr:
    """Whether the operands equal some row: never NULL."""
    if not found.keys and not _has_columns(operands):
        return _matches_constant(found, operands, block)
    alias = block.ctx.fresh("q")
    on = [*found.on(alias), *_equalities(found, operands, alias)]
    block.left_join(distinct_keys(_copy(found), found.names, block, present=True), alias, on)
    present = build.is_not_null(build.column(build.PRESENT, alias))
    return build.both(present, found.gate)


def _copy(found: Detached) -> Detached:
    return Detached(found.query.copy(), found.names, found.keys, found.gate)


def _matches_constant(found: Detached, operands: list[exp.Expr], block: Block) -> exp.Expr:
    shell, columns = shell_of(_copy(found), block)
    same = [
        exp.EQ(this=ex.group(columns[n].copy()), expression=ex.group(o.copy()))
        for n, o in zip(found.names, operands, strict=True)
    ]
    build.add_where(shell, same)
    shell.set("expressions", [exp.Literal.number(1)])
    return build.both(exists.value(shell, block), found.gate)


def _values_never_null(found: Detached, block: Block) -> bool:
    query = found.query
    if not isinstance(query, exp.Select) or query.args.get("from_") is None:
        return False
    items = {i.alias: i.unalias() for i in query.expressions}
    return all(never_null(items[n], query, block.ctx) for n in found.names)


def _facts(found: Detached, block: Block, *more: tuple[str, str]) -> tuple[exp.Expr, exp.Column]:
    """Whether there are rows for the keys, and whether a value is NULL; `more` aggregates are (function, name)."""
    shell, columns = grouped_by_keys(_copy(found), block)
    item = columns[found.names[0]]
    null = exp.LogicalOr(this=build.is_null(item))
    alias = block.ctx.fresh("q")
    has_null, any_row = build.column("pgt_null", alias), build.column("pgt_any", alias)
    if found.keys:
        shell.append("expressions", build.named(null, "pgt_null"))
    else:
        no_null = exp.Coalesce(this=null, expressions=[exp.false()])
        some = exp.GT(this=build.count_rows(), expression=exp.Literal.number(0))
        shell.append("expressions", build.named(no_null, "pgt_null"))
        shell.append("expressions", build.named(some, "pgt_any"))
    for function, name in more:
        shell.append("expressions", build.named(build.call(function, item), name))
    if found.keys:
        block.left_join(shell, alias, found.on(alias))
        return build.is_not_null(has_null), has_null
    block.cross_join(shell, alias)
    return any_row, has_null


def _rows_in(query: exp.Query, operands: list[exp.Expr], block: Block) -> exp.Expr:
    """`(a, b) IN (..)`: true if a row equals, NULL if a row could, else false."""
    alias = block.ctx.fresh("r")
    names = [f"pgt_v{i}" for i in range(len(operands))]

    def some_row(truth: exp.Expr) -> exp.Expr:
        inner = query.copy()
        queries.name_outputs(inner, names)
        tests = [
            exp.Is(
                this=exp.paren(exp.EQ(this=build.column(n, alias), expression=ex.group(o.copy()))),
                expression=truth.copy(),
            )
            for n, o in zip(names, operands, strict=True)
        ]
        return exp.Exists(this=build.select([exp.Literal.number(1)], build.derived(inner, alias), tests))

    first = _match(detach(query.copy(), block, duplicates=True), operands, block)
    return exp.paren(build.case([(first, exp.true()), (some_row(exp.Not(this=exp.false())), exp.null())], exp.false()))


def _quantified(node: exp.Binary, query: exp.Query, every: bool, block: Block) -> exp.Expr:
    left = node.this.unnest()
    if not (query.args.get("limit") or query.args.get("offset")):
        query.set("order", None)
    if _one_row(query, block):
        items, conditions = _row(query, block)
        result = _comparison(node, left, ex.group(items[0]))
        if not conditions:
            return exp.paren(result)
        return exp.paren(build.case([(build.is_true(conditions), result)], exp.Boolean(this=every)))
    if isinstance(left, exp.Tuple) or not isinstance(node, (*_ORDERINGS, exp.EQ, exp.NEQ)) or left.find(exp.Collate):
        return _by_rows(node, query, every, block)
    found = detach(query, block, duplicates=True)
    types = block.types(found.query)
    if types is None or types[0].type.family not in _ORDERED_FAMILIES or types[0].collation:
        return _by_rows(node, query, every, block)
    any_row, has_null = _facts(found, block, ("min", "pgt_min"), ("max", "pgt_max"))
    table = has_null.table
    low, high = build.column("pgt_min", table), build.column("pgt_max", table)
    decided = _decided(node, every, low, high)
    branches = [
        (exp.Not(this=any_row), exp.Boolean(this=every)),
        (decided, exp.Boolean(this=not every)),
        (exp.Or(this=build.is_null(left), expression=has_null), exp.null()),
    ]
    if found.gate:
        branches.insert(0, (exp.Not(this=build.is_true(found.gate)), exp.Boolean(this=every)))
    return exp.paren(build.case(branches, exp.Boolean(this=every)))


def _comparison(node: exp.Binary, left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """The same operator between other operands; one that is called by name keeps its name."""
    compared = node.copy()
    compared.set("this", ex.group(left.copy()))
    compared.set("expression", right)
    return compared


def _decided(node: exp.Binary, every: bool, low: exp.Expr, high: exp.Expr) -> exp.Expr:
    """What settles the answer whatever the NULLs: a match for ANY, a mismatch for ALL."""
    kind = type(node)

    def compare(other: exp.Expr, operator: type[exp.Binary] = kind) -> exp.Expr:
        return exp.paren(operator(this=ex.group(node.this.copy()), expression=other.copy()))

    if isinstance(node, (exp.EQ, exp.NEQ)):
        # Only `<> ANY` and `= ALL` arrive here: both ask whether some y differs.
        return exp.Or(this=compare(low, exp.NEQ), expression=compare(high, exp.NEQ))
    below = isinstance(node, (exp.LT, exp.LTE))
    if every:
        return exp.Not(this=compare(low if below else high))
    return compare(high if below else low)


def _by_rows(node: exp.Binary, query: exp.Query, every: bool, block: Block) -> exp.Expr:
    """Any operator, any type: ask for a row that settles it, then for one that leaves it open."""
    alias = block.ctx.fresh("r")

    def some_row(truth: exp.Expr) -> exp.Expr:
        inner = query.copy()
        queries.name_outputs(inner, ["pgt_v0"])
        compared = _comparison(node, node.this, build.column("pgt_v0", alias))
        test = exp.Is(this=exp.paren(compared), expression=truth)
        return exp.Exists(this=build.select([exp.Literal.number(1)], build.derived(inner, alias), [test]))

    settled = some_row(exp.Boolean(this=not every))
    open_ = some_row(exp.null())
    return exp.paren(build.case([(settled, exp.Boolean(this=not every)), (open_, exp.null())], exp.Boolean(this=every)))
