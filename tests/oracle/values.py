"""Types and values: few distinct values per type, so that joins meet, groups fill up and duplicates happen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

SQL_TYPES = {
    "int": "int",
    "bigint": "bigint",
    "money": "numeric(10,2)",
    "numeric": "numeric",
    "text": "text",
    "bool": "bool",
    "timestamptz": "timestamptz",
    "date": "date",
    "float8": "float8",
    "ints": "int[]",
    "jsonb": "jsonb",
    "texts": "text[]",
    "object": "jsonb",
    "json": "json",
}
"""The kinds of columns, and their types; `money` is a numeric whose digits are known, `jsonb` is always an array."""

INTEGERS = ("int", "bigint")
EXACT = ("int", "bigint", "money", "numeric")
NUMBERS = (*EXACT, "float8")
TIMES = ("timestamptz", "date")
NESTED = ("ints", "jsonb", "texts", "object", "json")

# Floats are multiples of a quarter, so that sums do not depend on the order of addition; minus zero is left out
# because PostgreSQL may then print either zero of a group.
VALUES: dict[str, tuple[str, ...]] = {
    "int": ("0", "1", "2", "3", "-1", "4", "5", "7", "100"),
    "bigint": ("0", "1", "2", "3", "-2", "3000000000", "1000000000000"),
    "money": ("0", "1", "2.50", "-3.25", "10.01", "0.99", "99999999.99", "'NaN'"),
    "numeric": ("0", "1", "1.0", "2.5", "-0.125", "1000000.000001", "3", "'NaN'", "'Infinity'"),
    "text": (
        "'a'",
        "'b'",
        "''",
        "'A'",
        "' b'",
        "'it''s'",
        "'x%_'",
        "'\u00e9'",
        "'a,\"b'",
        "E'two\\nlines'",
        "E'\\\\N'",
    ),
    "bool": ("true", "false"),
    "timestamptz": (
        "'2026-01-01 00:00+00'",
        "'2026-01-01 23:30+00'",
        "'2026-03-08 07:30:00.000001+00'",
        "'2026-02-28 12:00+00'",
        "'infinity'",
    ),
    "date": ("'2026-01-01'", "'2026-01-02'", "'2026-03-08'", "'2024-02-29'"),
    "float8": ("0", "0.25", "1.5", "-2.75", "3", "1000000.5", "'NaN'", "'Infinity'"),
    "ints": ("'{1,2}'", "'{}'", "'{0}'", "'{3,NULL,3}'", "'{2,1}'"),
    "jsonb": ("'[1, 2]'", "'[]'", "'[\"a\", null]'", '\'[{"x": 1}, 2, "b"]\'', "'[[1], true]'"),
    "texts": ("'{a,b}'", "'{}'", "'{NULL}'"),
    "object": ("'{}'", "'{\"a\": 1}'"),
    "json": ("'[]'", "'{\"a\":  1}'"),
}


@dataclass(frozen=True)
class Col:
    """A column or an expression that a query may use."""

    sql: str
    kind: str
    rough: bool = False
    """Its last digits depend on how it was computed: never a key, never compared."""
    small: bool = True
    """Read from a table, so that products of two stay in range."""


def pick(draw: st.DrawFn, options: Sequence[T]) -> T:
    """One of several; the first is the simplest."""
    return draw(st.sampled_from(list(options)))


def chance(draw: st.DrawFn, percent: int) -> bool:
    """True so often; False is simpler."""
    return draw(st.integers(0, 99)) >= 100 - percent


def several(draw: st.DrawFn, options: Sequence[T], least: int, most: int) -> list[T]:
    """Some of them, none twice, in their order."""
    most = min(most, len(options))
    wanted = draw(st.sets(st.integers(0, len(options) - 1), min_size=min(least, most), max_size=most))
    return [options[i] for i in sorted(wanted)]


def value(draw: st.DrawFn, kind: str, *, finite: bool = True) -> str:
    """A literal; strange ones are at the end of each list and therefore the last to go when shrinking."""
    options = VALUES[kind]
    if finite:
        options = tuple(v for v in options if v not in ("'NaN'", "'Infinity'", "'infinity'"))
    # Most values from the front of the list, so that rows meet.
    return pick(draw, options if chance(draw, 40) else options[:4])


def constant(draw: st.DrawFn, kind: str) -> str:
    """A typed constant for use in a query."""
    literal = value(draw, kind)
    return literal if kind in ("int", "text", "bool") else f"{literal}::{SQL_TYPES[kind]}"
