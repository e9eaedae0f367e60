"""ORDER BY .. LIMIT n OFFSET m of a correlated subquery: rows are numbered per key.

SELECT i.v FROM i WHERE i.k = o.a ORDER BY i.t LIMIT 2
->  SELECT n.v, n.k FROM (SELECT i.v, i.k, row_number() OVER (PARTITION BY i.k ORDER BY i.t) AS r FROM i) n
    WHERE n.r <= 2
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.subqueries import build, queries
from runnel.sql.rewrite.subqueries.block import Block

COUNTERS = ("pgt_row", "pgt_rank")


def literal(clause: exp.Expr | None) -> int | None:
    """The number in a LIMIT, FETCH or OFFSET clause."""
    if clause is None:
        return None
    value = clause.args.get("count") if isinstance(clause, exp.Fetch) else clause.expression
    if isinstance(clause, exp.Fetch) and value is None:
        return 1
    value = value.unnest() if isinstance(value, exp.Expr) else None
    while isinstance(value, exp.Cast):
        value = value.this.unnest()
    if isinstance(value, exp.Literal) and str(value.this).isdigit():
        return int(value.this)
    return None


def with_ties(query: exp.Query) -> bool:
    """Whether rows that tie with the last one are kept."""
    limit = query.args.get("limit")
    options = limit.args.get("limit_options") if isinstance(limit, exp.Fetch) else None
    return bool(options is not None and options.args.get("with_ties"))


def number_rows(
    select: exp.Select, names: list[str], block: Block
) -> tuple[exp.Select, Callable[[str], list[exp.Expr]]]:
    """The SELECT without LIMIT but with two counters, and the condition on them that stands for the LIMIT."""
    limit, offset = literal(select.args.get("limit")), literal(select.args.get("offset"))
    if (select.args.get("limit") and limit is None) or (select.args.get("offset") and offset is None):
        raise NotDifferentiable("LIMIT with an expression in a correlated subquery")
    ties = with_ties(select)
    order = [o.copy() for o in select.args["order"].expressions] if select.args.get("order") else []
    for clause in ("limit", "offset", "order"):
        if clause != "order" or not _distinct_on(select):
            select.set(clause, None)
    if select.args.get("distinct") or tr.is_grouped(select, block.ctx) or queries.windows(select):
        select, order = _over(select, names, order, block)
    for name, function in zip(COUNTERS, ("row_number", "rank"), strict=True):
        over = exp.Order(expressions=[o.copy() for o in order]) if order else None
        window = exp.Window(this=build.call(function), over="OVER", order=over)
        select.append("expressions", build.named(window, name))

    def keep(alias: str) -> list[exp.Expr]:
        row, rank = (build.column(c, alias) for c in COUNTERS)
        conditions: list[exp.Expr] = []
        if offset:
            conditions.append(exp.GT(this=row.copy(), expression=exp.Literal.number(offset)))
        if limit is not None:
            last = exp.Literal.number(limit + (offset or 0))
            conditions.append(exp.LTE(this=(rank if ties else row).copy(), expression=last))
        return conditions

    return select, keep


def _distinct_on(select: exp.Select) -> bool:
    distinct = select.args.get("distinct")
    return distinct is not None and distinct.args.get("on") is not None


def _over(
    select: exp.Select, names: list[str], order: list[exp.Expr], block: Block
) -> tuple[exp.Select, list[exp.Expr]]:
    """The SELECT as a derived table that also gives what it is ordered by."""
    alias = block.ctx.fresh("o")
    sorted_by: list[exp.Expr] = []
    for number, item in enumerate(order):
        select.append("expressions", build.named(item.this, f"pgt_o{number}"))
        outer = item.copy()
        outer.set("this", build.column(f"pgt_o{number}", alias))
        sorted_by.append(outer)
    items = [build.named(build.column(n, alias), n) for n in names]
    return build.select(items, build.derived(select, alias)), sorted_by


def limited_union(query: exp.SetOperation, names: list[str], block: Block) -> exp.Select:
    """A set operation with ORDER BY and LIMIT as a SELECT over a derived table."""
    alias = block.ctx.fresh("u")
    inner = query.copy()
    result = build.select([build.named(build.column(n, alias), n) for n in names], build.derived(inner, alias))
    for clause in ("limit", "offset", "order"):
        part = inner.args.get(clause)
        inner.set(clause, None)
        result.set(clause, part)
    for item in result.args["order"].expressions if result.args.get("order") else []:
        position = item.this.unnest()
        if isinstance(position, exp.Literal):
            item.set("this", build.column(names[int(position.this) - 1], alias))
        elif isinstance(position, exp.Column) and position.name in names:
            item.set("this", build.column(position.name, alias))
        else:
            raise NotDifferentiable("ORDER BY of a correlated set operation")
    return result
