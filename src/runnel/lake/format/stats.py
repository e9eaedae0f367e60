"""Bounds of columns in the catalog's text form: comparing them by type, and merging those of files into a table's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from runnel.lake.format import types
from runnel.lake.format.model import ColumnStats, LakeColumn

_YEAR = re.compile(r"(\d+)-(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TableColumnStats:
    """Bounds over everything that was ever inserted into a column."""

    contains_null: bool
    contains_nan: bool | None
    min: str | None
    max: str | None


def leaves(columns: Iterable[LakeColumn]) -> Iterator[LakeColumn]:
    """The columns that hold values, depth first; only these have statistics."""
    for column in columns:
        yield from types.leaves(column)


def sort_key(text: str, type: str) -> Any:
    """What orders two texts of a type as their values are ordered.

    >>> sorted(["10", "9"], key=lambda text: sort_key(text, "int32"))
    ['9', '10']
    >>> sorted(["10000-01-01", "0044-03-15 (BC)", "2024-01-01", "-infinity"], key=lambda text: sort_key(text, "date"))
    ['-infinity', '0044-03-15 (BC)', '2024-01-01', '10000-01-01']
    """
    if type in types.INTEGERS or type in types.HUGE:
        return int(text)
    if type in types.FLOATS:
        return float(text)
    if type.startswith("decimal"):
        return Decimal(text)
    if type == "boolean":
        return text in {"1", "true"}
    if type == "date" or type.startswith("timestamp"):
        return _instant(text)
    return text


def merge(known: TableColumnStats | None, files: Sequence[ColumnStats], type: str) -> TableColumnStats:
    """The table's bounds after files with these bounds were added."""
    lows = [stats.min for stats in files if stats.min is not None]
    highs = [stats.max for stats in files if stats.max is not None]
    if known is not None:
        lows += [known.min] if known.min is not None else []
        highs += [known.max] if known.max is not None else []
    nan: bool | None = None
    if type in types.FLOATS:
        nan = any(stats.contains_nan for stats in files) or bool(known and known.contains_nan)
    return TableColumnStats(
        contains_null=any(stats.null_count for stats in files) or bool(known and known.contains_null),
        contains_nan=nan,
        min=min(lows, key=lambda text: sort_key(text, type), default=None),
        max=max(highs, key=lambda text: sort_key(text, type), default=None),
    )


def _instant(text: str) -> tuple[int, int, str]:
    if text in {"infinity", "-infinity"}:
        return (-1 if text.startswith("-") else 1, 0, "")
    found = _YEAR.match(text.removesuffix("+00").replace(" (BC)", ""))
    if found is None:
        raise ValueError(f"{text!r} is not a date or a timestamp")
    year = int(found[1])
    # Inside a year the text orders right; BC years count backwards.
    return (0, 1 - year if " (BC)" in text else year, found[2])
