"""What is said in Spark SQL, said to DuckDB: for tasks that let it read files.

The modules beside this one say in Spark SQL what means the same to PostgreSQL. Of their words this one takes those that
mean the same to DuckDB, too: comparisons, logic, lists, choices, and sums, differences and products of exact numbers.
Both stop with an error where a result has too many digits. Division is not among them (by zero DuckDB gives NULL), nor
are floats, functions, or anything that turns a value into text.

    (`price` * CAST(2 AS DECIMAL(1, 0)))  ->  (c3 * CAST(2 AS DECIMAL(1, 0)))
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from runnel.sparksql.values import INT_DIGITS, Untranslatable

KNOWN = frozenset({*INT_DIGITS, "decimal", "text", "boolean", "date"})
"""The types of values that both have."""

_WORDS = (
    exp.And, exp.Or, exp.Not, exp.Paren, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.Is,
    exp.In, exp.Case, exp.If, exp.Coalesce, exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Literal, exp.Boolean, exp.Null,
    exp.Identifier, exp.DataType, exp.DataTypeParam,
)  # fmt: skip
_NUMBERS = frozenset({"SMALLINT", "INT", "BIGINT", "DECIMAL", "BOOLEAN"})
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def said(sql: str, names: Mapping[str, str]) -> str:
    """An expression of Spark SQL over columns, which DuckDB knows by other names.

    >>> said("((`a` <=> CAST(1 AS int)) AND (`b c` <> 'it\\\\'s'))", {"a": "c0", "b c": "c1"})
    "((c0 IS NOT DISTINCT FROM CAST(1 AS INT)) AND (c1 <> 'it''s'))"
    """
    try:
        tree = sqlglot.parse_one(sql, read="spark")
    except SqlglotError:
        raise Untranslatable from None
    # Under a root of its own, every part of the tree can be replaced.
    root = exp.Paren(this=tree)
    for node in list(root.find_all(exp.Expression)):
        _put(node, names)
    return str(root.this.sql(dialect="duckdb"))


def _put(node: exp.Expr, names: Mapping[str, str]) -> None:
    """A part of the tree as DuckDB says it, in its place."""
    if isinstance(node, exp.Column):
        if node.table or node.name not in names:
            raise Untranslatable
        node.replace(exp.column(names[node.name]))
    elif isinstance(node, exp.Cast):
        if not _is_known(node):
            raise Untranslatable
        # The parser takes it for one that gives NULL where it fails, as it did in older versions of Spark.
        node.replace(exp.Cast(this=node.this, to=node.to))
    elif not isinstance(node, _WORDS):
        raise Untranslatable


def _is_known(cast: exp.Cast) -> bool:
    kind = cast.to.this
    name = kind.value if isinstance(kind, exp.DataType.Type) else str(kind)
    if name == "DATE" and isinstance(cast.this, exp.Literal):
        return _DAY.fullmatch(str(cast.this.this)) is not None
    return name in _NUMBERS or isinstance(cast.this, exp.Null)
