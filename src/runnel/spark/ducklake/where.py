"""What a condition in Spark's SQL says about single columns: enough to leave files alone, never too much."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from runnel.errors import UserError
from runnel.lake.format.model import LakeColumn
from runnel.lake.format.types import INTEGERS, TEXTS, decimal_bounds

_SWAPPED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.EQ: exp.EQ,
}  # fmt: skip


def columns_in(where: str, columns: Sequence[LakeColumn]) -> list[str]:
    """The columns that a condition mentions."""
    by_name = {column.name.lower(): column.name for column in columns}
    found = (by_name.get(each.name.lower()) for each in _parse(where).find_all(exp.Column))
    return list(dict.fromkeys(name for name in found if name is not None))


def hints(where: str, columns: Sequence[LakeColumn]) -> tuple[dict[str, list[Any]], dict[str, tuple[Any, Any]]]:
    """Values and inclusive bounds outside of which no row can meet the condition."""
    by_name = {column.name.lower(): column for column in columns}
    keys: dict[str, list[Any]] = {}
    bounds: dict[str, tuple[Any, Any]] = {}
    condition = _parse(where)
    parts = condition.flatten() if isinstance(condition, exp.And) else [condition]
    for part in parts:
        for column, low, high, values in _facts(part.unnest(), by_name):
            if values is not None:
                keys.setdefault(column.name, values)
                continue
            least, greatest = bounds.get(column.name, (None, None))
            bounds[column.name] = (
                low if least is None else least if low is None else max(least, low),
                high if greatest is None else greatest if high is None else min(greatest, high),
            )
    return keys, bounds


_Fact = tuple[LakeColumn, Any, Any, list[Any] | None]


def _facts(part: exp.Expr, by_name: dict[str, LakeColumn]) -> list[_Fact]:
    if isinstance(part, exp.Between):
        column = _column(part.this, by_name)
        if column is not None:
            low, high = _value(part.args["low"], column), _value(part.args["high"], column)
            return [(column, low, high, None)]
    if isinstance(part, exp.In) and part.expressions and not part.args.get("query"):
        column = _column(part.this, by_name)
        if column is not None:
            values = [_value(each, column) for each in part.expressions]
            return [] if None in values else [(column, None, None, values)]
    if type(part) in _SWAPPED:
        kind, left, right = type(part), part.this, part.expression
        if not isinstance(left, exp.Column):
            kind, left, right = _SWAPPED[kind], right, left
        column = _column(left, by_name)
        value = None if column is None else _value(right, column)
        if column is not None and value is not None:
            if kind is exp.EQ:
                return [(column, None, None, [value])]
            return [(column, value, None, None) if kind in (exp.GT, exp.GTE) else (column, None, value, None)]
    return []


def _column(node: exp.Expr, by_name: dict[str, LakeColumn]) -> LakeColumn | None:
    if isinstance(node, exp.Column) and not node.table:
        return by_name.get(node.name.lower())
    return None


def _value(node: exp.Expr, column: LakeColumn) -> Any:
    """A literal as a value of the column's type, where Spark compares in that type; else None."""
    node = node.unnest()
    sign = 1
    if isinstance(node, exp.Neg):
        sign, node = -1, node.this
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.is_string:
        if node.to.this.name == "DATE" and column.type == "date":
            return _moment(dt.date.fromisoformat, node.this.name)
        if node.to.this.name in ("TIMESTAMPNTZ", "TIMESTAMP") and column.type == "timestamp":
            return _moment(dt.datetime.fromisoformat, node.this.name)
        return None
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        if column.type in TEXTS or column.type == "uuid":
            return node.name
        if column.type == "date":
            return _moment(dt.date.fromisoformat, node.name)
        return _moment(dt.datetime.fromisoformat, node.name) if column.type == "timestamp" else None
    if column.type in INTEGERS or decimal_bounds(column.type) is not None:
        try:
            return sign * Decimal(node.name)
        except ArithmeticError:
            return None
    return None


def _moment(parse: Any, text: str) -> Any:
    try:
        found = parse(text)
    except ValueError:
        return None
    return None if getattr(found, "tzinfo", None) is not None else found


def _parse(where: str) -> exp.Expr:
    try:
        return sqlglot.parse_one(where, dialect="spark")
    except SqlglotError as error:
        raise UserError(
            f"The condition {where!r} cannot be read.", hint=f"Write it as in Spark SQL's WHERE. {error}"
        ) from None
