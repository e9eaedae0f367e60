"""A branch as one SELECT of DuckDB, over files: what `runnel.delta.as_sql` is for PostgreSQL.

It is used inside of tasks, each of which sees a share of one table, so equal rows are added up as far as a task sees
them. Values are grouped as what they are and printed afterwards: a date is four bytes, its text ten.

    SELECT 0::BIGINT AS b, CAST(k0 AS VARCHAR) AS v0_0, w, coalesce(s0, 0) AS s0
    FROM (SELECT l0_0 AS k0, count(*) AS w, sum(l0_1) AS s0 FROM (..) AS t GROUP BY ALL) AS g
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from runnel.delta.added_up import PartialSum
from runnel.delta.as_sql import Selected, tree_sql
from runnel.delta.parts import DeltaTree, Part
from runnel.model.types import DECIMAL_DIGITS, Form
from runnel.plan.stage import Branch, Inner, LeafNode, carried_name
from runnel.ports.rows import FileColumn, FileRows, arrow_type

_ROWS_DIGITS = 11
"""So many digits has the number of rows that are added up, at most."""
_WEIGHT_DIGITS = 2
"""A change of a file has the weight 1 or -1, and so have rows that were joined."""
_INTEGERS = frozenset({"smallint", "int", "bigint"})


@dataclass(frozen=True, slots=True)
class Said:
    """A value of the result, and its type on the way."""

    sql: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf at a version."""

    rows: Selected
    columns: tuple[FileColumn, ...]


class Unsaid(Exception):
    """DuckDB cannot be asked for it."""


def branch_sql(
    branch: Branch, number: int, part: Part, leaves: Mapping[int, Leaf], sums: Sequence[PartialSum] | None
) -> tuple[str, pa.Schema]:
    """The load rows of a part, and their schema; with `sums` equal rows are added up.

    Raises `Unsaid` where only others can compute them.
    """
    if not _is_plain(part.tree) or (sums is None and branch.sums):
        raise Unsaid
    rows = tree_sql(branch, part.tree, {leaf: each.rows for leaf, each in leaves.items()})
    weight = rows.weight if part.sign == 1 else f"-({rows.weight})"
    known = {name: c for each in leaves.values() for name, c in zip(each.rows.columns, each.columns, strict=True)}
    names = [branch.leaves[leaf].column(index) for leaf, index in branch.carried]
    forms = [branch.leaves[leaf].computed[index].form for leaf, index in branch.carried]
    carried = [_printed(f"k{i}", known[name], form) for i, (name, form) in enumerate(zip(names, forms, strict=True))]
    totals = [_total(f"s{k}", known[each.value], each) for k, each in enumerate(sums or ())]
    inner = [f"{name} AS k{i}" for i, name in enumerate(names)]
    if sums is None:
        grouped = f"SELECT {', '.join([*inner, f'{weight} AS w'])} FROM ({rows.text}) AS t"
    else:
        added = [f"{_sum(known[each.value], each, weight)} AS s{k}" for k, each in enumerate(sums)]
        # Without columns to group by there would be a row even over nothing.
        ending = "GROUP BY ALL" if inner else "HAVING count(*) > 0"
        items = ", ".join([*inner, f"{_count(weight)} AS w", *added])
        grouped = f"SELECT {items} FROM ({rows.text}) AS t {ending}"
    results = [
        ("b", Said(str(number), pa.int64())),
        *((carried_name(number, i), each) for i, each in enumerate(carried)),
        ("w", Said("w::BIGINT", pa.int64())),
        *((f"s{k}", each) for k, each in enumerate(totals)),
    ]
    text = f"SELECT {', '.join(f'{each.sql} AS {name}' for name, each in results)} FROM ({grouped}) AS g"
    return text, pa.schema([(name, each.type) for name, each in results])


def _is_plain(tree: DeltaTree) -> bool:
    match tree:
        case LeafNode():
            return True
        case Inner(children=children):
            return all(map(_is_plain, children))
        case _:
            return False


def leaf(columns: Sequence[str], rows: FileRows, table: str) -> Leaf:
    """A leaf that reads a table, whose computed columns get these names.

    >>> leaf(["l0_0"], FileRows((FileColumn("c1 + 1", "int"),), ("c0 > 5",), False, 9, tuple), "r0").rows.text
    'SELECT c1 + 1 AS l0_0 FROM r0 WHERE c0 > 5'
    """
    items = [f"{column.sql} AS {name}" for column, name in zip(rows.columns, columns, strict=True)]
    items += ["w"] if rows.weighted else []
    where = f" WHERE {' AND '.join(rows.filters)}" if rows.filters else ""
    text = f"SELECT {', '.join(items) or '1 AS nothing'} FROM {table}{where}"
    return Leaf(Selected(text, tuple(columns), rows.weighted), rows.columns)


def _printed(value: str, column: FileColumn, form: Form) -> Said:
    """A carried value in its form."""
    match form.kind:
        case "long" if column.type in _INTEGERS or (column.type == "decimal" and not column.scale):
            return Said(f"{value}::BIGINT", pa.int64())
        case "bool" if column.type == "boolean":
            return Said(value, pa.bool_())
        case "text" if column.type == "text":
            return Said(value, pa.string())
        case "value" if column.type == "date":
            return Said(f"{value}::VARCHAR", pa.string())
        case "decimal" if column.type == "decimal" and column.scale <= form.scale:
            if column.digits - column.scale + form.scale <= DECIMAL_DIGITS:
                return Said(f"{value}::DECIMAL({DECIMAL_DIGITS}, {form.scale})", arrow_type(form))
    raise Unsaid


def _count(weight: str, where: str = "") -> str:
    """How many rows a group has."""
    condition = f" FILTER (WHERE {where})" if where else ""
    return f"count(*){condition}" if weight == "1" else f"sum({weight}){condition}"


def _sum(column: FileColumn, each: PartialSum, weight: str) -> str:
    """A partial sum of a group."""
    match each.kind:
        case "zero" | "nan":
            return "0"  # a decimal of DuckDB is never NaN
        case "count":
            return _count(weight, f"{each.value} IS NOT NULL")
        case "true":
            return _count(weight, each.value)
        case "sum":
            digits, value = column.digits, _exact(each.value, column)
        case "square":
            digits, value = 2 * column.digits, f"{_exact(each.value, column)} * {_exact(each.value, column)}"
    if column.type not in (*_INTEGERS, "decimal") or digits + _WEIGHT_DIGITS + _ROWS_DIGITS > DECIMAL_DIGITS:
        raise Unsaid
    if weight == "1":
        return f"sum({each.value if each.kind == 'sum' else value})"
    return f"sum(({weight})::DECIMAL({_WEIGHT_DIGITS}, 0) * {value})"


def _exact(value: str, column: FileColumn) -> str:
    return f"{value}::DECIMAL({column.digits}, {column.scale})"


def _total(value: str, column: FileColumn, each: PartialSum) -> Said:
    """A sum in its unit; over nothing but NULLs it is zero, which the count beside it tells from a sum of zeros."""
    scale = {"sum": column.scale, "square": 2 * column.scale}.get(each.kind, 0)
    total = f"coalesce({value}, 0)::DECIMAL({DECIMAL_DIGITS}, {scale})"
    if each.unit == "1":
        return Said(total, pa.decimal128(DECIMAL_DIGITS, scale))
    places = -int(Decimal(each.unit).normalize().as_tuple().exponent)
    if Decimal(each.unit) != Decimal(1).scaleb(-places) or places < scale:
        raise Unsaid
    # The same digits without a point.
    digits = f"replace({total}::VARCHAR, '.', '') || '{'0' * (places - scale)}'"
    return Said(f"({digits})::DECIMAL({DECIMAL_DIGITS}, 0)", pa.decimal128(DECIMAL_DIGITS, 0))
