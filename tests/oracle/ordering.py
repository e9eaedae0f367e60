"""Orders that decide everything, and what depends on them: LIMIT, WITH TIES, DISTINCT ON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.oracle.context import Context, Query, firm, named, shown
from tests.oracle.expressions import expression, usable
from tests.oracle.joins import FromClause
from tests.oracle.values import Col

DIRECTIONS = ("", " DESC", " NULLS FIRST", " DESC NULLS LAST")


def order_by(ctx: Context, columns: Sequence[Col], first: int = 1) -> str:
    """The columns as an ORDER BY; the first ones in any direction."""
    texts = list(dict.fromkeys(c.sql for c in columns))
    return ", ".join(t + (ctx.pick(DIRECTIONS) if i < first else "") for i, t in enumerate(texts))


def limited(ctx: Context, query: Query) -> Query:
    """The query with an ORDER BY and a LIMIT."""
    columns = firm(query.columns)
    if len(columns) < len(query.columns):
        # Nothing that is left out may depend on digits that are in doubt.
        items = columns or [Col("1", "int")]
        text, named_columns = named(items)
        unique = shown(items, query.unique)
        query = Query(f"SELECT {text} FROM ({query.sql}) {ctx.name('o')}", named_columns, unique)
        columns = list(named_columns)
    shuffled = [ctx.pick(columns), *columns]
    if ctx.budget.ties and ctx.chance(60):
        ctx.budget.tied = True
        shuffled = shuffled[:1]
    elif ctx.chance(20):
        order = order_by(ctx, shuffled[: ctx.number(1, 2)], 2)
        rows = ctx.pick([1, 2, 3, 0])
        return replace(query, sql=f"{query.sql} ORDER BY {order} FETCH FIRST {rows} ROWS WITH TIES")
    text = f"{query.sql} ORDER BY {order_by(ctx, shuffled, 2)}"
    limit, offset = f" LIMIT {ctx.pick([1, 2, 3, 5, 0])}", f" OFFSET {ctx.number(0, 3)}"
    return replace(query, sql=text + ctx.pick([limit, limit + offset, offset]))


def distinct_on(ctx: Context, clause: FromClause, where: str) -> Query:
    """The first row of each key."""
    scope = firm(clause.scope)
    keys = [replace(c) for c in ctx.several(usable(scope), 1, 2)]
    items = list(dict.fromkeys([*(k for k in keys if not ctx.chance(15)), expression(ctx.draw, scope)]))
    items += [expression(ctx.draw, scope) for _ in range(ctx.number(0, 2))]
    items = list({c.sql: c for c in items}.values())
    text, columns = named(items)
    on = ", ".join(k.sql for k in keys)
    rest = [ctx.pick(scope)] if ctx.chance(60) else []
    if ctx.budget.ties and ctx.chance(60):
        ctx.budget.tied = True
        order = order_by(ctx, [*keys, *rest], 3)
    else:
        order = order_by(ctx, [*keys, *rest, *clause.total()], 3)
    sql = f"SELECT DISTINCT ON ({on}) {text} FROM {clause.sql}{where} ORDER BY {order}"
    return Query(sql, columns, shown(items, [k.sql for k in keys]))
