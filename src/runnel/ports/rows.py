"""Rows on their way from a source to whoever evaluates them: how a read is asked for, and what comes back.

A leaf's rows come as columns `l<leaf>_<i>` in the forms of the plan, a delta's rows also with a weight `w<leaf>`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from runnel.model.types import DECIMAL_DIGITS, Form
from runnel.plan.stage import Leaf

Frame = Any
"""A Spark DataFrame; only `runnel.spark` looks inside."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of the frontier and of this refresh."""

    before: str | None
    now: str


@dataclass(frozen=True, slots=True)
class Restriction:
    """Key values that a read is narrowed to."""

    sql: str
    array_type: str
    values: tuple[object, ...]
    include_null: bool = False
    also: tuple[Restriction, ...] = ()
    """Further columns of the same join: a row must satisfy all."""
    between: bool = False
    """The values are not keys but ends of a range, which PostgreSQL orders; only for rows that it reads itself."""

    @property
    def is_empty(self) -> bool:
        """Whether no row can satisfy it."""
        return (not self.values and not self.include_null) or any(r.is_empty for r in self.also)


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT with its parameters. Percent signs in the text are doubled, with or without parameters."""

    text: str
    params: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A computed column of a leaf in DuckDB's SQL, over the columns of its files."""

    sql: str
    type: str
    """smallint, int, bigint, decimal, text, boolean, date; null."""
    digits: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows that lie in files, for tasks that let DuckDB read and join them."""

    columns: tuple[FileColumn, ...]
    filters: tuple[str, ...]
    weighted: bool
    """Whether each row has a weight, in a column `w`."""
    estimate: int
    """About how many rows, before the filters."""
    files: Callable[[], Any]
    """Where they are. Only `runnel.spark` looks inside; who asks reads them."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a source has for a leaf: the ways to get it, and about how much it is.

    The source says which ways there are. Which of them is gone is decided in one place, by size
    (`runnel.refresh.leaves`).
    """

    estimate: float
    """At most, or about, how many rows; 0 where a restriction keeps them few."""
    select: Callable[[], Query] | None = None
    """A SELECT for PostgreSQL, with the rights of the stream table's owner; asking for it may already cost a copy."""
    slices: Callable[[int], Sequence[Query]] | None = None
    """The same rows in so many SELECTs at most, which other sessions can run in the refresh's exported snapshot.

    Of a delta the slices are not netted against each other. None: only the refresh transaction itself sees the rows.
    """
    frame: Callable[[], Frame] | None = None
    """The same rows as a DataFrame whose tasks read them, where PostgreSQL does not keep them."""
    files: Callable[[], FileRows | None] | None = None
    """The same rows as files, if DuckDB understands the leaf's expressions as PostgreSQL does."""
    copied: bool = False
    """Whether the SELECT costs a copy: the rows are not PostgreSQL's own."""


def leaf_schema(leaf: Leaf, only: Sequence[int] | None = None, *, weight: bool) -> pa.Schema:
    """The schema of a leaf's read."""
    chosen = range(len(leaf.computed)) if only is None else only
    fields = [(leaf.column(i), arrow_type(leaf.computed[i].form)) for i in chosen]
    if not fields and not weight:
        fields = [("nothing", pa.bool_())]
    return pa.schema([*fields, (weight_name(leaf.id), pa.int64())] if weight else fields)


def weight_name(leaf: int) -> str:
    """The name of a leaf's weight column."""
    return f"w{leaf}"


def arrow_type(form: Form) -> pa.DataType:
    """The Arrow type of a form."""
    match form.kind:
        case "long":
            return pa.int64()
        case "bool":
            return pa.bool_()
        case "text" | "value":
            return pa.string()
        case "decimal":
            return pa.decimal128(DECIMAL_DIGITS, form.scale)
        case "double":
            return pa.float64()
