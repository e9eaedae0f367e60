"""Subqueries as conditions and as values: EXISTS, IN, ANY, ALL, scalar; correlated or not."""

from __future__ import annotations

import re

from tests.oracle.aggregates import aggregate
from tests.oracle.context import Context
from tests.oracle.expressions import COMPARISONS, Scope, comparable, expression, predicate, usable
from tests.oracle.joins import FromClause, from_clause, item
from tests.oracle.ordering import order_by
from tests.oracle.values import Col


def condition(ctx: Context, scope: Scope, percent: int = 40) -> str:
    """A predicate; now and then one that asks another query."""
    if not ctx.spend(percent):
        return predicate(ctx.draw, scope)
    asked = _asked(ctx, scope)
    if ctx.chance(25):
        word = ctx.pick(["AND", "OR"])
        return f"({asked} {word} {predicate(ctx.draw, scope, 0)})"
    return f"(NOT {asked})" if ctx.chance(12) else asked


def value(ctx: Context, scope: Scope, percent: int = 16) -> Col:
    """An expression; now and then one that asks another query."""
    if not ctx.spend(percent):
        return expression(ctx.draw, scope)
    match ctx.pick(["scalar", "scalar", "scalar", "case", "truth"]):
        case "case":
            column = expression(ctx.draw, scope)
            return Col(f"CASE WHEN {_asked(ctx, scope)} THEN {column.sql} END", column.kind, column.rough, small=False)
        case "truth":
            return Col(_asked(ctx, scope), "bool")
        case _:
            return scalar(ctx, scope)


# -- conditions --------------------------------------------------------------------------------------------


def _asked(ctx: Context, scope: Scope) -> str:
    match ctx.pick(["exists", "in", "exists", "not exists", "not in", "quantified", "row in", "compared"]):
        case "exists":
            return _exists(ctx, scope)
        case "not exists":
            return f"NOT {_exists(ctx, scope)}"
        case "in":
            return _in(ctx, scope, "IN")
        case "not in":
            return _in(ctx, scope, "NOT IN")
        case "row in":
            return _row_in(ctx, scope)
        case "compared":
            return _compared(ctx, scope)
        case _:
            operator = ctx.pick(COMPARISONS)
            return _in(ctx, scope, f"{operator} {ctx.pick(['ANY', 'ALL'])}")


def _exists(ctx: Context, scope: Scope) -> str:
    inner = ctx.inside()
    clause = _from(inner)
    where = _where(inner, clause, scope, correlated=not ctx.chance(10))
    if ctx.chance(12):
        return f"EXISTS (SELECT 1 FROM {clause.sql}{where} GROUP BY {clause.scope[0].sql} HAVING count(*) > 1)"
    return f"EXISTS (SELECT 1 FROM {clause.sql}{where})"


def _in(ctx: Context, scope: Scope, word: str) -> str:
    inner = ctx.inside()
    clause = _from(inner)
    pair = _pair(ctx, scope, clause.scope)
    if pair is None:
        return _exists(ctx, scope)
    mine, theirs = pair
    where = _where(inner, clause, scope, correlated=ctx.chance(40))
    if ctx.chance(15) and theirs.kind not in ("bool", "jsonb", "object"):
        grouped = ctx.pick(firm_columns(clause))
        body = f"SELECT max({theirs.sql}) FROM {clause.sql}{where} GROUP BY {grouped.sql}"
    else:
        distinct = "DISTINCT " if ctx.chance(10) else ""
        body = f"SELECT {distinct}{theirs.sql} FROM {clause.sql}{where}"
    return f"({mine.sql} {word} ({body}))"


def _row_in(ctx: Context, scope: Scope) -> str:
    inner = ctx.inside()
    clause = _from(inner)
    first, second = _pair(ctx, scope, clause.scope), _pair(ctx, scope, clause.scope)
    if first is None or second is None:
        return _exists(ctx, scope)
    word = ctx.pick(["IN", "NOT IN"])
    where = _where(inner, clause, scope, correlated=ctx.chance(20))
    left, right = f"{first[0].sql}, {second[0].sql}", f"{first[1].sql}, {second[1].sql}"
    return f"(({left}) {word} (SELECT {right} FROM {clause.sql}{where}))"


def _compared(ctx: Context, scope: Scope) -> str:
    """A column against a scalar subquery."""
    asked = scalar(ctx, scope)
    columns = usable(scope, *comparable(asked.kind))
    if asked.rough or asked.kind == "json" or not columns:
        return f"({asked.sql} IS NOT NULL)"
    return f"({ctx.pick(columns).sql} {ctx.pick(COMPARISONS)} {asked.sql})"


# -- values ------------------------------------------------------------------------------------------------


def scalar(ctx: Context, scope: Scope) -> Col:
    """A subquery with one row at most: aggregated, found by a key, or the first of an order."""
    inner = ctx.inside()
    keyed = [s for s in ctx.sources if s.key is not None]
    match ctx.pick(["aggregate", "aggregate", "lookup", "first"]):
        case "lookup" if keyed and usable(scope, "int"):
            source = ctx.pick(keyed)
            clause = item(source, inner.alias(0))
            column = expression(ctx.draw, clause.scope)
            key = f"{inner.alias(0)}.{source.key}"
            return _value(column, f"FROM {clause.sql} WHERE {key} = {ctx.pick(usable(scope, 'int')).sql}")
        case "first":
            clause = _from(inner)
            column = ctx.pick(firm_columns(clause))
            where = _where(inner, clause, scope, correlated=True)
            order = order_by(inner, [column, *clause.total()], 2)
            return _value(column, f"FROM {clause.sql}{where} ORDER BY {order} LIMIT 1")
        case _:
            clause = _from(inner)
            call = aggregate(inner, clause.scope)
            where = _where(inner, clause, scope, correlated=not ctx.chance(15))
            having = " HAVING count(*) > 1" if ctx.chance(10) else ""
            return _value(call, f"FROM {clause.sql}{where}{having}")


def _value(column: Col, rest: str) -> Col:
    return Col(f"(SELECT {column.sql} {rest})", column.kind, column.rough, small=False)


# -- the inner block ---------------------------------------------------------------------------------------


def _from(ctx: Context) -> FromClause:
    return from_clause(ctx, lambda: ctx.pick(ctx.sources), 2 if ctx.chance(15) else 1)


def _where(ctx: Context, clause: FromClause, outer: Scope, *, correlated: bool) -> str:
    conditions = list(clause.conditions)
    if correlated:
        conditions += correlation(ctx, clause.scope, outer)
    if ctx.chance(30):
        conditions.append(condition(ctx, clause.scope, 15))
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def correlation(ctx: Context, scope: Scope, outer: Scope) -> list[str]:
    """What ties the rows inside to a row outside: mostly an equality."""
    pair = _pair(ctx, outer, scope)
    if pair is None:
        return []
    mine, theirs = pair
    operator = ctx.pick(["=", "=", "=", "=", "<", ">=", "<>", "IS NOT DISTINCT FROM"])
    conditions = [f"{theirs.sql} {operator} {mine.sql}"]
    second = _pair(ctx, outer, scope) if ctx.chance(20) else None
    if second is not None:
        conditions.append(f"{second[1].sql} {ctx.pick(['=', '<', '>'])} {second[0].sql}")
    if ctx.chance(10):
        conditions = [f"({' OR '.join([*conditions, predicate(ctx.draw, scope, 0)])})"]
    return conditions


def _pair(ctx: Context, outer: Scope, scope: Scope) -> tuple[Col, Col] | None:
    pairs = [(a, b) for a in plain(outer) for b in usable(scope, *comparable(a.kind))]
    pairs.sort(key=lambda p: (not p[0].sql.endswith((".id", ".k")), not p[1].sql.endswith((".id", ".k"))))
    return ctx.pick(pairs) if pairs else None


def plain(scope: Scope) -> list[Col]:
    """Columns rather than expressions: only these may be named inside a subquery of a grouped block."""
    return [c for c in usable(scope) if re.fullmatch(r'(\w+\.)?(\w+|"[^.]*")', c.sql)]


def firm_columns(clause: FromClause) -> list[Col]:
    """What can be compared; every FROM has such a column, because tables begin with one."""
    return usable(clause.scope) or [Col("1", "int")]
