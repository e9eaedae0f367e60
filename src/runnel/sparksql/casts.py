"""Casts and constants: from each type that files have to each other, as far as both systems agree on every value.

Text is not read as another type here: what PostgreSQL accepts as a number or a date is a world of its own.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from decimal import Decimal

from sqlglot import exp

from runnel.sparksql import moments
from runnel.sparksql.values import (
    DIGITS,
    FLOATS,
    INT_DIGITS,
    Around,
    Rule,
    Untranslatable,
    Value,
    Walk,
    as_decimal,
    decimal,
    decimal_text,
    decimal_value,
    integer,
    quoted,
    stringy,
)

_SPARK_TYPES = {
    "TEXT": ("STRING", "text"), "VARCHAR": ("STRING", "text"), "SMALLINT": ("SMALLINT", "smallint"),
    "INT": ("INT", "int"), "BIGINT": ("BIGINT", "bigint"), "BOOLEAN": ("BOOLEAN", "boolean"), "DATE": ("DATE", "date"),
    "TIMESTAMP": ("TIMESTAMP_NTZ", "timestamp"), "TIMESTAMPTZ": ("TIMESTAMP", "timestamptz"),
    "DOUBLE PRECISION": ("DOUBLE", "double"), "REAL": ("FLOAT", "float"), "UUID": ("STRING", "uuid"),
}  # fmt: skip
_SIZED = re.compile(r"(DECIMAL|NUMERIC|VARCHAR|CHAR|BPCHAR)\((\d+)(?:, ?(-?\d+))?\)")


def cast(walk: Walk, node: exp.Expr) -> Value:
    """`x::type`."""
    target = node.args["to"].sql(dialect="postgres").upper()
    value = walk.value(node.this)
    sized = _SIZED.fullmatch(target)
    if sized is not None:
        return _sized(walk.around, value, sized[1], int(sized[2]), int(sized[3] or 0))
    if value.type == "unknown":
        return constant(str(value.literal), target)
    if value.type == "null":
        return _null(target)
    return converted(walk.around, value, target)


def converted(around: Around, value: Value, target: str) -> Value:
    """A value of one type as one of another."""
    match target:
        case "TEXT" | "VARCHAR":
            return text_of(around, value)
        case "BPCHAR" if value.type in ("text", "bpchar"):
            return _bpchar(value, None)
        case "SMALLINT" | "INT" | "BIGINT":
            return _integer(value, target.lower())
        case "DECIMAL" | "NUMERIC":
            return as_decimal(value)
        case "DOUBLE PRECISION":
            return _double(value)
        case "REAL":
            return _real(value)
        case "BOOLEAN" if value.type == "int":
            return Value(f"({value.sql} <> 0)", "boolean")
        case "DATE" | "TIMESTAMP" | "TIMESTAMPTZ":
            return moments.converted(around, value, target.lower())
        case "BOOLEAN" | "UUID" | "BYTEA" if value.type == target.lower():
            return value
    raise Untranslatable


def _integer(value: Value, target: str) -> Value:
    if value.type == "boolean" and target == "int":
        return Value(f"CAST({value.sql} AS INT)", "int", 1)
    if value.type in INT_DIGITS:
        if isinstance(value.literal, int):
            return integer(value.literal, target)
        return Value(f"CAST({value.sql} AS {target})", target, value.digits)
    if value.type == "decimal":
        # PostgreSQL rounds halves away from zero, Spark cuts.
        return Value(f"CAST(round({value.sql}, 0) AS {target})", target)
    if value.type in FLOATS:
        return Value(f"CAST(rint({value.sql}) AS {target})", target)
    raise Untranslatable


def _double(value: Value) -> Value:
    if isinstance(value.literal, Decimal):
        return Value(f"CAST('{value.literal:f}' AS DOUBLE)", "double", literal=value.literal)
    if value.type in (*FLOATS, *INT_DIGITS):
        return Value(f"CAST({value.sql} AS DOUBLE)", "double", literal=value.literal)
    if value.type == "decimal":
        # By its digits, as PostgreSQL does: the nearest of all floats.
        return Value(f"CAST(CAST({value.sql} AS STRING) AS DOUBLE)", "double")
    raise Untranslatable


def _real(value: Value) -> Value:
    if value.type in ("float", "smallint", "int", "bigint"):
        return Value(f"CAST({value.sql} AS FLOAT)", "float")
    if value.type == "decimal":
        return Value(f"CAST(CAST({value.sql} AS STRING) AS FLOAT)", "float")
    raise Untranslatable


def _sized(around: Around, value: Value, name: str, size: int, scale: int) -> Value:
    """Types with a modifier: too long a text is cut, a number is rounded, and one that is too large is an error."""
    if name in ("DECIMAL", "NUMERIC"):
        if value.type == "null":
            return Value(f"CAST(NULL AS DECIMAL({size}, {scale}))", "decimal", size, scale)
        if not 0 <= scale <= size <= DIGITS:
            raise Untranslatable
        number = constant(str(value.literal), "DECIMAL") if value.type == "unknown" else as_decimal(value)
        return decimal_value(number.sql, size, scale)
    if value.type == "null":
        return Value("CAST(NULL AS STRING)", "text" if name == "VARCHAR" else "bpchar")
    given = stringy(value) if value.type == "unknown" else value
    if name == "VARCHAR":
        return Value(f"substring({text_of(around, given).sql}, 1, {size})", "text")
    return _bpchar(given, size)


def _bpchar(value: Value, size: int | None) -> Value:
    """A char(n) without the blanks at its end: it compares, measures and becomes text without them."""
    if value.type not in ("text", "bpchar"):
        raise Untranslatable
    cut = value.sql if size is None else f"substring({value.sql}, 1, {size})"
    literal = value.literal
    if isinstance(literal, str):
        literal = (literal if size is None else literal[:size]).rstrip(" ")
    return Value(f"rtrim({cut})", "bpchar", literal=literal)


def text_of(around: Around, value: Value) -> Value:
    """A value in PostgreSQL's own notation."""
    sql = value.sql
    match value.type:
        case "text" | "uuid" | "json" | "bpchar":
            return Value(sql, "text", literal=value.literal)
        case "smallint" | "int" | "bigint" | "boolean":
            return Value(f"CAST({sql} AS STRING)", "text")
        case "decimal":
            found = decimal_text(value)
            if found is not None:
                return Value(found, "text")
        case "trimmed":
            plain = f"CAST({sql} AS STRING)"
            return Value(f"regexp_replace({plain}, '[.]?0+$', '')" if value.scale else plain, "text")
        case "bytea":
            return Value(f"concat('\\\\x', lower(hex({sql})))", "text")
        case "date" | "timestamp" | "timestamptz":
            return moments.text(around, value)
    raise Untranslatable


def _null(target: str) -> Value:
    if target in ("DECIMAL", "NUMERIC"):
        return Value("CAST(NULL AS DECIMAL(1, 0))", "decimal", 1, 0)
    spark = _SPARK_TYPES.get(target)
    if spark is None:
        raise Untranslatable
    return Value(f"CAST(NULL AS {spark[0]})", spark[1])


def constant(text: str, target: str) -> Value:
    """A quoted constant of a type; only the plainest notations are read here."""
    if target in ("TEXT", "VARCHAR"):
        return Value(quoted(text), "text", literal=text)
    try:
        match target:
            case "BPCHAR":
                return replace(_bpchar(Value(quoted(text), "text", literal=text), None))
            case "DATE":
                day = dt.date.fromisoformat(text)
                return Value(f"DATE '{day.isoformat()}'", "date", literal=day, usual=True)
            case "TIMESTAMP" if "+" not in text and not text.endswith("Z"):
                moment = dt.datetime.fromisoformat(text)
                return Value(f"TIMESTAMP_NTZ '{moment.isoformat(' ')}'", "timestamp", literal=moment, usual=True)
            case "TIMESTAMPTZ":
                return moments.instant(text)
            case "INTERVAL":
                return moments.interval(text)
            case "DECIMAL" | "NUMERIC" if re.fullmatch(r"-?\d{1,38}(\.\d{1,37})?", text):
                return decimal(Decimal(text))
            case "DOUBLE PRECISION" if re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", text):
                return Value(f"CAST('{text}' AS DOUBLE)", "double", literal=Decimal(text))
            case "UUID" if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
                return Value(quoted(text), "uuid", literal=text)
            case "BOOLEAN" if text in ("t", "true", "f", "false"):
                return Value("true" if text[0] == "t" else "false", "boolean", literal=text[0] == "t")
            case "INT" | "BIGINT" | "SMALLINT" if re.fullmatch(r"-?\d{1,19}", text):
                number, bits = int(text), {"SMALLINT": 15, "INT": 31, "BIGINT": 63}[target]
                if -(2**bits) <= number < 2**bits:
                    return integer(number, target.lower())
    except ValueError:
        raise Untranslatable from None
    raise Untranslatable


RULES: dict[type[exp.Expr], Rule] = {exp.Cast: cast}
