"""Numbers: arithmetic, rounding and remainders, with the digits that PostgreSQL's numerics show.

A numeric of PostgreSQL carries its own scale, and its text shows it; so for every rule it is known how many digits
after the point a result has. What has more digits than Spark's decimals is not said here.
"""

from __future__ import annotations

from decimal import Decimal

from sqlglot import exp

from runnel.sparksql.values import (
    DIGITS,
    FLOATS,
    INT_DIGITS,
    WIDTH,
    Function,
    Rule,
    Untranslatable,
    Value,
    Walk,
    as_decimal,
    decimal,
    decimal_value,
    integer,
)


def minus(walk: Walk, node: exp.Expr) -> Value:
    """`-x`."""
    value = walk.value(node.this)
    if isinstance(value.literal, int) and not isinstance(value.literal, bool):
        return integer(-value.literal, value.type)
    if isinstance(value.literal, Decimal):
        return decimal(-value.literal)
    if value.type not in (*INT_DIGITS, "decimal", *FLOATS):
        raise Untranslatable
    return Value(f"(-{value.sql})", value.type, value.digits, value.scale, settled=value.settled)


def calculated(left: Value, right: Value, sign: str) -> Value:
    """`+ - * / %` of two numbers."""
    if left.type in INT_DIGITS and right.type in INT_DIGITS:
        wide = max(left.type, right.type, key=WIDTH.__getitem__)
        one, other = (f"CAST({v.sql} AS {wide})" for v in (left, right))
        if sign == "%":
            return Value(f"CAST(({one} % {other}) AS {wide})", wide)
        # A quotient of Spark is a bigint; the cast back overflows where PostgreSQL does.
        return Value(f"CAST(({one} {'div' if sign == '/' else sign} {other}) AS {wide})", wide)
    if "double" in (left.type, right.type):
        return _float(left, right, sign)
    left, right = as_decimal(left), as_decimal(right)
    settled = left.settled and right.settled
    scale = max(left.scale, right.scale)
    whole = max(left.digits - left.scale, right.digits - right.scale)
    match sign:
        case "*":
            digits, scale = left.digits + right.digits, left.scale + right.scale
            if digits > DIGITS:
                raise Untranslatable
            return decimal_value(f"({left.sql} * {right.sql})", digits, scale, settled=settled)
        case "+" | "-":
            if whole + scale + 1 > DIGITS:
                raise Untranslatable
            return decimal_value(f"({left.sql} {sign} {right.sql})", whole + scale + 1, scale, settled=settled)
        case "%":
            if whole + scale > DIGITS:
                raise Untranslatable
            return decimal_value(f"({left.sql} % {right.sql})", whole + scale, scale, settled=settled)
    # How many digits a quotient has depends on the very numbers.
    raise Untranslatable


_INFINITY = "CAST('Infinity' AS DOUBLE)"
_LONGEST = 4000


def _float(left: Value, right: Value, sign: str) -> Value:
    """Arithmetic of float8: what leaves its range is an error in PostgreSQL, and infinity or zero in Spark."""
    if left.type not in (*FLOATS, *INT_DIGITS) or right.type not in (*FLOATS, *INT_DIGITS) or sign == "%":
        raise Untranslatable
    a, b = (v.sql if v.type == "double" else f"CAST({v.sql} AS DOUBLE)" for v in (left, right))
    result = f"({a} {sign} {b})"
    if right.literal == 0 and sign in "+-":
        return Value(result, "double")
    undefined = ""
    overflow = f"abs({result}) = {_INFINITY} AND abs({a}) <> {_INFINITY}"
    match sign:
        case "+" | "-":
            wrong = f"{overflow} AND abs({b}) <> {_INFINITY}"
        case "*":
            wrong = f"({overflow} AND abs({b}) <> {_INFINITY}) OR ({result} = 0 AND {a} <> 0 AND {b} <> 0)"
        case _:
            # By zero NaN alone can be divided; in Spark not even that.
            undefined = f"isnan({a}) AND {b} = 0 THEN CAST('NaN' AS DOUBLE) WHEN "
            wrong = f"({overflow}) OR ({result} = 0 AND {a} <> 0 AND abs({b}) <> {_INFINITY})"
    sql = f"(CASE WHEN {undefined}{wrong} THEN raise_error('value out of range') ELSE {result} END)"
    if len(sql) > _LONGEST:
        raise Untranslatable
    return Value(sql, "double")


def absolute(walk: Walk, node: exp.Expr) -> Value:
    """abs."""
    value = walk.value(node.this)
    if value.type not in (*INT_DIGITS, "decimal", *FLOATS):
        raise Untranslatable
    return Value(f"abs({value.sql})", value.type, value.digits, value.scale, settled=value.settled)


def whole(walk: Walk, node: exp.Expr) -> Value:
    """CEIL and FLOOR of numerics."""
    return _whole(walk.value(node.this), "ceil" if isinstance(node, exp.Ceil) else "floor")


def _whole(value: Value, function: str) -> Value:
    if value.type != "decimal":
        raise Untranslatable
    return decimal_value(f"{function}({value.sql})", value.digits - value.scale + 1, 0)


def rounded(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """round(numeric [, digits]): halves away from zero, and exactly that many digits; round(float8): halves to even."""
    if len(arguments) == 1 and arguments[0].type == "double":
        return Value(f"rint({arguments[0].sql})", "double")
    value, places = _with_places(arguments)
    if places >= 0:
        return decimal_value(value.sql, value.digits - value.scale + 1 + places, places)
    return decimal_value(f"round({value.sql}, {places})", value.digits - value.scale + 1, 0)


def truncated(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """trunc(numeric [, digits])."""
    value, places = _with_places(arguments)
    whole = value.digits - value.scale
    if places >= value.scale:
        return decimal_value(value.sql, whole + places, places)
    cut = f"(CASE WHEN {value.sql} < 0 THEN ceil({value.sql}, {places}) ELSE floor({value.sql}, {places}) END)"
    return decimal_value(cut, whole + 1 + max(places, 0), max(places, 0))


def _with_places(arguments: list[Value]) -> tuple[Value, int]:
    places = arguments[1].literal if len(arguments) == 2 else 0
    if len(arguments) not in (1, 2) or arguments[0].type != "decimal" or not isinstance(places, int):
        raise Untranslatable
    if not -DIGITS < places < DIGITS:
        raise Untranslatable
    return arguments[0], places


def remainder(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """mod(a, b)."""
    if len(arguments) != 2:
        raise Untranslatable
    if _is_beyond(*arguments):
        return as_decimal(arguments[0])
    return calculated(arguments[0], arguments[1], "%")


def quotient(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """div(numeric, numeric): the whole part of a quotient."""
    if len(arguments) != 2:
        raise Untranslatable
    if _is_beyond(*arguments):
        return decimal_value(f"(CASE WHEN {arguments[0].sql} IS NOT NULL THEN 0 END)", 1, 0)
    left, right = (as_decimal(v) for v in arguments)
    by = right.literal
    if not isinstance(by, Decimal) or by == 0:
        raise Untranslatable
    # What is left of the number without its remainder divides evenly, if Spark's quotient has room for it.
    scale = max(left.scale, right.scale)
    digits = max(left.digits - left.scale, right.digits - right.scale) + scale
    wanted = max(1, left.digits - left.scale - by.adjusted())
    if digits + 1 > DIGITS or _room(digits + 1, scale, right) < wanted:
        raise Untranslatable
    even = f"CAST(({left.sql} - ({left.sql} % {right.sql})) AS DECIMAL({digits + 1}, {scale}))"
    return decimal_value(f"({even} / {right.sql})", wanted, 0)


def _is_beyond(left: Value, right: Value) -> bool:
    """Whether a whole number is divided by a constant that is larger than it can be."""
    by = right.literal
    if left.type != "decimal" or left.scale or not isinstance(by, Decimal) or right.scale:
        return False
    return by.adjusted() >= left.digits


def _room(digits: int, scale: int, by: Value) -> int:
    """Digits before the point of a quotient in Spark."""
    before = min(DIGITS, digits - scale + by.scale)
    after = min(DIGITS, max(6, scale + by.digits + 1))
    over = before + after - DIGITS
    return before if over <= 0 else DIGITS - (after - over // 2 - 1)


def signed(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """sign(numeric)."""
    if len(arguments) != 1 or arguments[0].type != "decimal":
        raise Untranslatable
    sql = arguments[0].sql
    return decimal_value(f"(CASE WHEN {sql} > 0 THEN 1 WHEN {sql} < 0 THEN -1 WHEN {sql} = 0 THEN 0 END)", 1, 0)


def trimmed(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """trim_scale(numeric): the form of a key."""
    if len(arguments) != 1:
        raise Untranslatable
    value = as_decimal(arguments[0])
    return Value(value.sql, "trimmed", value.digits, value.scale)


RULES: dict[type[exp.Expr], Rule] = {exp.Neg: minus, exp.Abs: absolute, exp.Ceil: whole, exp.Floor: whole}
FUNCTIONS: dict[str, Function] = {
    "round": rounded, "trunc": truncated, "mod": remainder, "div": quotient, "sign": signed, "trim_scale": trimmed,
    "ceil": lambda _, arguments: _whole(arguments[0], "ceil"),
    "ceiling": lambda _, arguments: _whole(arguments[0], "ceil"),
    "floor": lambda _, arguments: _whole(arguments[0], "floor"),
}  # fmt: skip
