"""Rows of two readers in one form, so that they can be compared as multisets."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa

Row = tuple[Any, ...]


def comparable(row: Iterable[Any]) -> Row:
    """A row whose values can be hashed, and are equal whenever the two readers mean the same."""
    return tuple(_value(value) for value in row)


def from_arrow(table: pa.Table) -> list[Row]:
    """The rows of an Arrow table; columns may share a name."""
    if not table.num_columns:
        return [()] * table.num_rows
    return [comparable(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def _value(value: Any) -> Any:  # noqa: PLR0911
    match value:
        case bool() | None | str() | bytes():
            return value
        case int() | Decimal():
            return Decimal(value)
        case float():
            return "nan" if math.isnan(value) else value
        case uuid.UUID():
            return str(value)
        case dt.datetime():
            return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
        case dt.timedelta():
            return value
        case dict():
            return frozenset((_value(key), _value(each)) for key, each in value.items())
        case list() | tuple() if value and all(isinstance(each, tuple) and len(each) == 2 for each in value):
            # Arrow gives a map as pairs.
            return frozenset((_value(key), _value(each)) for key, each in value)
        case list() | tuple():
            return tuple(_value(each) for each in value)
    return value
