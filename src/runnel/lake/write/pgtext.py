"""Values that PostgreSQL printed (COPY), as Arrow of exactly the lake's types.

Arrow parses the text. Where its parser knows less than PostgreSQL writes, such as the year 12000, the time 24:00 or
infinity, values are parsed here one by one. Tasks import this module: it needs pyarrow only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from runnel.lake.format.misfit import misfit
from runnel.lake.format.model import LakeColumn
from runnel.lake.format.types import arrow_type

_DATE = re.compile(r"(\d+)-(\d\d)-(\d\d)")
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?")
_INFINITE_DATE, _INFINITE_TIME = 2**31 - 1, 2**63 - 1
_PARSED = frozenset({"date", "time", "timestamp", "timestamptz"})


def text_schema(columns: Sequence[LakeColumn], extra: Sequence[tuple[str, pa.DataType]] = ()) -> pa.Schema:
    """The schema in which COPY's text is parsed first; columns are called o<i>, names may repeat those of `extra`."""
    return pa.schema([*((f"o{i}", _text_type(c)) for i, c in enumerate(columns)), *extra])


def to_lake(batch: pa.RecordBatch, columns: Sequence[LakeColumn]) -> pa.RecordBatch:
    """The first columns of a parsed batch, in the lake's types and under its names."""
    arrays = []
    for i, column in enumerate(columns):
        try:
            arrays.append(_converted(batch.column(i), column))
        except pa.ArrowInvalid as error:
            raise misfit(column.name, column.type, str(error)) from None
    return pa.record_batch(arrays, schema=pa.schema([(c.name, arrow_type(c)) for c in columns]))


def _text_type(column: LakeColumn) -> pa.DataType:
    return pa.string() if column.type in _PARSED or column.type == "blob" else arrow_type(column)


def _converted(array: pa.Array, column: LakeColumn) -> pa.Array:
    if column.type == "blob":
        return pa.array([None if v is None else bytes.fromhex(v) for v in array.to_pylist()], pa.binary())
    if column.type not in _PARSED:
        return array
    try:
        return pc.cast(array, arrow_type(column))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        parse: Callable[[str], int] = {"date": days, "time": clock}.get(column.type, microseconds)
        storage = pa.int32() if column.type == "date" else pa.int64()
        return pa.array([None if v is None else parse(v) for v in array.to_pylist()], storage).cast(arrow_type(column))


def days(text: str) -> int:
    """Days since 1970 of a date as PostgreSQL prints it, far from now, before Christ, or infinite.

    >>> days("1970-01-02"), days("0001-01-01"), days("0001-01-01 BC"), days("-infinity") == -days("infinity")
    (1, -719162, -719528, True)
    """
    if text.endswith("infinity"):
        return -_INFINITE_DATE if text.startswith("-") else _INFINITE_DATE
    found = _DATE.match(text)
    assert found is not None, text
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    if text.endswith("BC"):
        year = 1 - year
    # Years begin in March here, so that the leap day is a year's last; eras of 400 years repeat.
    year -= month <= 2  # noqa: PLR2004
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1  # noqa: PLR2004
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


def clock(text: str) -> int:
    """Microseconds since midnight.

    >>> clock("24:00:00"), clock("00:00:01.5")
    (86400000000, 1500000)
    """
    found = _TIME.search(text)
    assert found is not None, text
    seconds = (int(found[1]) * 60 + int(found[2])) * 60 + int(found[3])
    return seconds * 1_000_000 + int((found[4] or "").ljust(6, "0"))


def microseconds(text: str) -> int:
    """Microseconds since 1970 of a timestamp in UTC.

    >>> microseconds("1970-01-02 00:00:00.25"), microseconds("0001-12-31 23:59:59+00 BC") < 0
    (86400250000, True)
    """
    if text.endswith("infinity"):
        return -_INFINITE_TIME if text.startswith("-") else _INFINITE_TIME
    count = days(text) * 86_400_000_000 + clock(text)
    if abs(count) > _INFINITE_TIME:
        raise pa.ArrowInvalid(f"timestamp out of range: {text}")
    return count
