"""Random window functions. Those that depend on the order of peers get an order that leaves no peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.oracle.aggregates import UNORDERED
from tests.oracle.context import Context
from tests.oracle.expressions import Scope, predicate, usable
from tests.oracle.ordering import order_by
from tests.oracle.values import EXACT, INTEGERS, Col, constant

OFFSET_KINDS = (*INTEGERS, "money", "date")
EXCLUSIONS = ("", " EXCLUDE CURRENT ROW", " EXCLUDE GROUP", " EXCLUDE TIES")


@dataclass(frozen=True)
class _Window:
    """The inside of OVER (...) without its frame, and what that order is worth."""

    partition: str
    order: str
    decided: str
    """none, peers (rows may be equal in the order) or total."""
    keys: Sequence[Col] = ()


def window_calls(ctx: Context, scope: Scope, total: Sequence[Col], rows: Scope) -> tuple[list[Col], str]:
    """One to three calls, and the WINDOW clause that some of them refer to (or nothing).

    `rows` are the columns that FILTER may mention: no aggregates.
    """
    calls: list[Col] = []
    definitions: dict[str, str] = {}
    window = _window(ctx, scope, total)
    for number in range(ctx.number(1, 3)):
        if number and ctx.chance(50):
            window = _window(ctx, scope, total)
        function, frame = _function(ctx, window, scope, rows)
        text = f"{window.partition} {window.order}".strip()
        if ctx.chance(20):
            name = next((n for n, t in definitions.items() if t == text), f"w{len(definitions)}")
            definitions[name] = text
            over = f"({name} {frame})" if frame else name
        else:
            over = f"({f'{text} {frame}'.strip()})"
        calls.append(Col(f"{function.sql} OVER {over}", function.kind, function.rough, small=False))
    clause = ", ".join(f"{n} AS ({t})" for n, t in definitions.items())
    return calls, f" WINDOW {clause}" if clause else ""


def _window(ctx: Context, scope: Scope, total: Sequence[Col]) -> _Window:
    columns = usable(scope)
    parts = ctx.several(columns, 1, 2) if ctx.chance(70) else []
    partition = f"PARTITION BY {', '.join(p.sql for p in parts)}" if parts else ""
    match ctx.pick(["peers", "total", "total", "none"]):
        case "none":
            return _Window(partition, "", "none")
        case "peers":
            keys = ctx.several(columns, 1, 2)
            return _Window(partition, f"ORDER BY {order_by(ctx, keys, 2)}", "peers", keys)
        case _:
            first = ctx.several(columns, 0, 1)
            if ctx.budget.ties and first and ctx.chance(50):
                ctx.budget.tied = True
                total = []
            return _Window(partition, f"ORDER BY {order_by(ctx, [*first, *total], 2)}", "total", [*first, *total])


def _function(ctx: Context, window: _Window, scope: Scope, rows: Scope) -> tuple[Col, str]:
    match ctx.pick(["rank", "offset", "aggregate", "aggregate"]):
        case "rank":
            return _ranking(ctx, window)
        case "offset" if window.decided == "total":
            return _offset(ctx, scope)
        case _:
            return _aggregate(ctx, scope, rows), _frame(ctx, window)


def _ranking(ctx: Context, window: _Window) -> tuple[Col, str]:
    options = [
        Col("rank()", "bigint"),
        Col("dense_rank()", "bigint"),
        Col("percent_rank()", "float8", rough=True),
        Col("cume_dist()", "float8", rough=True),
    ]
    if window.decided == "total":
        options = [Col("row_number()", "bigint"), Col(f"ntile({ctx.number(1, 3)})", "int"), *options]
    return ctx.pick(options), ""


def _offset(ctx: Context, scope: Scope) -> tuple[Col, str]:
    column = ctx.pick(usable(scope))
    a, k = column.sql, column.kind
    word = ctx.pick(["lag", "lead", "first_value", "last_value", "nth_value"])
    if word in ("lag", "lead"):
        extra = ctx.pick(["", ", 2", f", 1, {constant(ctx.draw, k)}"])
        return Col(f"{word}({a}{extra})", k, column.rough), ""
    frame = _rows_frame(ctx) if ctx.chance(50) else ""
    if word == "nth_value":
        return Col(f"nth_value({a}, {ctx.number(1, 3)})", k, column.rough), frame
    return Col(f"{word}({a})", k, column.rough), frame


def _aggregate(ctx: Context, scope: Scope, rows: Scope) -> Col:
    column = ctx.pick(usable(scope))
    a, k = column.sql, column.kind
    options = [Col("count(*)", "bigint"), Col(f"count({a})", "bigint")]
    if k in EXACT:
        options.insert(0, Col(f"sum({a})", "bigint" if k == "int" else "numeric"))
        options.append(Col(f"avg({a})", "numeric", rough=True))
    if k not in UNORDERED:
        options.append(Col(f"{ctx.pick(['min', 'max'])}({a})", k))
    if k == "bool":
        options.append(Col(f"bool_and({a})", "bool"))
    call = ctx.pick(options)
    if ctx.chance(12):
        return Col(f"{call.sql} FILTER (WHERE {predicate(ctx.draw, rows, 0)})", call.kind, call.rough)
    return call


# -- frames ------------------------------------------------------------------------------------------------


def _frame(ctx: Context, window: _Window) -> str:
    if window.decided == "none" or not ctx.chance(65):
        return ""
    kinds = ["ROWS", "GROUPS", "RANGE"] if window.decided == "total" else ["GROUPS", "RANGE"]
    match ctx.pick(kinds):
        case "ROWS":
            return _rows_frame(ctx)
        case "GROUPS":
            return _bounds(ctx, "GROUPS", ["1", "2", "0"])
        case _:
            return _range_frame(ctx, window)


def _rows_frame(ctx: Context) -> str:
    return _bounds(ctx, "ROWS", ["1", "2", "0"])


def _range_frame(ctx: Context, window: _Window) -> str:
    """Distances need exactly one key to measure along."""
    if len(window.keys) == 1 and window.keys[0].kind in OFFSET_KINDS:
        distances = ["interval '1 day'", "interval '40 days'"] if window.keys[0].kind == "date" else ["1", "2", "0"]
        return _bounds(ctx, "RANGE", distances)
    return _bounds(ctx, "RANGE", [])


def _bounds(ctx: Context, unit: str, distances: Sequence[str]) -> str:
    starts = ["UNBOUNDED PRECEDING", "CURRENT ROW"]
    ends = ["CURRENT ROW", "UNBOUNDED FOLLOWING"]
    if distances:
        starts += [f"{ctx.pick(distances)} PRECEDING", f"{ctx.pick(distances)} FOLLOWING"]
        ends += [f"{ctx.pick(distances)} FOLLOWING", f"{ctx.pick(distances)} PRECEDING"]
    start, end = ctx.pick(starts), ctx.pick(ends)
    order = ["PRECEDING", "CURRENT ROW", "FOLLOWING"]
    if _place(start, order) > _place(end, order):
        start = "UNBOUNDED PRECEDING"
    exclusion = ctx.pick(EXCLUSIONS) if ctx.chance(35) else ""
    return f"{unit} BETWEEN {start} AND {end}{exclusion}"


def _place(bound: str, order: Sequence[str]) -> int:
    return next(i for i, word in enumerate(order) if bound.endswith(word))
