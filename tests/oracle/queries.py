"""Random queries of every shape that is maintained by deltas, composed with each other."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle import recursion
from tests.oracle.aggregates import aggregate, having, over
from tests.oracle.context import Context, Query, Source, firm, named, shown
from tests.oracle.expressions import COMPARISONS, Scope, expression
from tests.oracle.joins import FromClause, NextSource, from_clause
from tests.oracle.lateral import beside, in_select_list
from tests.oracle.ordering import distinct_on, limited
from tests.oracle.setops import set_operation
from tests.oracle.subqueries import condition, plain, scalar, value
from tests.oracle.values import Col
from tests.oracle.windows import window_calls

SHAPES = (
    *("rows", "group", "rows", "group", "distinct", "total", "windows", "set operation", "limited", "distinct on"),
    *("grouping sets", "with", "windows", "grouped windows", "set operation", "recursive"),
)


def query(ctx: Context, most: int = 2) -> Query:
    """A query over the sources, with as many subqueries as the budget allows."""
    match ctx.pick(SHAPES):
        case "with":
            return _with(ctx)
        case "limited":
            return limited(ctx, block(ctx, most))
        case "set operation":
            return set_operation(ctx, lambda: block(ctx, 2))
        case "recursive":
            return recursion.reachable(ctx, _over)
        case shape:
            return _block(ctx, shape, most, _next(ctx))


def block(ctx: Context, most: int) -> Query:
    """One SELECT without an order of its own, or a set operation of two."""
    if ctx.spend(12):
        return set_operation(ctx, lambda: _block(ctx, ctx.pick(["rows", "group"]), 1, _next(ctx)))
    return _block(ctx, ctx.pick(["rows", "group", "rows", "distinct", "windows"]), most, _next(ctx))


def _block(ctx: Context, shape: str, most: int, source: NextSource) -> Query:
    match shape:
        case "group":
            return _group(ctx, source, most, grouped=True)
        case "total":
            return _group(ctx, source, most, grouped=False)
        case "distinct":
            return _distinct(ctx, source, most)
        case "windows":
            return _windows(ctx, source, min(most, 2))
        case "grouped windows":
            return _grouped_windows(ctx, source, min(most, 2))
        case "grouping sets":
            return _grouping_sets(ctx, source, min(most, 2))
        case "distinct on":
            clause = _from(ctx, source, min(most, 2))
            return distinct_on(ctx, clause, _where(ctx, clause))
        case _:
            return _rows(ctx, source, most)


def _next(ctx: Context) -> NextSource:
    """Where a block takes its next FROM item from: mostly a table, sometimes a query."""

    def source() -> Source:
        return query(ctx, 2).source() if ctx.spend(30) else ctx.pick(ctx.sources)

    return source


def _from(ctx: Context, source: NextSource, most: int) -> FromClause:
    clause = from_clause(ctx, source, most)
    return beside(ctx, clause) if ctx.chance(15) else clause


def _where(ctx: Context, clause: FromClause) -> str:
    conditions = list(clause.conditions)
    if ctx.chance(45):
        conditions.append(condition(ctx, clause.scope))
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


# -- rows --------------------------------------------------------------------------------------------------


def _rows(ctx: Context, source: NextSource, most: int) -> Query:
    clause = _from(ctx, source, most)
    items = [value(ctx, clause.scope) for _ in range(ctx.number(1, 4))]
    unique = clause.unique
    if ctx.chance(5):
        column = in_select_list(ctx, clause)
        items, unique = items + ([column] if column else []), None
    items = _comparable(items, firm(clause.scope)[:1])
    text, columns = named(items)
    return Query(f"SELECT {text} FROM {clause.sql}{_where(ctx, clause)}", columns, shown(items, unique))


def _distinct(ctx: Context, source: NextSource, most: int) -> Query:
    clause = _from(ctx, source, most)
    text, columns = named(_keys(ctx, clause.scope, 1, 3))
    names = tuple(c.sql for c in columns)
    return Query(f"SELECT DISTINCT {text} FROM {clause.sql}{_where(ctx, clause)}", columns, names)


def _comparable(items: list[Col], spare: Sequence[Col]) -> list[Col]:
    """With at least one column that can be compared, because whoever reads the query may need one."""
    return items if firm(items) else [*items, *spare]


def _keys(ctx: Context, scope: Scope, least: int, most: int) -> list[Col]:
    """Expressions to group by: their text is compared, so their digits must be certain."""
    found: list[Col] = []
    for _ in range(ctx.number(least, most)):
        key = expression(ctx.draw, scope)
        if not firm([key]):
            key = Col(f"({key.sql} IS NULL)", "bool")
        if key.sql not in [f.sql for f in found]:
            found.append(key)
    return found


# -- groups ------------------------------------------------------------------------------------------------


def _group(ctx: Context, source: NextSource, most: int, *, grouped: bool) -> Query:
    clause = _from(ctx, source, most)
    keys = _keys(ctx, clause.scope, 1, 2) if grouped else []
    calls = [aggregate(ctx, clause.scope) for _ in range(ctx.number(0 if keys else 1, 3))]
    items = [k for k in keys if not ctx.chance(10)] + [over(ctx, c) if ctx.chance(30) else c for c in calls]
    if plain(keys) and ctx.spend(6):
        items.append(scalar(ctx, plain(keys)))
    items = _comparable(items, [Col("count(*)", "bigint", small=False)])
    text, columns = named(items)
    sql = f"SELECT {text} FROM {clause.sql}{_where(ctx, clause)}"
    if keys:
        sql += f" GROUP BY {', '.join(k.sql for k in keys)}"
    if ctx.chance(25):
        sql += f" HAVING {_having(ctx, keys, calls)}"
    return Query(sql, columns, shown(items, [k.sql for k in keys]) if keys else ())


def _having(ctx: Context, keys: Sequence[Col], calls: Sequence[Col]) -> str:
    if not ctx.spend(25):
        return having(ctx, calls)
    asked = scalar(ctx, plain(keys))
    if asked.kind in ("bigint", "int", "numeric") and not asked.rough:
        return f"count(*) {ctx.pick(COMPARISONS)} {asked.sql}"
    return f"{asked.sql} IS NOT NULL"


def _grouping_sets(ctx: Context, source: NextSource, most: int) -> Query:
    clause = _from(ctx, source, most)
    keys = _keys(ctx, clause.scope, 2, 3)
    k = [key.sql for key in keys]
    grouping = f"GROUPING({', '.join(k)})"
    calls = [aggregate(ctx, clause.scope) for _ in range(ctx.number(1, 2))]
    items = _comparable([*keys, *calls, *([Col(grouping, "int")] if ctx.chance(60) else [])], [])
    text, columns = named(items)
    every = ", ".join(k)
    forms = [
        f"ROLLUP ({every})",
        f"CUBE ({', '.join(k[:2])})" + "".join(f", {x}" for x in k[2:]),
        f"GROUPING SETS (({every}), ({k[0]}), ())",
        f"GROUPING SETS (({', '.join(k[1:] or k)}), ({k[0]}), ({k[0]}))",
        f"{k[0]}, ROLLUP ({', '.join(k[1:] or k)})",
        f"GROUPING SETS (({k[0]}), ROLLUP ({every}))",
    ]
    sql = f"SELECT {text} FROM {clause.sql}{_where(ctx, clause)} GROUP BY {ctx.pick(forms)}"
    if ctx.chance(20):
        condition_on = grouping + " = 0" if ctx.chance(30) else having(ctx, calls)
        sql += f" HAVING {condition_on}"
    return Query(sql, columns)


# -- windows -----------------------------------------------------------------------------------------------


def _windows(ctx: Context, source: NextSource, most: int) -> Query:
    clause = _from(ctx, source, most)
    scope = firm(clause.scope)
    plain_items = [expression(ctx.draw, scope) for _ in range(ctx.number(1, 2))]
    calls, window = window_calls(ctx, scope, clause.total(), scope)
    items = [*plain_items, *calls]
    text, columns = named(items)
    sql = f"SELECT {text} FROM {clause.sql}{_where(ctx, clause)}{window}"
    return Query(sql, columns, shown(items, clause.unique))


def _grouped_windows(ctx: Context, source: NextSource, most: int) -> Query:
    clause = _from(ctx, source, most)
    keys = _keys(ctx, clause.scope, 1, 2)
    groups = [*keys, *firm([aggregate(ctx, clause.scope) for _ in range(ctx.number(1, 2))])]
    calls, window = window_calls(ctx, groups, keys, keys)
    items = [*groups, *calls]
    text, columns = named(items)
    by = ", ".join(k.sql for k in keys)
    sql = f"SELECT {text} FROM {clause.sql}{_where(ctx, clause)} GROUP BY {by}{window}"
    return Query(sql, columns, shown(items, [k.sql for k in keys]))


# -- WITH --------------------------------------------------------------------------------------------------


def _with(ctx: Context) -> Query:
    """CTEs, each of which may read the ones before, used once or several times."""
    inner, parts = ctx, []
    newest = ctx.sources[0]
    for _ in range(ctx.number(1, 2)):
        made = query(inner, 2)
        newest = Source(ctx.name("q"), made.columns, made.unique)
        hint = ctx.pick(["", "", "", "MATERIALIZED ", "NOT MATERIALIZED "])
        parts.append(f"{newest.sql} AS {hint}({made.sql})")
        # The CTE is several times in the list, so that it is likely to be used, perhaps with itself.
        inner = inner.knowing(newest, newest)
    main = _over(inner, newest)
    return Query(f"WITH {', '.join(parts)} {main.sql}", main.columns, main.unique)


def _over(ctx: Context, source: Source) -> Query:
    """A block that reads the source, perhaps beside others."""
    used = iter([source])
    shape = ctx.pick(["rows", "group", "distinct", "windows", "distinct on", "grouping sets"])
    return _block(ctx, shape, 2, lambda: next(used, None) or ctx.pick(ctx.sources))
