"""A subquery used as a value -> a column of a joined derived table.

An aggregate, `(SELECT max(i.v) FROM i WHERE i.k = o.a)` (see `aggregated`):

    LEFT JOIN (SELECT max(i.v) AS pgt_a0, i.k AS pgt_k0 FROM i GROUP BY i.k) q ON q.pgt_k0 = o.a

At most one row, `(SELECT i.v FROM i WHERE i.id = o.a)` with a unique `id`:

    LEFT JOIN (SELECT i.v AS pgt_v0, i.id AS pgt_k0 FROM i) q ON q.pgt_k0 = o.a

Any number of rows, `(SELECT i.v FROM i WHERE i.k = o.a)`, as `pgtrickle._single(q.pgt_n, q.pgt_v0)`, which raises
PostgreSQL's error for more than one row where the value is used:

    LEFT JOIN (SELECT i.k AS pgt_k0, least(count(*), 2) AS pgt_n, <the only i.v> AS pgt_v0 FROM i GROUP BY i.k) q
"""

from __future__ import annotations

from sqlglot import exp

from runnel.model.versions import STAND_IN_SCHEMA
from runnel.sql import aggregates, registry
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.subqueries import aggregated, build, limits, queries
from runnel.sql.rewrite.subqueries.block import Block
from runnel.sql.rewrite.subqueries.correlation import Detached, at_most_one_row, detach
from runnel.sql.rewrite.subqueries.shells import grouped_by_keys, shell_of


def value(query: exp.Expr, block: Block) -> exp.Expr:
    """A scalar subquery as an expression over the block."""
    query = queries.plain(query, block)
    if queries.width(query) != 1:
        raise NotDifferentiable(registry.UNRULED, "a subquery of several columns used as a value")
    if isinstance(query, exp.Select) and not query.args.get("offset"):
        if queries.is_scalar_aggregate(query, block.ctx) and limits.literal(query.args.get("limit")) != 0:
            row = aggregated.lift(query, block)
            return row.items[0] if row.having is None else exp.paren(build.case([(row.having, row.items[0])]))
        if query.args.get("from_") is None and not query.args.get("limit"):
            return _without_from(query)
    single = at_most_one_row(query, block)
    if not query.args.get("limit") and not query.args.get("offset"):
        query.set("order", None)
    found = detach(query, block)
    alias = block.ctx.fresh("q")
    result: exp.Expr = build.column("pgt_v0", alias)
    if single and found.keys:
        block.left_join(found.query, alias, found.on(alias))
    elif single:
        block.cross_join(_any(found, block), alias)
    else:
        _count(found, alias, block)
        result = _single(build.column("pgt_n", alias), result)
    return result if not found.gate else exp.paren(build.case([(build.is_true(found.gate), result)]))


def _without_from(query: exp.Select) -> exp.Expr:
    item = exp.paren(query.expressions[0].unalias().copy())
    conditions = build.where_of(query)
    return item if not conditions else exp.paren(build.case([(build.is_true(conditions), item)]))


def _any(found: Detached, block: Block) -> exp.Select:
    """The value of a query with at most one row, in exactly one row."""
    shell, columns = shell_of(found, block)
    shell.set("expressions", [build.named(_any_value(columns["pgt_v0"], block), "pgt_v0")])
    return shell


def _any_value(item: exp.Expr, block: Block) -> exp.Expr:
    call = build.call("any_value", item)
    return call if block.ctx.has_any_value else aggregates.of_schema(STAND_IN_SCHEMA, call)


def _count(found: Detached, alias: str, block: Block) -> None:
    shell, columns = grouped_by_keys(found, block)
    number = exp.Least(this=build.count_rows(), expressions=[exp.Literal.number(2)])
    only = exp.EQ(this=build.count_rows(), expression=exp.Literal.number(1))
    shell.append("expressions", build.named(number, "pgt_n"))
    item = build.case([(only, _any_value(columns["pgt_v0"], block))])
    shell.append("expressions", build.named(item, "pgt_v0"))
    if found.keys:
        block.left_join(shell, alias, found.on(alias))
    else:
        block.cross_join(shell, alias)


def _single(number: exp.Expr, result: exp.Expr) -> exp.Expr:
    return exp.Dot(this=tr.identifier("pgtrickle"), expression=build.call("_single", number, result))


def array(query: exp.Expr, block: Block) -> exp.Expr:
    """`ARRAY(SELECT v ORDER BY o)` -> `COALESCE((SELECT array_agg(v ORDER BY o)), '{}')`."""
    query = queries.plain(query, block)
    queries.name_outputs(query, ["pgt_v0"])
    order: list[exp.Expr] = []
    if not queries.is_simple(query, block.ctx) or query.args.get("from_") is None:
        query, order = _ordered(query, block)
    elif query.args.get("order"):
        order = [o.copy() for o in query.args["order"].expressions]
    assert isinstance(query, exp.Select)
    query.set("order", None)
    item = query.expressions[0].unalias().copy()
    argument = exp.Order(this=item, expressions=order) if order else item
    collected = exp.Coalesce(this=build.call("array_agg", argument), expressions=[exp.Literal.string("{}")])
    query.set("expressions", [collected])
    return value(query, block)


def _ordered(query: exp.Query, block: Block) -> tuple[exp.Select, list[exp.Expr]]:
    """The query as a derived table, and its order as an order over that."""
    alias = block.ctx.fresh("o")
    order: list[exp.Expr] = []
    for number, item in enumerate(query.args["order"].expressions if query.args.get("order") else []):
        if not isinstance(query, exp.Select):
            raise NotDifferentiable(registry.UNRULED, "ARRAY(subquery) over an ordered set operation")
        query.append("expressions", build.named(item.this, f"pgt_o{number}"))
        outer = item.copy()
        outer.set("this", build.column(f"pgt_o{number}", alias))
        order.append(outer)
    if not (query.args.get("limit") or query.args.get("offset")):
        distinct = query.args.get("distinct")
        if distinct is None or not distinct.args.get("on"):
            query.set("order", None)
    return build.select([build.column("pgt_v0", alias)], build.derived(query, alias)), order
