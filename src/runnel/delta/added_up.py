"""Partial sums as PostgreSQL adds them up.

Spark's decimals have 38 digits, so for Spark a value that is added up is taken apart while it is read: chunks of
digits, a flag for NULL and one for NaN (`runnel.sql.aggregation`). PostgreSQL needs none of that. Where it adds up, the
value is computed once per row, and every partial sum follows from it:

    count(v)    sum(v) FILTER (WHERE v <> 'NaN')    count(*) FILTER (WHERE v = 'NaN')

A row with a weight counts as often as that says: `sum(w * v) FILTER (..)`. Of a sum in chunks the first one holds it
all, in its own unit, and the others are zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from runnel.delta.as_sql import PG_TYPES
from runnel.model.types import BOOL, VALUE
from runnel.plan.stage import Aggregate, Branch, Computed, GroupHead, Leaf

# What `runnel.sql.aggregation` counts first for every aggregate.
_COUNTED = re.compile(r"\(\((.*)\) IS DISTINCT FROM NULL\)::int4::int8", re.DOTALL)

Kind = Literal["count", "true", "sum", "square", "nan", "zero"]


@dataclass(frozen=True, slots=True)
class PartialSum:
    """One partial sum over the column of a value."""

    kind: Kind
    value: str
    unit: str = "1"
    """What one of the sum is worth."""
    nan: bool = False
    """Whether the value may be NaN."""

    def __call__(self, weight: str) -> str:
        """SQL of the sum over rows of a weight.

        >>> PartialSum("sum", "v", nan=True)("1"), PartialSum("count", "v")("x.w")
        ("sum(v) FILTER (WHERE v <> 'NaN')", 'sum(x.w) FILTER (WHERE v IS DISTINCT FROM NULL)')
        """
        value, number = self.value, f"{self.value}::numeric"
        each = "count(*)" if weight == "1" else f"sum({weight})"
        match self.kind:
            case "zero":
                return "0"
            case "count":
                return f"count({value})" if weight == "1" else f"{each} FILTER (WHERE {value} IS DISTINCT FROM NULL)"
            case "true":
                return f"{each} FILTER (WHERE {value})"
            case "nan":
                return f"{each} FILTER (WHERE {value} = 'NaN')"
            case "sum":
                added = value if weight == "1" else f"({weight}) * {number}"
            case "square":
                added = f"{number} * {number}" if weight == "1" else f"({weight}) * ({number} * {number})"
        finite = f" FILTER (WHERE {value} <> 'NaN')" if self.nan else ""
        total = f"sum({added}){finite}"
        # A whole number of units: digits behind the point would show in the result.
        return total if self.unit == "1" else f"trunc({total} * {format(1 / Decimal(self.unit), 'f')})"


def added_up(branch: Branch, head: GroupHead) -> tuple[Branch, tuple[PartialSum, ...]] | None:
    """The branch with the values that are added up, and its sums; None if some value cannot be told from them."""
    leaves = list(branch.leaves)
    sums: dict[int, PartialSum] = {}
    for aggregate in head.aggregates:
        if aggregate.partial is None:
            continue
        number, index = branch.sums[aggregate.partial]
        value = _value(leaves[number].computed[index], aggregate)
        if value is None:
            return None
        leaves[number], column = _with_column(leaves[number], value)
        for i, partial in enumerate(_partials(aggregate, column)):
            sums[aggregate.partial + i] = partial
    if len(sums) != len(branch.sums):
        return None
    # What Spark would have added up need not be computed.
    unused = set(branch.sums) - set(branch.carried)
    emptied = [
        replace(leaf, computed=tuple(_nothing(c) if (leaf.id, i) in unused else c for i, c in enumerate(leaf.computed)))
        for leaf in leaves
    ]
    return replace(branch, leaves=tuple(emptied)), tuple(sums[i] for i in range(len(sums)))


def _value(counted: Computed, aggregate: Aggregate) -> Computed | None:
    found = _COUNTED.fullmatch(counted.sql)
    if found is None:
        return None
    if aggregate.strategy == "count":
        # Of any type: some cannot be grouped, and some are long.
        return replace(counted, sql=f"({found[1]}) IS DISTINCT FROM NULL", form=BOOL)
    number = aggregate.strategy == "sum" and counted.type.family != "int"
    return replace(counted, sql=f"({found[1]})::numeric" if number else f"({found[1]})", form=VALUE)


def _with_column(leaf: Leaf, value: Computed) -> tuple[Leaf, str]:
    known = leaf.computed
    if value not in known:
        leaf = replace(leaf, computed=(*known, value))
    return leaf, leaf.column(leaf.computed.index(value))


def _partials(aggregate: Aggregate, value: str) -> Iterator[PartialSum]:
    """In the order in which Spark adds them up."""
    yield PartialSum("true" if aggregate.strategy == "count" else "count", value)
    if aggregate.strategy == "bools":
        yield PartialSum("true", value)
    if aggregate.strategy != "sum":
        return
    yield from _in_chunks("sum", value, aggregate.chunks, aggregate.nan)
    if aggregate.squares:
        yield from _in_chunks("square", value, aggregate.square_chunks, aggregate.nan)
    if aggregate.nan:
        yield PartialSum("nan", value)


def _in_chunks(kind: Kind, value: str, units: Sequence[str], nan: bool) -> Iterator[PartialSum]:
    yield PartialSum(kind, value, units[0], nan)
    yield from (PartialSum("zero", value) for _ in units[1:])


def _nothing(computed: Computed) -> Computed:
    return replace(computed, sql=f"NULL::{PG_TYPES[computed.form.kind]}")
