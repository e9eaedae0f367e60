"""INTERSECT and EXCEPT as groups.

    a EXCEPT b       ->   SELECT u.c1 FROM (SELECT a.x AS c1, 1 AS l, 0 AS r UNION ALL SELECT b.y, 0, 1) u
                          GROUP BY u.c1 HAVING sum(u.l) > 0 AND sum(u.r) = 0
    a EXCEPT ALL b   ->   the same groups with their counts, each repeated by generate_series(1, l - r)

Groups treat NULLs as equal, like set operations do. Members are cast to the type that PostgreSQL resolves for the
operation. UNION and UNION ALL stay.
"""

from __future__ import annotations

import sqlglot
from sqlglot import exp

from runnel.model.types import Column
from runnel.sql import registry
from runnel.sql.draft import NotDifferentiable
from runnel.sql.grammar import Faithful
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context

_COUNTS: dict[type[exp.Expr], str] = {
    exp.Intersect: 'least(sum("{u}"."l"), sum("{u}"."r")) > 0',
    exp.Except: 'sum("{u}"."l") > sum("{u}"."r")',
}
_REPEATS: dict[type[exp.Expr], str] = {
    exp.Intersect: 'least("{g}"."l", "{g}"."r")',
    exp.Except: '"{g}"."l" - "{g}"."r"',
}
_EXISTS: dict[type[exp.Expr], str] = {
    exp.Intersect: 'sum("{u}"."l") > 0 AND sum("{u}"."r") > 0',
    exp.Except: 'sum("{u}"."l") > 0 AND sum("{u}"."r") = 0',
}


def rewrite(tree: exp.Query, ctx: Context) -> exp.Query:
    """Replace every INTERSECT and EXCEPT of a query."""
    return tr.change_queries(tree.copy(), lambda query: _replace(query, ctx))


def _replace(query: exp.Query, ctx: Context) -> exp.Query:
    if not isinstance(query, (exp.Intersect, exp.Except)):
        return query
    columns = tr.column_types(query, query, ctx)
    names = [f"c{i + 1}" for i in range(len(columns))]
    if not names:
        raise NotDifferentiable(registry.UNRULED, "a set operation without columns")
    outputs = [n or c for n, c in zip(tr.output_names(query), names, strict=True)]
    left = _member(query.this, columns, names, (1, 0), ctx)
    right = _member(query.expression, columns, names, (0, 1), ctx)
    union = exp.Union(this=left, expression=right, distinct=False)
    block = _distinct(query, union, names, ctx) if query.args.get("distinct") else _all(query, union, names, ctx)
    result, alias = block
    result.set("expressions", [tr.named(tr.column(n, alias), o) for n, o in zip(names, outputs, strict=True)])
    for key in ("limit", "offset", "with_"):
        result.set(key, query.args.get(key))
    order = query.args.get("order")
    if order is not None:
        result.set("order", _order(order, outputs, names, alias))
    return result


def _distinct(query: exp.Query, union: exp.Query, names: list[str], ctx: Context) -> tuple[exp.Select, str]:
    alias = ctx.fresh("u")
    block = _groups(union, names, alias)
    block.set("having", exp.Having(this=_parse(_EXISTS[type(query)].format(u=alias))))
    return block, alias


def _all(query: exp.Query, union: exp.Query, names: list[str], ctx: Context) -> tuple[exp.Select, str]:
    inner, outer, series = ctx.fresh("u"), ctx.fresh("g"), ctx.fresh("n")
    groups = _groups(union, names, inner)
    groups.set("having", exp.Having(this=_parse(_COUNTS[type(query)].format(u=inner))))
    items = [tr.named(tr.column(n, inner), n) for n in names]
    counts = [tr.named(exp.Sum(this=tr.column(side, inner)), side) for side in ("l", "r")]
    groups.set("expressions", items + counts)
    block = exp.Select(expressions=[], from_=exp.From(this=tr.derived(groups, outer)))
    times = _REPEATS[type(query)].format(g=outer)
    block.set("joins", [tr.function_join([f"generate_series(CAST(1 AS BIGINT), {times})"], series, ["n"])])
    return block, outer


def _groups(union: exp.Query, names: list[str], alias: str) -> exp.Select:
    block = exp.Select(expressions=[], from_=exp.From(this=tr.derived(union, alias)))
    block.set("group", exp.Group(expressions=[tr.column(n, alias) for n in names]))
    return block


def _member(
    query: exp.Query, columns: tuple[Column, ...], names: list[str], sides: tuple[int, int], ctx: Context
) -> exp.Select:
    """A member with its columns in the common type, and on which side it stands."""
    own = tr.column_types(query, query, ctx)
    while isinstance(query, exp.Subquery):
        query = query.this
    query = query.copy()
    plain = isinstance(query, exp.Select) and not any(
        query.args.get(k) for k in ("distinct", "order", "limit", "offset", "with_")
    )
    if plain and isinstance(query, exp.Select):
        block, values = query, [item.unalias() for item in query.expressions]
    else:
        alias = ctx.fresh("m")
        listed = exp.TableAlias(this=tr.identifier(alias), columns=[tr.identifier(n) for n in names])
        block = exp.Select(expressions=[], from_=exp.From(this=exp.Subquery(this=query, alias=listed)))
        values = [tr.column(n, alias) for n in names]
    items = []
    for value, name, mine, common in zip(values, names, own, columns, strict=True):
        same = mine.type.sql == common.type.sql and mine.collation == common.collation
        items.append(tr.named(value if same else tr.typed(value, common), name))
    items += [tr.named(exp.Literal.number(n), side) for n, side in zip(sides, ("l", "r"), strict=True)]
    block.set("expressions", items)
    return block


def _order(order: exp.Order, outputs: list[str], names: list[str], alias: str) -> exp.Order:
    items = []
    for item in order.expressions:
        place = item.this
        if isinstance(place, exp.Literal) and not place.is_string:
            index = int(place.this) - 1
        elif isinstance(place, exp.Column) and place.name in outputs:
            index = outputs.index(place.name)
        else:
            raise NotDifferentiable(registry.UNRULED, f"ORDER BY {tr.text(place)} in a set operation")
        moved = item.copy()
        moved.set("this", tr.column(names[index], alias))
        items.append(moved)
    return exp.Order(expressions=items)


def _parse(text: str) -> exp.Expr:
    return sqlglot.parse_one(text, read=Faithful)
