"""DuckLake's types: their Arrow and PostgreSQL counterparts, and the text in which the catalog keeps values.

Values keep their meaning, not always their type: what Arrow or PostgreSQL cannot hold travels as text that both read
back (an interval, a time with a zone), and 128-bit integers travel as decimals.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from runnel.errors import UserError
from runnel.lake.format.model import LakeColumn
from runnel.model.types import PgType

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")

NESTED = frozenset({"struct", "list", "map"})
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
HUGE = frozenset({"int128", "uint128"})
FLOATS = frozenset({"float32", "float64"})
TIMESTAMPS = {"timestamp": "us", "timestamp_us": "us", "timestamp_s": "s", "timestamp_ms": "ms", "timestamp_ns": "ns"}
TEXTS = frozenset({"varchar", "json"})

_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(),
    "int128": pa.decimal256(39, 0), "uint128": pa.decimal256(39, 0),
    "float32": pa.float32(), "float64": pa.float64(),
    "date": pa.date32(), "time": pa.time64("us"), "time_ns": pa.time64("ns"), "timetz": pa.string(),
    "timestamp": pa.timestamp("us"), "timestamp_us": pa.timestamp("us"), "timestamp_s": pa.timestamp("s"),
    "timestamp_ms": pa.timestamp("ms"), "timestamp_ns": pa.timestamp("ns"),
    "timestamptz": pa.timestamp("us", tz="UTC"), "interval": pa.string(),
    "varchar": pa.string(), "json": pa.string(), "uuid": pa.string(),
    "blob": pa.binary(), "geometry": pa.binary(),
}  # fmt: skip

_PG: dict[str, str] = {
    "boolean": "boolean",
    "int8": "smallint", "int16": "smallint", "int32": "integer", "int64": "bigint",
    "uint8": "smallint", "uint16": "integer", "uint32": "bigint", "uint64": "numeric(20,0)",
    "int128": "numeric(39,0)", "uint128": "numeric(39,0)",
    "float32": "real", "float64": "double precision",
    "date": "date", "time": "time", "time_ns": "time", "timetz": "timetz",
    "timestamp": "timestamp", "timestamp_us": "timestamp", "timestamp_s": "timestamp",
    "timestamp_ms": "timestamp", "timestamp_ns": "timestamp", "timestamptz": "timestamptz",
    "interval": "interval",
    "varchar": "text", "json": "json", "uuid": "uuid", "blob": "bytea", "geometry": "bytea",
    "list": "jsonb", "struct": "jsonb", "map": "jsonb",
}  # fmt: skip

_DUCK: dict[str, str] = {
    "boolean": "BOOLEAN",
    "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT", "int128": "HUGEINT",
    "uint8": "UTINYINT", "uint16": "USMALLINT", "uint32": "UINTEGER", "uint64": "UBIGINT", "uint128": "UHUGEINT",
    "float32": "FLOAT", "float64": "DOUBLE",
    "date": "DATE", "time": "TIME", "time_ns": "TIME_NS", "timetz": "TIMETZ",
    "timestamp": "TIMESTAMP", "timestamp_us": "TIMESTAMP", "timestamp_s": "TIMESTAMP_S",
    "timestamp_ms": "TIMESTAMP_MS", "timestamp_ns": "TIMESTAMP_NS", "timestamptz": "TIMESTAMPTZ",
    "interval": "INTERVAL",
    "varchar": "VARCHAR", "json": "JSON", "uuid": "UUID", "blob": "BLOB", "geometry": "GEOMETRY",
}  # fmt: skip

_FROM_PG: dict[int, str] = {
    16: "boolean", 21: "int16", 23: "int32", 20: "int64", 700: "float32", 701: "float64",
    114: "json", 3802: "json", 17: "blob", 2950: "uuid", 1082: "date", 1083: "time",
    1114: "timestamp", 1184: "timestamptz",
}  # fmt: skip

UNBOUNDED_SCALE = 20
"""Digits after the point of a numeric whose type fixes none."""

_LONGEST_STATISTIC = 256


def decimal_bounds(type_name: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal type, None for other types.

    >>> decimal_bounds("decimal(10,2)"), decimal_bounds("int32")
    ((10, 2), None)
    """
    found = _DECIMAL.fullmatch(type_name)
    return (int(found[1]), int(found[2])) if found else None


def arrow_type(column: LakeColumn) -> pa.DataType:
    """The Arrow type in which a column's values are read."""
    bounds = decimal_bounds(column.type)
    if bounds is not None:
        return pa.decimal128(*bounds)
    match column.type:
        case "list":
            return pa.list_(pa.field("element", arrow_type(column.children[0])))
        case "struct":
            return pa.struct([pa.field(child.name, arrow_type(child)) for child in column.children])
        case "map":
            key, value = column.children
            return pa.map_(arrow_type(key), arrow_type(value))
    known = _ARROW.get(column.type)
    if known is None:
        raise _unsupported(column)
    return known


def arrow_field(column: LakeColumn) -> pa.Field:
    """A column's name and Arrow type."""
    return pa.field(column.name, arrow_type(column))


def pg_type(column: LakeColumn) -> str:
    """The PostgreSQL type that holds a column's values; nested values are jsonb."""
    bounds = decimal_bounds(column.type)
    if bounds is not None:
        return f"numeric({bounds[0]},{bounds[1]})"
    known = _PG.get(column.type)
    if known is None:
        raise _unsupported(column)
    return known


def duck_type(column: LakeColumn) -> str:
    """DuckDB's SQL name of a column's type."""
    bounds = decimal_bounds(column.type)
    if bounds is not None:
        return f"DECIMAL({bounds[0]},{bounds[1]})"
    match column.type:
        case "list":
            return duck_type(column.children[0]) + "[]"
        case "struct":
            fields = ", ".join(f"{_quote(child.name)} {duck_type(child)}" for child in column.children)
            return f"STRUCT({fields})"
        case "map":
            key, value = column.children
            return f"MAP({duck_type(key)}, {duck_type(value)})"
    known = _DUCK.get(column.type)
    if known is None:
        raise _unsupported(column)
    return known


def lake_type(pg: PgType, scale: int | None = None) -> str:
    """The DuckLake type that holds a PostgreSQL type's values; what has no counterpart is text.

    Arrays and jsonb are json. `scale` is what is known of a numeric without bounds.
    """
    if pg.oid in _FROM_PG:
        return _FROM_PG[pg.oid]
    if pg.family == "numeric":
        bounds = pg.bounds
        if bounds is None:
            return f"decimal(38,{UNBOUNDED_SCALE if scale is None else min(scale, 38)})"
        precision, digits = bounds
        if precision <= 38 and digits <= precision:
            return f"decimal({precision},{digits})"
        # More digits than a decimal has, or none before the point: text keeps every digit.
        return f"decimal({digits},{digits})" if precision < digits <= 38 else "varchar"
    return "json" if pg.sql.endswith("[]") else "varchar"


def leaves(column: LakeColumn) -> list[LakeColumn]:
    """The columns that hold values: the column itself, or what lies deepest below it."""
    return [leaf for child in column.children for leaf in leaves(child)] if column.children else [column]


def stat_text(value: Any, type_name: str, *, upper: bool = False) -> str | None:
    """A least or greatest value as the catalog's statistics write it; None where a type has no statistics.

    A timestamp_ns may be given as nanoseconds since 1970. Long text is cut: for a maximum (`upper`) to something
    greater, for a minimum to something smaller.

    >>> stat_text(True, "boolean"), stat_text(1.5, "float64"), stat_text(Decimal("1.5"), "decimal(5,2)")
    ('1', '1.5', '1.50')
    >>> stat_text(dt.datetime(2024, 2, 29, 1, 2, 3, 500000), "timestamp")
    '2024-02-29 01:02:03.5'
    """
    if value is None or type_name in HUGE or type_name in ("interval", "timetz", "variant", "geometry"):
        return None
    bounds = decimal_bounds(type_name)
    if bounds is not None:
        return f"{Decimal(value):.{bounds[1]}f}"
    match value:
        case bool():
            return "1" if value else "0"
        case int() if type_name == "timestamp_ns":
            seconds, rest = divmod(value, 1_000_000_000)
            whole = dt.datetime.fromtimestamp(seconds, dt.UTC).replace(tzinfo=None)
            return _trimmed(f"{whole:%Y-%m-%d %H:%M:%S}.{rest:09d}")
        case int():
            return str(value)
        case float():
            return _float_text(value)
        case dt.datetime():
            if type_name != "timestamptz":
                return _trimmed(f"{value.replace(tzinfo=None).isoformat(' ', 'microseconds')}")
            aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
            return _trimmed(aware.astimezone(dt.UTC).replace(tzinfo=None).isoformat(" ", "microseconds")) + "+00"
        case dt.date():
            return value.isoformat()
        case dt.time():
            return _trimmed(value.isoformat("microseconds"))
        case bytes() | bytearray() | memoryview():
            return _cut(bytes(value).hex().upper(), upper=upper)
        case uuid.UUID():
            return str(value)
        case str():
            return _cut(value, upper=upper)
    return str(value)


def stat_value(text: str | None, type_name: str) -> Any:
    """A statistic as a Python value that compares with the column's values; None where that is not possible."""
    if text is None:
        return None
    try:
        return _parse(text, type_name)
    except (ValueError, InvalidOperation, OverflowError):
        return None


def _parse(text: str, type_name: str) -> Any:
    if type_name in INTEGERS or type_name in HUGE:
        return int(text)
    if type_name in FLOATS:
        number = float(text)
        return None if math.isnan(number) else number
    if decimal_bounds(type_name) is not None:
        return Decimal(text)
    if type_name in TIMESTAMPS:
        # Python stops at microseconds; a bound must not be cut, so nanoseconds are only used when there are none.
        head, _, fraction = text.partition(".")
        if len(fraction.rstrip("0")) > 6:
            return None
        return dt.datetime.fromisoformat(f"{head}.{fraction:0<6.6}" if fraction else head)
    match type_name:
        case "boolean":
            return {"1": True, "true": True, "0": False, "false": False}.get(text)
        case "timestamptz":
            head, _, _ = text.partition("+")
            if text.removesuffix("+00") == text:
                return None
            head, _, fraction = head.partition(".")
            moment = dt.datetime.fromisoformat(f"{head}.{fraction:0<6.6}" if fraction else head)
            return moment.replace(tzinfo=dt.UTC)
        case "date":
            return dt.date.fromisoformat(text)
        case "time":
            head, _, fraction = text.partition(".")
            return dt.time.fromisoformat(f"{head}.{fraction:0<6.6}" if fraction else head)
        case "varchar" | "json" | "uuid":
            return text
        case "blob":
            return bytes.fromhex(text)
    return None


def _float_text(value: float) -> str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _trimmed(text: str) -> str:
    head, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    return f"{head}.{fraction}" if fraction else head


def _cut(text: str, *, upper: bool) -> str | None:
    """Text of bounded length that is not above (or, for `upper`, not below) the given one, and has no NUL."""
    nul = text.find("\0")
    length = min(_LONGEST_STATISTIC, nul if nul >= 0 else _LONGEST_STATISTIC)
    if len(text) <= length:
        return text
    cut = text[:length]
    if not upper:
        return cut
    while cut:
        last = ord(cut[-1]) + 1
        if last <= 0x10FFFF:
            # Surrogates are no characters: the next one after them is U+E000.
            return cut[:-1] + chr(0xE000 if 0xD800 <= last <= 0xDFFF else last)
        cut = cut[:-1]
    # All prefixes are already greatest (or empty): no shorter text is above, so there is no bound to give.
    return None


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _unsupported(column: LakeColumn) -> UserError:
    return UserError(
        f"Column {column.name} of the lake table has type {column.type}, which cannot be read.",
        hint="Name the other columns explicitly, or store the values as json or text.",
    )
