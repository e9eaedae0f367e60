"""Random scalar expressions and predicates over the columns in scope."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.oracle.context import firm
from tests.oracle.values import EXACT, INTEGERS, NUMBERS, Col, chance, constant, pick

Scope = Sequence[Col]


def usable(scope: Scope, *kinds: str) -> list[Col]:
    """Columns of these kinds that can be compared: every digit is certain, and the type has an equality."""
    return [c for c in firm(scope) if not kinds or c.kind in kinds]


def expression(draw: st.DrawFn, scope: Scope) -> Col:
    """A column, or something computed from one or two."""
    columns = usable(scope)
    column = pick(draw, columns) if columns else pick(draw, scope)
    if not columns or not chance(draw, 55):
        return column
    return computed(draw, column, scope)


def computed(draw: st.DrawFn, column: Col, scope: Scope) -> Col:
    """An expression around a column."""
    if chance(draw, 25):
        return conditional(draw, column, scope)
    match column.kind:
        case "int" | "bigint":
            return _integer(draw, column, scope)
        case "money" | "numeric":
            return _numeric(draw, column, scope)
        case "float8":
            return _float(draw, column, scope)
        case "text":
            return _text(draw, column, scope)
        case "bool":
            return Col(predicate(draw, scope, 1), "bool")
        case "timestamptz":
            return _instant(draw, column)
        case "date":
            return _day(draw, column)
        case _:
            return _nested(draw, column)


def conditional(draw: st.DrawFn, column: Col, scope: Scope) -> Col:
    """CASE, COALESCE or NULLIF: the expressions that turn NULL into something else, or back."""
    other = pick(draw, usable(scope, column.kind))
    match pick(draw, ("coalesce", "case", "nullif", "pair")):
        case "coalesce":
            sql = f"COALESCE({column.sql}, {constant(draw, column.kind)})"
        case "case":
            sql = f"CASE WHEN {predicate(draw, scope, 0)} THEN {column.sql} ELSE {constant(draw, column.kind)} END"
        case "nullif":
            sql = f"NULLIF({column.sql}, {constant(draw, column.kind)})"
        case _:
            sql = f"COALESCE({column.sql}, {other.sql})"
    kind = "numeric" if column.kind == "money" else column.kind
    return Col(sql, kind, small=False)


def _integer(draw: st.DrawFn, column: Col, scope: Scope) -> Col:
    c, other = column.sql, pick(draw, usable(scope, *INTEGERS))
    wider = "bigint" if "bigint" in (column.kind, other.kind) else "int"
    options = [
        Col(f"{c} + 1", column.kind, small=False),
        Col(f"{c} % 3", column.kind),
        Col(f"-{c}", column.kind),
        Col(f"abs({c})", column.kind),
        Col(f"{c} - {other.sql}", wider, small=False),
        Col(f"{c}::text", "text"),
        Col(f"{c}::numeric", "numeric", small=False),
        Col(f"{c} / 2", column.kind),
        Col(f"{c}::bigint * 3", "bigint", small=False),
    ]
    if column.small and other.small and wider == "int":
        options.append(Col(f"{c} * {other.sql}", "int", small=False))
    return pick(draw, options)


def _numeric(draw: st.DrawFn, column: Col, scope: Scope) -> Col:
    c, other = column.sql, pick(draw, usable(scope, *EXACT))
    return pick(
        draw,
        [
            Col(f"{c} + {other.sql}", "numeric", small=False),
            Col(f"{c} * 1.5", "numeric", small=False),
            Col(f"round({c}, 1)", "numeric", small=False),
            Col(f"{c} - 0.01", "numeric", small=False),
            Col(f"-{c}", "numeric", small=False),
            Col(f"{c} * (1 - {other.sql})", "numeric", small=False),
            Col(f"round({c} / 4, 2)", "numeric", small=False),
            Col(f"{c}::numeric(20,3)", "numeric", small=False) if column.small else column,
        ],
    )


def _float(draw: st.DrawFn, column: Col, scope: Scope) -> Col:
    c, other = column.sql, pick(draw, usable(scope, "float8"))
    return pick(draw, [Col(f"{c} + 0.5", "float8"), Col(f"{c} + {other.sql}", "float8"), Col(f"{c} * 2", "float8")])


def _text(draw: st.DrawFn, column: Col, scope: Scope) -> Col:
    c, other = column.sql, pick(draw, usable(scope, "text"))
    return pick(
        draw,
        [
            Col(f"lower({c})", "text"),
            Col(f"{c} || '-'", "text"),
            Col(f"{c} || {other.sql}", "text"),
            Col(f"length({c})", "int"),
            Col(f"left({c}, 1)", "text"),
            Col(f"substr({c}, 1, 1)", "text"),
            Col(f"upper({c}) || '%'", "text"),
            Col(f"trim({c})", "text"),
            Col(f"concat({c}, '/', {other.sql})", "text"),
            Col(f"{c} LIKE '%b%'", "bool"),
        ],
    )


def _instant(draw: st.DrawFn, column: Col) -> Col:
    c = column.sql
    return pick(
        draw,
        [
            Col(f"date_trunc('day', {c})", "timestamptz"),
            Col(f"date_trunc('month', {c})", "timestamptz"),
            Col(f"{c}::date", "date"),
            Col(f"{c} + interval '90 minutes'", "timestamptz"),
            Col(f"extract(hour FROM {c})::int", "int"),
            Col(f"({c} AT TIME ZONE 'Asia/Tokyo')::date", "date"),
            Col(f"to_char({c}, 'YYYY-MM-DD HH24')", "text"),
        ],
    )


def _day(draw: st.DrawFn, column: Col) -> Col:
    c = column.sql
    return pick(
        draw,
        [
            Col(f"{c} + 1", "date"),
            Col(f"extract(dow FROM {c})::int", "int"),
            Col(f"date_trunc('month', {c})", "timestamptz"),
            Col(f"{c}::timestamptz", "timestamptz"),
            Col(f"{c}::text", "text"),
        ],
    )


def _nested(draw: st.DrawFn, column: Col) -> Col:
    c = column.sql
    match column.kind:
        case "ints":
            options = [
                Col(f"cardinality({c})", "int"),
                Col(f"{c}[1]", "int"),
                Col(f"{c} || 1", "ints"),
                Col(f"array_to_string({c}, ',')", "text"),
            ]
        case "texts":
            options = [Col(f"cardinality({c})", "int"), Col(f"array_to_string({c}, ',')", "text")]
        case "jsonb":
            options = [Col(f"jsonb_array_length({c})", "int"), Col(f"({c} ->> 0)", "text"), Col(f"{c}::text", "text")]
        case _:
            options = [Col(f"{c}::text", "text")]
    return pick(draw, options)


COMPARISONS = ("=", "<", ">=", "<>", ">", "<=")


def predicate(draw: st.DrawFn, scope: Scope, depth: int = 1) -> str:
    """A condition over any columns in scope."""
    if depth > 0 and chance(draw, 35):
        left, right = predicate(draw, scope, depth - 1), predicate(draw, scope, depth - 1)
        return pick(draw, [f"({left} AND {right})", f"({left} OR {right})", f"(NOT {left})"])
    columns = usable(scope)
    if not columns:
        return f"{scope[0].sql} IS NOT NULL"
    column = pick(draw, columns)
    c = column.sql
    options = [
        f"{c} {pick(draw, COMPARISONS)} {constant(draw, column.kind)}",
        f"{c} IS NOT NULL",
        f"{c} IS NULL",
        f"{c} IN ({constant(draw, column.kind)}, {constant(draw, column.kind)})",
        f"{c} IS DISTINCT FROM {constant(draw, column.kind)}",
        f"{c} BETWEEN {constant(draw, column.kind)} AND {constant(draw, column.kind)}",
    ]
    if column.kind == "text":
        options += [f"{c} LIKE '%b%'", f"{c} NOT LIKE 'a%'", f"lower({c}) = 'a'", f"{c} ~ '^[ab]'"]
    if column.kind == "bool":
        options += [c, f"NOT {c}", f"{c} IS NOT TRUE"]
    others = [o for o in usable(scope, *comparable(column.kind)) if o != column]
    if others:
        options.append(f"{c} {pick(draw, COMPARISONS)} {pick(draw, others).sql}")
        options.append(f"{c} IS DISTINCT FROM {pick(draw, others).sql}")
    return f"({pick(draw, options)})"


def comparable(kind: str) -> tuple[str, ...]:
    """The kinds that a column of this kind can be compared with."""
    if kind in EXACT:
        return EXACT
    return (kind,)


def is_number(column: Col) -> bool:
    """Whether it can be added up."""
    return column.kind in NUMBERS
