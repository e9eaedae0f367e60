"""Dates, timestamps and spans of time: the proleptic Gregorian calendar in both, and infinity as DuckDB stores it.

To Spark an infinite date is just the last one that it has, so whatever computes with dates that may be infinite asks
first. Spark works in UTC; what depends on the time zone is said only for queries in UTC.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import exp

from runnel.sparksql.values import (
    INT_DIGITS,
    TIMES,
    Around,
    Function,
    Rule,
    Untranslatable,
    Value,
    Walk,
    decimal_value,
    quoted,
)

CLOCK = "pgt clock"
"""A constant that stands for the time of a refresh."""
CLOCK_SQL = f"TIMESTAMP '{CLOCK}'"

_DAY = 86_400_000_000
_INFINITE = {
    "date": ("date_from_unix_date(2147483647)", "date_from_unix_date(-2147483647)"),
    "timestamp": (
        "TIMESTAMP_NTZ '+294247-01-10 04:00:54.775807'",
        "TIMESTAMP_NTZ '-290308-12-21 19:59:05.224193'",
    ),
    "timestamptz": (
        "TIMESTAMP '+294247-01-10 04:00:54.775807+00:00'",
        "TIMESTAMP '-290308-12-21 19:59:05.224193+00:00'",
    ),
}
_SPARK = {"date": "DATE", "timestamp": "TIMESTAMP_NTZ", "timestamptz": "TIMESTAMP"}
_TRUNCATED = {
    "milliseconds": "MILLISECOND", "second": "SECOND", "minute": "MINUTE", "hour": "HOUR", "day": "DAY",
    "week": "WEEK", "month": "MONTH", "quarter": "QUARTER", "year": "YEAR",
}  # fmt: skip
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?\+00")
_INTERVAL_PART = re.compile(r"([+-]?\d+) (year|mon|day)s? ?|([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))? ?")


# --- infinity


def is_infinite(value: Value) -> str:
    """A condition: the value is infinite."""
    return f"{value.sql} IN ({', '.join(_INFINITE[value.type])})"


def _beside_infinity(value: Value, sql: str, target: str | None = None) -> str:
    """What becomes of a value; infinity stays what it is, in the target's type."""
    if value.usual:
        return sql
    above, below = _INFINITE[value.type]
    up, down = _INFINITE[target or value.type]
    return f"(CASE WHEN {value.sql} = {above} THEN {up} WHEN {value.sql} = {below} THEN {down} ELSE {sql} END)"


def _finite(values: list[Value], sql: str, what: str) -> str:
    """PostgreSQL fails at infinity here, or its answer has no place in Spark."""
    infinite = [is_infinite(value) for value in values if not value.usual]
    if not infinite:
        return sql
    return f"(CASE WHEN {' OR '.join(infinite)} THEN raise_error({quoted(what)}) ELSE {sql} END)"


# --- constants


def instant(text: str) -> Value:
    """A timestamptz constant."""
    if text == CLOCK:
        return Value(CLOCK_SQL, "timestamptz", usual=True)
    if not _INSTANT.fullmatch(text):
        raise Untranslatable
    moment = dt.datetime.fromisoformat(text.removesuffix("+00"))
    return Value(f"TIMESTAMP '{moment.isoformat(' ')}+00:00'", "timestamptz", literal=moment, usual=True)


def at_clock(sql: str, now: str) -> str:
    """A translated condition at a moment."""
    return sql.replace(CLOCK_SQL, instant(now).sql)


@dataclass(frozen=True, slots=True)
class Span:
    """A constant interval."""

    months: int
    days: int
    micros: int


def interval(text: str) -> Value:
    """An interval constant as PostgreSQL prints it.

    >>> interval("1 year -2 days +01:00:00.5").literal
    Span(months=12, days=-2, micros=3600500000)
    """
    months = days = micros = at = 0
    while at < len(text):
        part = _INTERVAL_PART.match(text, at)
        if part is None:
            raise Untranslatable
        at = part.end()
        if part[2] is not None:
            number = int(part[1])
            months += {"year": 12 * number, "mon": number, "day": 0}[part[2]]
            days += number if part[2] == "day" else 0
        else:
            seconds = int(part[4]) * 3600 + int(part[5]) * 60 + int(part[6])
            micros += (-1 if part[3] == "-" else 1) * (seconds * 1_000_000 + int(f"{part[7] or '':0<6}"))
    return Value("", "interval", literal=Span(months, days, micros))


# --- arithmetic


def calculated(around: Around, left: Value, right: Value, sign: str) -> Value:
    """`+` and `-` with a date or timestamp on at least one side."""
    if left.type not in TIMES:
        if sign == "-":
            raise Untranslatable
        left, right = right, left
    if isinstance(right.literal, Span):
        return _moved(around, left, right.literal, -1 if sign == "-" else 1)
    if left.type == "date" and right.type in ("smallint", "int"):
        days = f"CAST(CAST(unix_date({left.sql}) AS BIGINT) {sign} {right.sql} AS INT)"
        moved = _beside_infinity(left, f"date_from_unix_date({days})")
        return Value(f"(CASE WHEN {right.sql} IS NOT NULL THEN {moved} END)", "date")
    if sign == "-" and left.type == right.type == "date":
        return Value(_finite([left, right], f"datediff({left.sql}, {right.sql})", "infinite dates"), "int")
    if sign == "-" and right.type in TIMES:
        one, other = alike(around, left, right)
        micros = f"({_micros(one)} - {_micros(other)})"
        return Value(_finite([one, other], micros, "infinite timestamps"), "span")
    raise Untranslatable


def _moved(around: Around, value: Value, by: Span, sign: int) -> Value:
    if value.type == "timestamptz" and not around.utc and (by.months or by.days):
        raise Untranslatable
    start = converted(around, value, "timestamp") if value.type == "date" else value
    sql = start.sql
    if by.months:
        sql = f"({sql} + make_ym_interval(0, {sign * by.months}))"
    micros = sign * (by.days * _DAY + by.micros)
    if micros:
        seconds = Decimal(micros).scaleb(-6)
        sql = f"({sql} + make_dt_interval(0, 0, 0, CAST('{seconds:f}' AS DECIMAL(18, 6))))"
    return Value(_beside_infinity(start, sql), start.type)


def _micros(value: Value) -> str:
    return (
        f"unix_micros({value.sql})" if value.type == "timestamptz" else f"unix_micros(CAST({value.sql} AS TIMESTAMP))"
    )


def span_micros(by: Span) -> Value:
    """A constant interval as it compares with others: a month has 30 days, a day 24 hours."""
    return Value(f"{(by.months * 30 + by.days) * _DAY + by.micros}L", "span")


def alike(around: Around, left: Value, right: Value) -> tuple[Value, Value]:
    """Two moments in the type in which PostgreSQL compares them."""
    wide = max(left.type, right.type, key=TIMES.index)
    return converted(around, left, wide), converted(around, right, wide)


# --- casts


def converted(around: Around, value: Value, target: str) -> Value:
    """A date or timestamp in another of these types."""
    if value.type == target:
        return value
    if value.type not in TIMES or ("timestamptz" in (value.type, target) and not around.utc):
        raise Untranslatable
    if value.type == "date" and target == "timestamptz":
        sql = f"CAST(CAST({value.sql} AS TIMESTAMP_NTZ) AS TIMESTAMP)"
    else:
        sql = f"CAST({value.sql} AS {_SPARK[target]})"
    return Value(_beside_infinity(value, sql, target), target, usual=value.usual)


def text(around: Around, value: Value) -> Value:
    """In the ISO notation: years of at least four digits, BC behind, no zeros at the end of seconds."""
    if not around.iso or (value.type == "timestamptz" and not around.utc):
        raise Untranslatable
    sql, zone = value.sql, "+00" if value.type == "timestamptz" else ""
    plain = f"CAST({sql} AS STRING)"
    usual = f"concat({plain}, '{zone}')" if zone else plain
    if value.usual:
        return Value(usual, "text")
    above, below = _INFINITE[value.type]
    year = f"year({sql})"
    month, day = (f"lpad(CAST({part}({sql}) AS STRING), 2, '0')" for part in ("month", "day"))
    shown = f"(CASE WHEN {year} > 0 THEN {year} ELSE 1 - {year} END)"
    padded = f"(CASE WHEN {shown} < 10000 THEN lpad(CAST({shown} AS STRING), 4, '0') ELSE CAST({shown} AS STRING) END)"
    clock = "''" if value.type == "date" else f"concat(' ', substring_index({plain}, ' ', -1))"
    era = f"(CASE WHEN {year} > 0 THEN '' ELSE ' BC' END)"
    unusual = f"concat({padded}, '-', {month}, '-', {day}, {clock}, '{zone}', {era})"
    return Value(
        f"(CASE WHEN {sql} IS NULL THEN NULL WHEN {year} BETWEEN 1 AND 9999 THEN {usual} "
        f"WHEN {sql} = {above} THEN 'infinity' WHEN {sql} = {below} THEN '-infinity' ELSE {unusual} END)",
        "text",
    )


# --- parts


def truncation(walk: Walk, node: exp.Expr) -> Value:
    """date_trunc."""
    given = node.args["unit"]
    unit = given.name if isinstance(given, exp.Var) else walk.value(given).literal
    value = walk.value(node.this)
    wanted = _TRUNCATED.get(unit.lower()) if isinstance(unit, str) else None
    if wanted is None or node.args.get("zone") is not None or value.type not in ("timestamp", "timestamptz"):
        raise Untranslatable
    if value.type == "timestamptz" and not walk.around.utc:
        raise Untranslatable
    sql = f"CAST(date_trunc('{wanted}', {value.sql}) AS {_SPARK[value.type]})"
    return Value(_beside_infinity(value, sql), value.type, usual=value.usual)


_DATE_PARTS = {
    "year": ("(CASE WHEN year({x}) > 0 THEN year({x}) ELSE year({x}) - 1 END)", 10, 0),
    "isoyear": (
        "(CASE WHEN extract(YEAROFWEEK FROM {x}) > 0 THEN extract(YEAROFWEEK FROM {x})"
        " ELSE extract(YEAROFWEEK FROM {x}) - 1 END)", 10, 0,
    ),
    "quarter": ("quarter({x})", 10, 0), "month": ("month({x})", 10, 0), "day": ("day({x})", 10, 0),
    "week": ("weekofyear({x})", 10, 0), "doy": ("dayofyear({x})", 10, 0), "dow": ("(dayofweek({x}) - 1)", 10, 0),
    "isodow": ("(weekday({x}) + 1)", 10, 0),
}  # fmt: skip
_TIME_PARTS = {
    "hour": ("hour({x})", 10, 0), "minute": ("minute({x})", 10, 0), "second": ("extract(SECOND FROM {x})", 8, 6),
    "milliseconds": ("(extract(SECOND FROM {x}) * 1000)", 8, 3),
    "microseconds": ("(extract(SECOND FROM {x}) * 1000000)", 8, 0),
}  # fmt: skip
_FRACTION = "CAST(pmod({micros}, 1000000L) AS DOUBLE)"
_FLOAT_PARTS = {
    "epoch": "(CAST({micros} AS DOUBLE) / 1000000.0D)",
    "second": f"(CAST(second({{x}}) AS DOUBLE) + {_FRACTION} / 1000000.0D)",
    "milliseconds": f"(CAST(second({{x}}) AS DOUBLE) * 1000.0D + {_FRACTION} / 1000.0D)",
    "microseconds": f"(CAST(second({{x}}) AS DOUBLE) * 1000000.0D + {_FRACTION})",
}
_ENDLESS = frozenset({"year", "isoyear", "epoch"})
"""What is infinite of infinity; everything else of it is NULL."""


def extraction(walk: Walk, node: exp.Expr) -> Value:
    """EXTRACT(part FROM x), a numeric."""
    unit = node.name.lower() if isinstance(node.this, exp.Var) else ""
    value = walk.value(node.expression)
    if value.type == "span":
        return _of_span(unit, value)
    if value.type == "date" and unit in _TIME_PARTS:
        # An error in PostgreSQL.
        raise Untranslatable
    sql, digits, scale = _part(walk.around, unit, value)
    if unit in _ENDLESS and not value.usual:
        # Of infinity it is infinite, and Spark's numbers are not; what asks first whether it is finite is safe.
        if node.find_ancestor(exp.Case) is None:
            raise Untranslatable
        return decimal_value(_finite([value], sql, "the year of an infinite date"), digits, scale)
    known = sql if value.usual else f"(CASE WHEN {is_infinite(value)} THEN NULL ELSE {sql} END)"
    return decimal_value(known, digits, scale)


def date_part(walk: Walk, arguments: list[Value]) -> Value:
    """date_part('part', x), a float."""
    if len(arguments) != 2 or not isinstance(arguments[0].literal, str):
        raise Untranslatable
    unit, value = arguments[0].literal.lower(), arguments[1]
    if value.type == "date" and unit in (*_TIME_PARTS, "epoch"):
        value = converted(walk.around, value, "timestamp")
    sql, _, _ = _part(walk.around, unit, value)
    # PostgreSQL adds and divides floats here, step by step.
    number = _FLOAT_PARTS.get(unit, f"CAST({sql} AS DOUBLE)")
    number = number.replace("{micros}", _micros(value)).replace("{x}", value.sql)
    if value.usual:
        return Value(number, "double")
    above, below = _INFINITE[value.type]
    up, down = ("CAST('Infinity' AS DOUBLE)", "CAST('-Infinity' AS DOUBLE)") if unit in _ENDLESS else ("NULL", "NULL")
    return Value(
        f"(CASE WHEN {value.sql} = {above} THEN {up} WHEN {value.sql} = {below} THEN {down} ELSE {number} END)",
        "double",
    )


def _part(around: Around, unit: str, value: Value) -> tuple[str, int, int]:
    if value.type not in TIMES:
        raise Untranslatable
    if unit == "epoch":
        if value.type == "date":
            return f"(CAST(unix_date({value.sql}) AS DECIMAL(10, 0)) * 86400)", 16, 0
        return f"(CAST({_micros(value)} AS DECIMAL(19, 0)) * CAST('0.000001' AS DECIMAL(7, 6)))", 25, 6
    found = _DATE_PARTS.get(unit) or _TIME_PARTS.get(unit)
    if found is None or (value.type == "timestamptz" and not around.utc):
        raise Untranslatable
    return found[0].replace("{x}", value.sql), found[1], found[2]


def _of_span(unit: str, value: Value) -> Value:
    match unit:
        case "epoch":
            exact = f"CAST({value.sql} AS DECIMAL(19, 0))"
            return decimal_value(f"({exact} * CAST('0.000001' AS DECIMAL(7, 6)))", 25, 6)
        case "day":
            return decimal_value(f"({value.sql} div {_DAY}L)", INT_DIGITS["bigint"], 0)
    raise Untranslatable


def zoned(walk: Walk, node: exp.Expr) -> Value:
    """AT TIME ZONE 'UTC'; other zones have histories that need not be the same everywhere."""
    value, zone = walk.value(node.this), walk.value(node.args["zone"]).literal
    if not isinstance(zone, str) or zone.upper() not in ("UTC", "ETC/UTC") or value.type not in TIMES[1:]:
        raise Untranslatable
    target = "timestamp" if value.type == "timestamptz" else "timestamptz"
    return Value(_beside_infinity(value, f"CAST({value.sql} AS {_SPARK[target]})", target), target, usual=value.usual)


RULES: dict[type[exp.Expr], Rule] = {
    exp.TimestampTrunc: truncation, exp.Extract: extraction, exp.AtTimeZone: zoned,
}  # fmt: skip
FUNCTIONS: dict[str, Function] = {"date_part": date_part}
