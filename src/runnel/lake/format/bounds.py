"""What a reader asks of a column's values, and which files and row groups cannot hold any of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from runnel.errors import UserError
from runnel.lake.format.model import LakeColumn
from runnel.lake.format.types import FLOATS, NESTED, TEXTS, arrow_type, stat_value

Keys = Mapping[str, Iterable[Any]]
Bounds = Mapping[str, tuple[Any, Any]]

_UNORDERED = NESTED | {"interval", "timetz", "geometry", "variant"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One column's values of interest: some of a set, or within two inclusive bounds. Pickled to tasks."""

    column: LakeColumn
    values: tuple[Any, ...] | None = None
    """Sorted; without NULL."""
    null: bool = False
    """Whether NULL is among the values."""
    low: Any = None
    high: Any = None
    _set: list[pa.Array] = field(default_factory=list, compare=False, repr=False)

    def may_be_within(self, least: Any, greatest: Any) -> bool:
        """Whether a value of interest may lie between the two (None: not known)."""
        try:
            if self.values is not None:
                start = 0 if least is None else bisect_left(self.values, least)
                return start < len(self.values) and (greatest is None or self.values[start] <= greatest)
            too_small = self.low is not None and greatest is not None and greatest < self.low
            too_large = self.high is not None and least is not None and least > self.high
        except TypeError:
            # Values of another kind than the column's: nothing can be concluded.
            return True
        return not (too_small or too_large)

    def mask(self, array: pa.Array) -> pa.Array | None:
        """Which values are of interest; None where only the caller can tell."""
        if self.column.type in FLOATS:
            # Arrow and SQL do not agree on -0 and NaN.
            return None
        if self.values is not None:
            if not self._set:
                self._set.append(_value_set([*self.values, None] if self.null else self.values, self.column))
            return pc.is_in(array, value_set=self._set[0])
        chosen = pc.is_valid(array)
        for bound, compare in ((self.low, pc.greater_equal), (self.high, pc.less_equal)):
            # A bound with more digits than the column compares no worse if it is left to the caller.
            if bound is not None and _fits(bound, array.type):
                chosen = pc.and_kleene(chosen, compare(array, pa.scalar(bound, array.type)))
        return chosen


def wanted(columns: Iterable[LakeColumn], keys: Keys | None, bounds: Bounds | None) -> tuple[Wanted, ...]:
    """The conditions on a table's columns, given by name. Columns whose order is not known are left to the caller."""
    by_name = {column.name: column for column in columns}
    conditions = []
    for name, values in (keys or {}).items():
        column = _named(by_name, name)
        parsed = [_value(value, column) for value in values]
        if column.type in _UNORDERED or any(_odd(value, column) for value in parsed):
            continue
        conditions.append(
            Wanted(column, tuple(sorted({v for v in parsed if v is not None})), null=any(v is None for v in parsed))
        )
    for name, (low, high) in (bounds or {}).items():
        column = _named(by_name, name)
        least, greatest = _value(low, column), _value(high, column)
        # NaN is above all numbers, and statistics leave it out.
        if column.type in _UNORDERED or column.type in FLOATS or _odd(least, column) or _odd(greatest, column):
            continue
        conditions.append(Wanted(column, low=least, high=greatest))
    return tuple(conditions)


def keeps(condition: Wanted, least: str | None, greatest: str | None, values: int | None, nulls: int | None) -> bool:
    """Whether a file with these statistics may hold a row of interest."""
    if condition.null and nulls != 0:
        return True
    if values == 0 and nulls:
        return False
    type_name = condition.column.type
    return condition.may_be_within(stat_value(least, type_name), stat_value(greatest, type_name))


def _value_set(values: Iterable[Any], column: LakeColumn) -> pa.Array:
    """The values that the column's type can hold; no row has one of the others."""
    type = arrow_type(column)
    listed = list(values)
    try:
        return pa.array(listed, type)
    except (pa.ArrowInvalid, OverflowError):
        return pa.array([value for value in listed if _fits(value, type)], type)


def _fits(value: Any, type: pa.DataType) -> bool:
    try:
        pa.scalar(value, type)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def _named(by_name: Mapping[str, LakeColumn], name: str) -> LakeColumn:
    if name not in by_name:
        raise UserError(f"The lake table has no column {name}.", hint=f"It has: {', '.join(by_name)}.")
    return by_name[name]


def _value(value: Any, column: LakeColumn) -> Any:
    """Text for a column of another type is read as the catalog writes it."""
    if isinstance(value, str) and column.type not in TEXTS and column.type != "uuid":
        parsed = stat_value(value, column.type)
        return value if parsed is None else parsed
    return str(value).lower() if column.type == "uuid" and value is not None else value


def _odd(value: Any, column: LakeColumn) -> bool:
    """Whether comparing may go wrong: NaN sorts nowhere, and unread text is no value of the column's type."""
    if column.type in FLOATS:
        return isinstance(value, str) or (isinstance(value, float) and value != value)  # noqa: PLR0124
    return isinstance(value, str) and column.type not in TEXTS and column.type != "uuid"
