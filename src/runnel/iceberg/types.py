"""DuckLake's types in Iceberg's words, and single values of them: bounds as bytes, defaults as JSON.

A type without an equivalent has none on purpose: unsigned numbers that a signed one does not hold, numbers that files
keep as doubles, and what no reader agrees on.
"""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from runnel.lake.format.columns import from_text
from runnel.lake.format.model import LakeColumn
from runnel.lake.format.types import NESTED, decimal_bounds, stat_value

_PLAIN = {
    "boolean": "boolean", "int8": "int", "int16": "int", "int32": "int", "int64": "long", "uint8": "int",
    "uint16": "int", "float32": "float", "float64": "double", "date": "date", "time": "time", "timestamp": "timestamp",
    "timestamp_us": "timestamp", "timestamp_s": "timestamp", "timestamp_ms": "timestamp",
    "timestamptz": "timestamptz", "varchar": "string", "json": "string", "blob": "binary", "uuid": "uuid",
}  # fmt: skip
_SINCE_V3 = {"timestamp_ns": "timestamp_ns"}

_PROMOTIONS = {("int", "long"), ("float", "double")}

_EPOCH = dt.datetime(1970, 1, 1)
_DAY = dt.date(1970, 1, 1)


def plain_type(name: str, version: int) -> str | None:
    """The Iceberg type of a DuckLake type that is not nested, in a version of the format; None if there is none.

    >>> plain_type("int16", 2), plain_type("decimal(10,2)", 2), plain_type("uint64", 3), plain_type("timestamp_ns", 2)
    ('int', 'decimal(10, 2)', None, None)
    """
    bounds = decimal_bounds(name)
    if bounds is not None:
        return f"decimal({bounds[0]}, {bounds[1]})"
    return _PLAIN.get(name) or (_SINCE_V3.get(name) if version >= 3 else None)


def promotes(old: str, new: str) -> bool:
    """Whether readers of Iceberg take values of one DuckLake type for those of a later one."""
    former, latter = plain_type(old, 3), plain_type(new, 3)
    if former == latter:
        return former is not None
    narrow, wide = decimal_bounds(old), decimal_bounds(new)
    if narrow is not None and wide is not None:
        return narrow[1] == wide[1] and narrow[0] <= wide[0]
    return (former, latter) in _PROMOTIONS


def default_json(column: LakeColumn) -> Any:
    """A column's initial default as the JSON of a schema; raises ValueError where there is no such form."""
    assert column.initial_default is not None
    if column.type in NESTED:
        raise ValueError("nested defaults have no form")
    value = from_text([column.initial_default], column)[0].as_py()
    match value:
        case dt.datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return f"{text}+00:00" if column.type == "timestamptz" else text
        case dt.time():
            return value.isoformat(timespec="microseconds")
        case dt.date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case Decimal():
            return str(value)
        case float() if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124
            raise ValueError("JSON has no such number")
    return value


def bound_bytes(type_name: str) -> Callable[[str], bytes | None] | None:
    """What makes the bytes of a bound from the catalog's text of it; None where a type has no safe bounds."""
    if type_name in ("varchar", "json"):
        return str.encode
    if decimal_bounds(type_name) is not None:
        return _decimal
    return _BOUNDS.get(type_name)


def _packed(form: str) -> Callable[[str], bytes | None]:
    pack = struct.Struct(form).pack

    def convert(text: str) -> bytes | None:
        try:
            return pack(int(text))
        except (ValueError, struct.error):
            return None

    return convert


def _float(form: str) -> Callable[[str], bytes | None]:
    pack = struct.Struct(form).pack

    def convert(text: str) -> bytes | None:
        try:
            return pack(float(text))
        except (ValueError, OverflowError):
            return None

    return convert


def _boolean(text: str) -> bytes | None:
    return {"1": b"\x01", "true": b"\x01", "0": b"\x00", "false": b"\x00"}.get(text)


def _decimal(text: str) -> bytes | None:
    try:
        number = Decimal(text)
    except ArithmeticError:
        return None
    sign, digits, _ = number.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    return unscaled.to_bytes((unscaled.bit_length() // 8) + 1, "big", signed=True)


def _date(text: str) -> bytes | None:
    value = stat_value(text, "date")
    return None if value is None else struct.pack("<i", (value - _DAY).days)


def _moment(type_name: str) -> Callable[[str], bytes | None]:
    def convert(text: str) -> bytes | None:
        value = stat_value(text, type_name)
        if value is None:
            return None
        micros = (value.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)
        return struct.pack("<q", micros)

    return convert


def _time(text: str) -> bytes | None:
    value = stat_value(text, "time")
    if value is None:
        return None
    return struct.pack("<q", ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond)


def _uuid(text: str) -> bytes | None:
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        return None


_BOUNDS: dict[str, Callable[[str], bytes | None]] = {
    "boolean": _boolean,
    **{name: _packed("<i") for name in ("int8", "int16", "int32", "uint8", "uint16")},
    "int64": _packed("<q"),
    "float32": _float("<f"), "float64": _float("<d"),
    "date": _date, "time": _time, "uuid": _uuid,
    **{name: _moment(name) for name in ("timestamp", "timestamp_us", "timestamp_s", "timestamp_ms", "timestamptz")},
}  # fmt: skip
