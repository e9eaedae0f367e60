"""Values of Spark SQL with PostgreSQL's types, and the ways to bring two of them together."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from runnel.model.types import Form

DIGITS = 38
INT_DIGITS = {"smallint": 5, "int": 10, "bigint": 19}
WIDTH = {"smallint": 0, "int": 1, "bigint": 2}


class Untranslatable(Exception):
    """Only PostgreSQL knows."""


@dataclass(frozen=True, slots=True)
class Value:
    """A Spark expression with its type: smallint, int, bigint, decimal, float, double, text, ..."""

    sql: str
    type: str
    digits: int = 0
    scale: int = 0
    literal: object = None
    """The value, if it is known."""


def within(known: str, text: str, sql: str) -> str:
    """Beyond four digits of a year the notations differ: rather fail than differ."""
    failure = "raise_error('a date beyond the years 1 to 9999 in a table')"
    return f"(CASE WHEN {sql} IS NULL THEN NULL WHEN {known} THEN {text} ELSE {failure} END)"


def typed(value: Value, type_: str) -> Value:
    if value.type == "null":
        return Value(f"CAST(NULL AS {'STRING' if type_ == 'text' else type_})", type_)
    if value.type != type_:
        raise Untranslatable
    return value


def integer(number: int, type_: str) -> Value:
    # A literal with a minus is an expression to Spark; the cast gives it the type that PostgreSQL sees.
    return Value(f"CAST({number} AS {type_})", type_, literal=number)


def decimal(number: Decimal) -> Value:
    _, digits, exponent = number.as_tuple()
    scale = max(0, -int(exponent))
    precision = max(len(digits), scale + 1)
    if precision > DIGITS:
        raise Untranslatable
    return Value(f"CAST('{number:f}' AS DECIMAL({precision}, {scale}))", "decimal", precision, scale, literal=number)


def as_decimal(value: Value) -> Value:
    if value.type in ("decimal", "trimmed"):
        return Value(value.sql, "decimal", value.digits, value.scale, value.literal)
    if value.type not in INT_DIGITS:
        raise Untranslatable
    if isinstance(value.literal, int):
        return decimal(Decimal(value.literal))
    digits = INT_DIGITS[value.type]
    return Value(f"CAST({value.sql} AS DECIMAL({digits}, 0))", "decimal", digits, 0)


def as_string(value: Value) -> Value:
    if value.type not in ("text", "unknown"):
        raise Untranslatable
    return value


def comparable(left: Value, right: Value) -> tuple[Value, Value]:
    """Both sides in the type in which PostgreSQL compares them."""
    if right.literal == "NaN" and right.type == "unknown" and left.type in ("decimal", *INT_DIGITS):
        # Never equal; NULL stays NULL. A decimal of one more digit than any value has stands for it.
        if left.digits >= DIGITS:
            raise Untranslatable
        return left, _beyond(left)
    for one, other in ((left, right), (right, left)):
        if one.type == "unknown" and other.type == "text":
            plain = Value(one.sql, "text", literal=one.literal)
            return (plain, other) if one is left else (other, plain)
    if "unknown" in (left.type, right.type):
        raise Untranslatable
    if "null" in (left.type, right.type) or left.type == right.type != "decimal":
        return left, right
    if left.type in INT_DIGITS and right.type in INT_DIGITS:
        return left, right
    floats = ("float", "double")
    if left.type in floats and right.type in floats:
        return left, right
    return as_decimal(left), as_decimal(right)


def _beyond(value: Value) -> Value:
    """A number that no value of this type is."""
    whole = value.digits - value.scale if value.type == "decimal" else INT_DIGITS[value.type]
    return Value(f"CAST('1{'0' * whole}' AS DECIMAL({whole + 1}, 0))", "decimal", whole + 1, 0)


def unified(values: Sequence[Value]) -> list[Value]:
    """Results of one expression in one type; only those that need no thought."""
    typed = [v for v in values if v.type != "null"]
    if not typed:
        raise Untranslatable
    first = typed[0]
    if all(v.type == first.type and v.scale == first.scale for v in typed) and first.type != "decimal":
        return [*(v if v.type != "null" else Value("NULL", first.type) for v in _first_typed(values, first))]
    if all(v.type in ("decimal", *INT_DIGITS) for v in typed) and "decimal" in {v.type for v in typed}:
        same = [as_decimal(v) if v.type != "null" else v for v in values]
        scales = {v.scale for v in same if v.type != "null"}
        digits = max(v.digits for v in same if v.type != "null")
        if len(scales) > 1:
            # PostgreSQL keeps each number's own scale, which its text shows.
            raise Untranslatable
        scale = scales.pop()
        return [
            Value(
                v.sql if v.type == "null" else f"CAST({v.sql} AS DECIMAL({digits}, {scale}))", "decimal", digits, scale
            )
            for v in same
        ]
    if all(v.type in INT_DIGITS for v in typed):
        wide = max((v.type for v in typed), key=WIDTH.__getitem__)
        return [Value(f"CAST({v.sql} AS {wide})", wide) for v in values]
    raise Untranslatable


def _first_typed(values: Sequence[Value], like: Value) -> list[Value]:
    return [Value(v.sql, like.type, like.digits, like.scale) if v.type == "null" else v for v in values]


def in_form(value: Value, form: Form) -> str:
    """The value as it travels."""
    match form.kind:
        case "long" if value.type in INT_DIGITS:
            return f"CAST({value.sql} AS BIGINT)"
        case "bool" if value.type == "boolean":
            return value.sql
        case "text" if value.type == "text":
            return value.sql
        case "decimal" if value.type in ("decimal", *INT_DIGITS):
            exact = as_decimal(value)
            if exact.scale > form.scale or exact.digits - exact.scale + form.scale > DIGITS:
                raise Untranslatable
            return f"CAST({exact.sql} AS DECIMAL({DIGITS}, {form.scale}))"
        case "double" if value.type in ("float", "double", *INT_DIGITS):
            return f"CAST({value.sql} AS DOUBLE)"
    raise Untranslatable


def quoted(text: str) -> str:
    r"""A string literal of Spark SQL.

    >>> quoted("it's \\ a")
    "'it\\'s \\\\ a'"
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def constant(text: str, target: str) -> Value:
    """A quoted constant of a type; only the plainest notations are read here."""
    if target == "TEXT":
        return Value(quoted(text), "text", literal=text)
    try:
        match target:
            case "DATE":
                day = dt.date.fromisoformat(text)
                return Value(f"DATE '{day.isoformat()}'", "date", literal=day)
            case "TIMESTAMP" if "+" not in text and not text.endswith("Z"):
                moment = dt.datetime.fromisoformat(text)
                return Value(f"TIMESTAMP_NTZ '{moment.isoformat(' ')}'", "timestamp", literal=moment)
            case "TIMESTAMPTZ" if text.endswith("+00"):
                moment = dt.datetime.fromisoformat(text.removesuffix("+00"))
                return Value(f"TIMESTAMP '{moment.isoformat(' ')}+00:00'", "timestamptz", literal=moment)
            case "DECIMAL" if re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", text):
                return decimal(Decimal(text))
            case "UUID" if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
                return Value(quoted(text), "uuid", literal=text)
            case "INT" | "BIGINT" | "SMALLINT" if re.fullmatch(r"-?\d{1,18}", text):
                return integer(int(text), target.lower())
    except ValueError:
        raise Untranslatable from None
    raise Untranslatable
