"""Subqueries in join conditions.

Of inner joins they move to WHERE. Of a LEFT JOIN, a conjunct over the right side alone filters that side before the
join; one over the left side alone is computed before the join.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.subqueries import build, flat
from runnel.sql.rewrite.subqueries.block import Block
from runnel.sql.rewrite.subqueries.scopes import free_columns, has_query, item_names, name_of

MESSAGE = "a subquery in the condition of an outer join"


def clear(block: Block, replace_all: Callable[[exp.Expr], exp.Expr]) -> None:
    """Take the subqueries out of a block's join conditions; `replace_all` turns those of one condition into joins."""
    select = block.select
    flat.move_to_where(select, has_query)
    number = 0
    while number < len(select.args.get("joins") or []):
        join = select.args["joins"][number]
        on = join.args.get("on")
        if on is not None and has_query(on):
            number = _outer(block, number, join, replace_all)
        number += 1
    if any(j.args.get("on") is not None and has_query(j.args["on"]) for j in tr.joins_of(select)):
        raise NotDifferentiable(MESSAGE)


def _outer(block: Block, number: int, join: exp.Join, replace_all: Callable[[exp.Expr], exp.Expr]) -> int:
    side = (join.side or "").upper()
    right = item_names(join.this)
    stay: list[exp.Expr] = []
    filters: list[exp.Expr] = []
    before: list[exp.Expr] = []
    for part in ex.conjuncts(join.args["on"]):
        used = frozenset(name_of(c) for c in free_columns(part, block.names))
        if not has_query(part):
            stay.append(part)
        elif side == "LEFT" and used <= right and len(right) == 1 and not join.args.get("using"):
            filters.append(part)
        elif side == "LEFT" and not used & right:
            before.append(part)
        else:
            raise NotDifferentiable(MESSAGE)
    if filters:
        (name,) = right
        join.set("this", filtered(join.this, name, filters, block.select))
    # The FROM clause in front of the join is what these see, and where their joins go.
    block.position = number
    for part in before:
        stay.append(replace_all(part.copy()))
    join.set("on", build.every(stay) or exp.true())
    number = block.position
    block.position = None
    return number


def filtered(item: exp.Expr, name: str, filters: list[exp.Expr], select: exp.Select) -> exp.Subquery:
    """`(SELECT <the columns in use> FROM item WHERE filters) AS name`."""
    used: list[str] = []
    for column in select.find_all(exp.Column):
        if column.table == name and column.name not in used:
            if isinstance(column.this, exp.Star):
                raise NotDifferentiable(MESSAGE)
            used.append(column.name)
    items: list[exp.Expr] = [build.named(build.column(c, name), c) for c in used]
    inner = build.select(items or [exp.Literal.number(1)], item.copy(), filters)
    return tr.derived(inner, name)
