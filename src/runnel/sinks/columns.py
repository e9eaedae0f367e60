"""Columns on their way to a lake: their types there, and the SQL that reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from runnel.apply.tables import identity_sql
from runnel.errors import UserError
from runnel.lake.format.misfit import misfit
from runnel.lake.format.model import LakeColumn, LakeTable
from runnel.lake.format.types import decimal_bounds, lake_type, pg_type
from runnel.model.types import Column, PgType

SETTINGS: Mapping[str, str] = {
    "TimeZone": "UTC", "DateStyle": "ISO, YMD", "IntervalStyle": "postgres", "extra_float_digits": "1",
    "bytea_output": "hex", "search_path": "pg_catalog, pg_temp",
}  # fmt: skip
"""Under these the text of a value is the same whoever reads it."""

_IN_COLUMN = re.compile(r"In CSV column #(\d+): ")
_SEEDS = (0, 0x52756E6E656C)


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """A column of a stream table, and its type in the lake."""

    name: str
    type: PgType
    lake: str

    @property
    def as_json(self) -> list[str]:
        """The form in which the catalog remembers it."""
        return [self.name, self.type.sql, self.lake]

    def read_sql(self, value: str) -> str:
        """The value as COPY should print it."""
        bounds = decimal_bounds(self.lake)
        if bounds is not None:
            return value if self.type.bounds is not None else f"round({value}, {bounds[1]})"
        if self.lake == "blob":
            return f"encode({value}, 'hex')"
        if self.lake == "json" and self.type.sql.endswith("[]"):
            return f"to_jsonb({value})::text"
        return f"({value})::text" if self.lake in ("varchar", "json", "uuid") else value

    @property
    def read_type(self) -> str:
        """The built-in type of `read_sql`."""
        if decimal_bounds(self.lake) is not None:
            return "numeric"
        return "text" if self.lake in ("blob", "json", "uuid") else pg_type(LakeColumn(0, self.name, self.lake))

    @property
    def native_type(self) -> str:
        """The built-in type of `native_sql`."""
        if decimal_bounds(self.lake) is not None:
            return "text"
        binary = {"blob": "bytea", "uuid": "uuid"}
        return binary.get(self.lake, self.read_type)

    def native_sql(self, value: str) -> str:
        """The value in a type whose binary form is read without loss; decimals are text."""
        if decimal_bounds(self.lake) is not None:
            return f"({self.read_sql(value)})::text"
        return value if self.lake in ("blob", "uuid") else self.read_sql(value)


def published(columns: Sequence[Column], scales: Mapping[str, int] | None = None) -> tuple[PublishedColumn, ...]:
    """The columns of a result; `scales` are what is known of numerics whose type fixes none."""
    known = scales or {}
    return tuple(PublishedColumn(c.name, c.type, lake_type(c.type, known.get(c.name))) for c in columns)


def keep_types(
    columns: Sequence[PublishedColumn], before: Sequence[Sequence[str]] | None
) -> tuple[PublishedColumn, ...]:
    """The columns with the decimals they were published with, where these have digits to spare.

    What is known of digits may grow with a release; the type of a column that people read does not change for that.
    """
    stored = {name: (type_, lake) for name, type_, lake in before or ()}
    return tuple(
        replace(c, lake=stored[c.name][1]) if c.name in stored and _spares(c, *stored[c.name]) else c for c in columns
    )


def _spares(column: PublishedColumn, type_: str, lake: str) -> bool:
    old, new = decimal_bounds(lake), decimal_bounds(column.lake)
    unbounded = column.type.family == "numeric" and column.type.bounds is None
    return unbounded and column.type.sql == type_ and old is not None and new is not None and old[1] >= new[1]


def identities(columns: Sequence[PublishedColumn], names: Sequence[str]) -> list[str]:
    """Two hashes of a row that together tell it from all others."""
    pairs = [(name, column.type) for name, column in zip(names, columns, strict=True)]
    return [identity_sql(pairs, seed) for seed in _SEEDS]


def lake_columns(columns: Sequence[PublishedColumn], table: LakeTable) -> list[LakeColumn]:
    """The lake table's own columns, in the order of the published ones."""
    by_name = {c.name: c for c in table.columns}
    return [by_name[c.name] for c in columns]


def unreadable(columns: Sequence[PublishedColumn], error: pa.ArrowException) -> UserError:
    """A value that the lake's type cannot hold, found while its text was read."""
    text = str(error).splitlines()[0]
    found = _IN_COLUMN.match(text)
    if found and int(found[1]) < len(columns):
        column = columns[int(found[1])]
        return misfit(column.name, column.lake, text[found.end() :])
    return UserError(f"a value does not fit into the lake: {text}", sqlstate="22003")
