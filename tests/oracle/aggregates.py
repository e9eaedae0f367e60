"""Random aggregate calls. Orders inside them include the argument, so that equal keys mean equal values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.oracle.context import Context, firm
from tests.oracle.expressions import Scope, expression, is_number, predicate, usable
from tests.oracle.values import INTEGERS, Col, constant

SPREADS = ("stddev", "variance", "var_pop", "stddev_pop", "stddev_samp", "var_samp")
PAIRED = ("corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept", "regr_r2", "regr_avgx", "regr_sxy")
PRINTED = ("int", "bigint", "text", "bool", "date", "ints", "jsonb")
"""Kinds that print in one way only: equal values are equal inside a document, too."""
UNORDERED = ("bool", "jsonb", "object", "json")
"""Kinds without min and max."""


def aggregate(ctx: Context, scope: Scope) -> Col:
    """One aggregate call over the columns in scope."""
    argument = expression(ctx.draw, scope)
    if argument.kind in ("jsonb", "object") and "SELECT" not in argument.sql and ctx.chance(50):
        argument = expression(ctx.draw, scope)
    match ctx.pick(["number", "number", "number", "order", "collect", "ordered set", "truth", "pair"]):
        case "order":
            call = _extreme(ctx, argument)
        case "collect":
            call = _collected(ctx, argument, scope)
        case "ordered set":
            call = _ordered_set(ctx, argument)
        case "truth":
            call = _truth(ctx, scope)
        case "pair":
            call = _paired(ctx, scope)
        case _:
            call = _number(ctx, argument)
    if ctx.chance(18):
        return replace(call, sql=_filtered(call.sql, predicate(ctx.draw, scope, 0)))
    return call


def _filtered(call: str, condition: str) -> str:
    """FILTER belongs to the aggregate, not to the rounding around it."""
    text = f"FILTER (WHERE {condition})"
    if call.startswith("round("):
        inner, _, rest = call.rpartition("::numeric")
        return f"{inner} {text}::numeric{rest}"
    return f"{call} {text}"


def _number(ctx: Context, argument: Col) -> Col:
    a = argument.sql
    counts = [Col("count(*)", "bigint", small=False), Col(f"count({a})", "bigint", small=False)]
    if firm([argument]):
        counts.append(Col(f"count(DISTINCT {a})", "bigint", small=False))
    if argument.kind in INTEGERS and firm([argument]):
        bits = ctx.pick(["bit_or", "bit_and", "bit_xor"])
        counts.append(Col(f"{bits}({a})", argument.kind, small=False))
    return ctx.pick(_sums(ctx, argument) + counts if is_number(argument) else counts)


def _sums(ctx: Context, argument: Col) -> list[Col]:
    a, is_float = argument.sql, argument.kind == "float8"
    total = "bigint" if argument.kind == "int" else "float8" if is_float else "numeric"
    fraction = "float8" if is_float else "numeric"
    sums = [
        Col(f"sum({a})", total, argument.rough, small=False),
        Col(f"avg({a})", fraction, True, small=False),
    ]
    if not argument.rough:
        sums.append(Col(f"sum(DISTINCT {a})", total, small=False))
        sums.append(Col(f"{ctx.pick(SPREADS)}({a})", fraction, True, small=False))
        if argument.kind == "numeric":
            # How many digits the mean of a mean has follows from all of its inputs: allowed, yet never a key.
            sums.append(Col(f"avg(DISTINCT {a})", "numeric", True, small=False))
    return sums


def _extreme(ctx: Context, argument: Col) -> Col:
    if argument.kind in UNORDERED or (argument.rough and argument.kind == "float8"):
        return Col(f"count({argument.sql})", "bigint", small=False)
    return Col(f"{ctx.pick(['min', 'max'])}({argument.sql})", argument.kind, argument.rough, small=False)


def _truth(ctx: Context, scope: Scope) -> Col:
    word = ctx.pick(["bool_and", "bool_or", "every"])
    return Col(f"{word}({predicate(ctx.draw, scope, 0)})", "bool")


def _collected(ctx: Context, argument: Col, scope: Scope) -> Col:
    if not firm([argument]) or argument.kind not in PRINTED:
        return _number(ctx, argument)
    a = argument.sql
    text = a if argument.kind == "text" else f"({a})::text"
    distinct = ctx.chance(20)
    word = "DISTINCT " if distinct else ""
    by_other = "" if distinct or not ctx.chance(40) else f"{ctx.pick(usable(scope)).sql}, "
    order = f"ORDER BY {by_other}{a}{ctx.pick(['', ' DESC', ' NULLS FIRST'])}"
    options = [
        Col(f"string_agg({word}{text}, ',' ORDER BY {by_other}{text})", "text"),
        Col(f"jsonb_agg({word}{a} {order})", "jsonb"),
        Col(f"json_agg({word}{a} {order})", "json"),
    ]
    if argument.kind in ("int", "text"):
        options.insert(0, Col(f"array_agg({word}{a} {order})", f"{argument.kind}s"))
    if not distinct:
        key = f"COALESCE({text}, '-')"
        other = ctx.pick([c for c in usable(scope) if c.kind in PRINTED] or [argument])
        pair = f"{key}, {other.sql} ORDER BY {a}, {other.sql}"
        options += [Col(f"jsonb_object_agg({pair})", "object"), Col(f"json_object_agg({pair})", "json")]
    return ctx.pick(options)


def _ordered_set(ctx: Context, argument: Col) -> Col:
    if not firm([argument]) or argument.kind in ("json", "object"):
        return _number(ctx, argument)
    a, part = argument.sql, ctx.pick(["0.5", "0.25", "1", "0"])
    within = f"WITHIN GROUP (ORDER BY {a}{ctx.pick(['', ' DESC'])})"
    options = [
        Col(f"percentile_disc({part}) {within}", argument.kind, small=False),
        Col(f"mode() {within}", argument.kind, small=False),
    ]
    if argument.kind in (*INTEGERS, "money", "float8"):
        options.append(Col(f"percentile_cont({part}) {within}", "float8", True, small=False))
    if argument.kind == "int":
        options.append(Col(f"percentile_disc(ARRAY[0.25, 0.75]) {within}", "ints", small=False))
        word = ctx.pick(["rank", "dense_rank"])
        options.append(Col(f"{word}({constant(ctx.draw, 'int')}) {within}", "bigint", small=False))
    return ctx.pick(options)


def _paired(ctx: Context, scope: Scope) -> Col:
    """Statistics of two columns, rounded: PostgreSQL's own last digits depend on the order of its rows."""
    columns = [c for c in usable(scope, "int") if c.small]
    if not columns:
        return Col("count(*)", "bigint", small=False)
    x, y = ctx.pick(columns).sql, ctx.pick(columns).sql
    if ctx.chance(15):
        return Col(f"regr_count({y}, {x})", "bigint", small=False)
    return Col(f"round({ctx.pick(PAIRED)}({y}, {x})::numeric, 3)", "numeric", True, small=False)


def over(ctx: Context, call: Col) -> Col:
    """An expression over aggregates."""
    c = call.sql
    if call.kind in INTEGERS:
        options = [Col(f"{c} + count(*)", "bigint", small=False), Col(f"COALESCE({c}, 0)", call.kind, small=False)]
        return ctx.pick([*options, Col(f"CASE WHEN count(*) > 1 THEN {c} ELSE -1 END", call.kind, small=False)])
    if call.kind == "numeric":
        rounded = Col(f"round({c}, 2)", "numeric", call.rough, small=False)
        return ctx.pick([rounded, Col(f"COALESCE({c}, 0) / (1 + count(*))", "numeric", rough=True, small=False)])
    if call.kind == "text":
        return Col(f"{c} || count(*)::text", "text")
    if call.kind == "bool":
        return Col(f"COALESCE({c}, false)", "bool")
    return call


def having(ctx: Context, calls: Sequence[Col]) -> str:
    """A condition on groups."""
    known = usable(calls)
    if known and ctx.chance(50):
        call = ctx.pick(known)
        return ctx.pick([f"{call.sql} > {constant(ctx.draw, call.kind)}", f"{call.sql} IS NOT NULL"])
    return ctx.pick(["count(*) > 1", "count(*) < 3", "count(*) >= 1"])
