"""Between which values a column's values lie, by the statistics of the files that are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from runnel.lake.format.catalog import file_stats
from runnel.lake.format.model import Lake, LakeColumn
from runnel.lake.format.types import HUGE, INTEGERS, TIMESTAMPS, decimal_bounds, stat_value
from runnel.lake.read.reader import FileScan

Range = tuple[Any, Any]
_ORDERED = INTEGERS | HUGE | TIMESTAMPS.keys() | {"date", "timestamptz"}


def value_ranges(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table_id: int,
    columns: Sequence[LakeColumn],
    files: Iterable[FileScan],
    inlined: pa.Table,
) -> dict[int, Range]:
    """Least and greatest value per column (by id) of numbers and dates; no entry where one file does not tell.

    Statistics are of a whole file, so they hold for its deleted rows, too.
    """
    wanted = [(place, c) for place, c in enumerate(columns) if c.type in _ORDERED or decimal_bounds(c.type) is not None]
    if not wanted:
        return {}
    read = [spec.file for spec in files]
    stats = file_stats(conn, lake, table_id, [column.id for _, column in wanted]) if read else {}
    found: dict[int, Range] = {}
    for place, column in wanted:
        ends = [_of_array(inlined.column(place))] if inlined.num_rows else []
        known = stats.get(column.id, {})
        ends += [_of_file(known.get(file.id), column, file.record_count) for file in read]
        values = [value for end in ends for value in end if end != _NOTHING]
        if None not in values and values:
            found[column.id] = min(values), max(values)
    return found


_NOTHING: Range = ("", "")
"""A file or a table without values."""


def _of_file(known: tuple[Any, ...] | None, column: LakeColumn, rows: int) -> Range:
    if known is None:
        return None, None
    least, greatest, _, nulls, _ = known
    if least is None and greatest is None and nulls == rows:
        return _NOTHING
    return stat_value(least, column.type), stat_value(greatest, column.type)


def _of_array(array: pa.ChunkedArray) -> Range:
    try:
        ends = pc.min_max(array).as_py()
    except (ValueError, OverflowError, pa.ArrowInvalid):
        # A date beyond Python's calendar.
        return None, None
    return _NOTHING if ends["min"] is None else (ends["min"], ends["max"])
