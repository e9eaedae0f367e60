"""Values of lakes as PostgreSQL's input functions read them. Tasks import this module: it needs pyarrow only."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_EARLIEST_DAY, _LATEST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31: what Arrow prints as PostgreSQL reads it."""
_INFINITE_DAY = 2**31 - 1
_INFINITE = 2**63 - 1
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with what Arrow's CSV writer would not write as PostgreSQL reads it turned into text."""
    columns = [_column(array) for array in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=[str(i) for i in range(len(columns))])


def _column(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_nested(kind):
        return _each(array, json_text)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _each(array, lambda value: "\\x" + value.hex())
    if pa.types.is_decimal256(kind) or pa.types.is_float16(kind):
        return _each(array, str)
    if pa.types.is_date32(kind):
        return _days(array)
    if pa.types.is_timestamp(kind):
        return _instants(array)
    return array


def _each(array: pa.Array, text: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if v is None else text(v) for v in array.to_pylist()], pa.string())


def _days(array: pa.Array) -> pa.Array:
    days = array.cast(pa.int32())
    if not _beyond(days, _EARLIEST_DAY, _LATEST_DAY):
        return array
    return pa.array([None if d is None else _day_text(d) for d in days.to_pylist()], pa.string())


def _instants(array: pa.Array) -> pa.Array:
    unit = _PER_DAY[array.type.unit]
    ticks = array.cast(pa.int64())
    if not _beyond(ticks, _EARLIEST_DAY * unit, (_LATEST_DAY + 1) * unit - 1):
        return array
    zone = "+00" if array.type.tz is not None else ""
    return pa.array([None if t is None else _instant_text(t, unit, zone) for t in ticks.to_pylist()], pa.string())


def _beyond(values: pa.Array, low: int, high: int) -> bool:
    # A bound that does not fit its type cannot be passed, either.
    ends = pc.min_max(values).as_py()
    return ends["min"] is not None and (ends["min"] < low or ends["max"] > high)


def _day_text(day: int) -> str:
    """A date outside of Python's calendar; PostgreSQL counts days from 2000-01-01, at most to the year 5874897.

    >>> _day_text(2**31 - 1), _day_text(0)
    ('infinity', '1970-01-01')
    """
    if abs(day) == _INFINITE_DAY:
        return "infinity" if day > 0 else "-infinity"
    year, month, of_month = _civil(day)
    return f"{year:04d}-{month:02d}-{of_month:02d}" if year > 0 else f"{1 - year:04d}-{month:02d}-{of_month:02d} BC"


def _instant_text(ticks: int, per_day: int, zone: str) -> str:
    if abs(ticks) == _INFINITE:
        return "infinity" if ticks > 0 else "-infinity"
    day, rest = divmod(ticks, per_day)
    seconds, fraction = divmod(rest, per_day // 86_400)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    digits = len(str(per_day // 86_400)) - 1
    tail = f".{fraction:0{digits}d}" if digits else ""
    date, _, era = _day_text(day).partition(" ")
    return f"{date} {clock}{tail}{zone}{f' {era}' if era else ''}"


def _civil(day: int) -> tuple[int, int, int]:
    """Year, month and day of a number of days since 1970-01-01, in the proleptic Gregorian calendar.

    >>> _civil(19_782), _civil(-719_163)
    ((2024, 2, 29), (0, 12, 31))
    """
    era, rest = divmod(day + 719_468, 146_097)
    year = (rest - rest // 1460 + rest // 36_524 - rest // 146_096) // 365
    of_year = rest - (365 * year + year // 4 - year // 100)
    march = (5 * of_year + 2) // 153
    month = march + 3 if march < 10 else march - 9
    return year + era * 400 + (month <= 2), month, of_year - (153 * march + 2) // 5 + 1


def json_text(value: Any) -> str:
    """A nested value as JSON, with every digit of its numbers.

    >>> json_text({"a": Decimal("1.50"), "b": [None, True, b"x"], "c": [(1, "k")]})
    '{"a": 1.50, "b": [null, true, "78"], "c": {"1": "k"}}'
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Decimal():
            return f"{value:f}" if value.is_finite() else json.dumps(str(value))
        case float():
            return repr(value) if math.isfinite(value) else json.dumps(str(value))
        case bytes():
            return json.dumps(value.hex())
        case dict():
            return "{" + ", ".join(f"{json.dumps(str(k))}: {json_text(v)}" for k, v in value.items()) + "}"
        case list() if value and all(isinstance(v, tuple) for v in value):
            # Arrow gives a map as a list of pairs.
            return "{" + ", ".join(f"{json.dumps(_key_text(k))}: {json_text(v)}" for k, v in value) + "}"
        case list():
            return "[" + ", ".join(json_text(v) for v in value) + "]"
        case dt.datetime():
            return json.dumps(value.isoformat(" "))
        case _:
            return json.dumps(str(value), ensure_ascii=False)


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else json_text(key).strip('"')
