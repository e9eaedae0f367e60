"""Exact statistics of the rows that go into a file, per leaf column, computed batch by batch."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from runnel.lake.format.model import ColumnStats, LakeColumn
from runnel.lake.format.types import FLOATS, HUGE, TIMESTAMPS, leaves, stat_text

_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH = dt.date(1970, 1, 1).toordinal()
STORED_UNITS = {"timestamp_ms": "ms", "timestamp_ns": "ns"}
"""How files store timestamps; all others are in microseconds."""
_CYCLE = 146_097
"""Days of the 400 years after which the calendar repeats itself."""
_WITHOUT = frozenset({"interval", "timetz", "variant", "geometry"}) | HUGE


@dataclass(slots=True)
class LeafStats:
    """What is known of one leaf column so far."""

    type: str
    values: int = 0
    nulls: int = 0
    low: Any = None
    high: Any = None
    nan: bool = False

    def add(self, array: pa.Array, entries: int) -> None:
        """Count an array of leaf values; `entries` also counts the NULLs above it."""
        present = len(array) - array.null_count
        self.values += present
        self.nulls += entries - present
        if not present or self.type in _WITHOUT:
            return
        if self.type in FLOATS:
            numbers = pc.is_nan(array)
            if pc.any(numbers).as_py():
                self.nan = True
                array = array.filter(pc.invert(numbers))
        found = pc.min_max(_plain(array))
        low, high = found["min"].as_py(), found["max"].as_py()
        if low is None:
            return
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    def result(self, size: int | None = None) -> ColumnStats:
        return ColumnStats(
            value_count=self.values,
            null_count=self.nulls,
            min=bound_text(self.low, self.type),
            max=bound_text(self.high, self.type, upper=True),
            contains_nan=self.nan if self.type in FLOATS else None,
            size=size,
        )


@dataclass(slots=True)
class Collector:
    """Statistics of a table's columns over the batches seen so far."""

    columns: Sequence[LakeColumn]
    rows: int = 0
    leaves: dict[int, LeafStats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leaves = {leaf.id: LeafStats(leaf.type) for column in self.columns for leaf in leaves(column)}

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch whose first columns are the table's."""
        self.rows += batch.num_rows
        for index, column in enumerate(self.columns):
            self._descend(column, batch.column(index), batch.num_rows)

    def result(self) -> dict[int, ColumnStats]:
        return {id: leaf.result() for id, leaf in self.leaves.items()}

    def _descend(self, column: LakeColumn, array: pa.Array, entries: int) -> None:
        if not column.children:
            self.leaves[column.id].add(array, entries)
            return
        if column.type == "struct":
            for child, values in zip(column.children, array.flatten(), strict=True):
                self._descend(child, values, entries)
            return
        if column.type == "map":
            array = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
        filled = pc.sum(pc.greater(pc.list_value_length(array), 0).cast(pa.int64())).as_py() or 0
        elements = array.flatten()
        # NULL and empty lists count as one NULL element each, as they do in Parquet.
        below = entries - filled + len(elements)
        if column.type == "list":
            self._descend(column.children[0], elements, below)
        else:
            for child, values in zip(column.children, elements.flatten(), strict=True):
                self._descend(child, values, below)


def statistics(table: pa.Table, columns: Sequence[LakeColumn]) -> dict[int, ColumnStats]:
    """The statistics of rows that are in memory."""
    collector = Collector(columns)
    for batch in table.to_batches():
        collector.add(batch)
    return collector.result()


def bound_text(value: Any, type: str, *, upper: bool = False) -> str | None:
    """A bound in the catalog's text. Dates and timestamps are given as counts since 1970, so that all years fit.

    >>> bound_text(0, "date"), bound_text(-719163, "date"), bound_text(2932897, "date")
    ('1970-01-01', '0001-12-31 (BC)', '10000-01-01')
    >>> bound_text(1500000, "timestamp"), bound_text(-1, "timestamptz"), bound_text(2147483647, "date")
    ('1970-01-01 00:00:01.5', '1969-12-31 23:59:59.999999+00', 'infinity')
    """
    if value is None:
        return None
    if type == "date":
        return _endless(value, 2**31 - 1) or _date(value)
    if type == "timestamptz" or type in TIMESTAMPS:
        return _endless(value, 2**63 - 1) or _timestamp(value, type)
    if type == "time":
        return _clock(value, 1_000_000)
    if type == "uuid":
        return str(uuid.UUID(bytes=value)) if isinstance(value, bytes) else str(value)
    return stat_text(value, type, upper=upper)


def _plain(array: pa.Array) -> pa.Array:
    """Values that can be compared without loss: temporal ones as integers, uuids as bytes."""
    type = array.type
    if isinstance(type, pa.BaseExtensionType):
        return array.storage
    if pa.types.is_date32(type):
        return array.view(pa.int32())
    if pa.types.is_timestamp(type) or pa.types.is_time64(type):
        return array.view(pa.int64())
    return array


def _endless(value: int, most: int) -> str | None:
    return {most: "infinity", -most: "-infinity"}.get(value)


def _date(days: int) -> str:
    cycles, rest = divmod(days + _EPOCH - 1, _CYCLE)
    day = dt.date.fromordinal(rest + 1)
    year = day.year + 400 * cycles
    text = f"{year if year > 0 else 1 - year:04d}-{day:%m-%d}"
    return text if year > 0 else f"{text} (BC)"


def _timestamp(value: int, type: str) -> str:
    per_second = _UNITS[STORED_UNITS.get(type, "us")]
    days, rest = divmod(value, 86_400 * per_second)
    zone = "+00" if type == "timestamptz" else ""
    return f"{_date(days)} {_clock(rest, per_second)}{zone}"


def _clock(value: int, per_second: int) -> str:
    seconds, fraction = divmod(value, per_second)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    digits = str(fraction).rjust(len(str(per_second)) - 1, "0").rstrip("0") if fraction else ""
    return f"{text}.{digits}" if digits else text
