"""Items of FROM that look to their left: LATERAL subqueries and set-returning functions."""

from __future__ import annotations

from dataclasses import replace

from tests.oracle.aggregates import aggregate
from tests.oracle.context import Context, Query, firm, named
from tests.oracle.expressions import expression, predicate, usable
from tests.oracle.joins import FromClause, item
from tests.oracle.ordering import order_by
from tests.oracle.subqueries import correlation
from tests.oracle.values import Col


def beside(ctx: Context, clause: FromClause) -> FromClause:
    """The clause with one more item that depends on it."""
    word = ctx.pick(["CROSS JOIN", "LEFT JOIN", "CROSS JOIN", ","])
    if ctx.chance(50) or ctx.budget.left <= 0:
        return _function(ctx, clause, word)
    ctx.budget.left -= 1
    return _subquery(ctx, clause, word)


def _attach(clause: FromClause, word: str, text: str, columns: list[Col], unique: tuple[str, ...] | None) -> FromClause:
    on = " ON true" if word == "LEFT JOIN" else ""
    joint = ", " if word == "," else f" {word} "
    known = clause.unique + unique if clause.unique is not None and unique is not None else None
    return replace(
        clause, sql=f"{clause.sql}{joint}{text}{on}", scope=clause.scope + columns, unique=known, joined=True
    )


# -- set-returning functions -------------------------------------------------------------------------------


def _function(ctx: Context, clause: FromClause, word: str) -> FromClause:
    alias = ctx.alias(8)
    arrays, documents = usable(clause.scope, "ints", "texts"), usable(clause.scope, "jsonb")
    numbers = usable(clause.scope, "int")
    options = [("generate_series(0, 2)", "int")]
    if numbers:
        options.insert(0, (f"generate_series(1, LEAST({ctx.pick(numbers).sql}, 3))", "int"))
    if documents:
        c = ctx.pick(documents).sql
        options = [(f"jsonb_array_elements_text({c})", "text"), (f"jsonb_array_elements({c})", "node")]
    if arrays:
        column = ctx.pick(arrays)
        options = [(f"unnest({column.sql})", column.kind[:-1]), *(options if documents else [])]
    call, kind = ctx.pick(options)
    value = Col(f"({alias}.v #>> '{{}}')", "text") if kind == "node" else Col(f"{alias}.v", kind)
    lateral = "LATERAL " if ctx.chance(30) else ""
    if ctx.chance(30):
        columns = [value, Col(f"{alias}.o", "bigint")]
        text = f"{lateral}{call} WITH ORDINALITY AS {alias}(v, o)"
        return _attach(clause, word, text, columns, (f"{alias}.o",))
    return _attach(clause, word, f"{lateral}{call} AS {alias}(v)", [value], None)


def in_select_list(ctx: Context, clause: FromClause) -> Col | None:
    """A set-returning function as a column, if some column of the clause can feed one."""
    arrays, documents = usable(clause.scope, "ints", "texts"), usable(clause.scope, "jsonb")
    if arrays:
        column = ctx.pick(arrays)
        return Col(f"unnest({column.sql})", column.kind[:-1])
    if documents:
        return Col(f"jsonb_array_elements_text({ctx.pick(documents).sql})", "text")
    return Col("generate_series(1, 2)", "int")


# -- subqueries --------------------------------------------------------------------------------------------


def _subquery(ctx: Context, clause: FromClause, word: str) -> FromClause:
    alias, inner = ctx.alias(9), ctx.inside()
    match ctx.pick(["rows", "aggregate", "top", "alone"]):
        case "alone":
            made = _alone(inner, clause)
        case "aggregate":
            made = _aggregated(inner, clause)
        case "top":
            made = _top(inner, clause)
        case _:
            made = _rows(inner, clause)
    columns = [replace(c, sql=f"{alias}.{c.sql}", small=False) for c in made.columns]
    return _attach(clause, word, f"LATERAL ({made.sql}) {alias}", columns, made.unique)


def _alone(ctx: Context, clause: FromClause) -> Query:
    """Nothing but expressions over the row outside: a name for what is used several times."""
    text, columns = named([expression(ctx.draw, clause.scope) for _ in range(ctx.number(1, 2))])
    where = f" WHERE {predicate(ctx.draw, clause.scope, 0)}" if ctx.chance(30) else ""
    return Query(f"SELECT {text}{where}", columns, ())


def _correlated(ctx: Context, clause: FromClause) -> tuple[FromClause, str]:
    inside = item(ctx.pick(ctx.sources), ctx.alias(0))
    conditions = correlation(ctx, inside.scope, clause.scope)
    if ctx.chance(30):
        conditions.append(predicate(ctx.draw, inside.scope, 0))
    return inside, f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _rows(ctx: Context, clause: FromClause) -> Query:
    inside, where = _correlated(ctx, clause)
    both = [*inside.scope, *clause.scope]
    items = [expression(ctx.draw, inside.scope)] + ([expression(ctx.draw, both)] if ctx.chance(40) else [])
    text, columns = named(items)
    distinct = "DISTINCT " if ctx.chance(15) and len(firm(items)) == len(items) else ""
    return Query(f"SELECT {distinct}{text} FROM {inside.sql}{where}", columns)


def _aggregated(ctx: Context, clause: FromClause) -> Query:
    inside, where = _correlated(ctx, clause)
    text, columns = named([aggregate(ctx, inside.scope) for _ in range(ctx.number(1, 2))])
    return Query(f"SELECT {text} FROM {inside.sql}{where}", columns, ())


def _top(ctx: Context, clause: FromClause) -> Query:
    inside, where = _correlated(ctx, clause)
    text, columns = named(ctx.several(firm(inside.scope), 1, 2))
    first = [ctx.pick(firm(inside.scope))]
    order = order_by(ctx, [*first, *inside.total()], 2)
    return Query(f"SELECT {text} FROM {inside.sql}{where} ORDER BY {order} LIMIT {ctx.number(1, 2)}", columns)
