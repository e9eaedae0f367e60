"""Values in PostgreSQL's binary format, as the ADBC driver reads them, in the lake's types.

The driver counts dates and times from 1970 where PostgreSQL counts from 2000, and adds the difference to infinity, too.
Tasks import this module: it needs pyarrow only.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from runnel.lake.format.misfit import misfit
from runnel.lake.format.model import LakeColumn
from runnel.lake.format.types import arrow_type

_DAYS, _MICROSECONDS = 10_957, 946_684_800_000_000
"""From 1970 to 2000."""


def to_lake(batch: pa.RecordBatch, columns: Sequence[LakeColumn]) -> pa.RecordBatch:
    """A batch under the lake's names, with the types that its files are made of. Decimals are expected as text."""
    arrays = []
    for array, column in zip(batch.columns, columns, strict=True):
        try:
            arrays.append(_converted(array, column))
        except pa.ArrowInvalid as error:
            raise misfit(column.name, column.type, str(error)) from None
    return pa.record_batch(arrays, names=[column.name for column in columns])


def _converted(array: pa.Array, column: LakeColumn) -> pa.Array:
    match column.type:
        case "uuid":
            return array
        case "date":
            return _bounded(array.view(pa.int32()), 2**31 - 1, _DAYS).view(pa.date32())
        case "timestamp" | "timestamptz":
            return _bounded(array.view(pa.int64()), 2**63 - 1, _MICROSECONDS).view(arrow_type(column))
    return array.cast(arrow_type(column))


def _bounded(counts: pa.Array, most: int, shift: int) -> pa.Array:
    """Counts since 1970, with infinity as DuckDB has it. What is so small is what went over the edge."""
    least = pc.min(counts).as_py()
    if least is None or least >= -most + 2 * shift:
        return counts
    infinite, before = most + shift - 2 * (most + 1), -most - 1 + shift
    plain = pc.if_else(pc.equal(counts, infinite), most, pc.if_else(pc.equal(counts, before), -most, counts))
    if pc.any(pc.and_(pc.less(plain, -most + 2 * shift), pc.greater(plain, -most))).as_py():
        raise pa.ArrowInvalid("a date or timestamp is out of range")
    return plain.cast(counts.type)
