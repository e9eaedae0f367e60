"""PostgreSQL's expressions of a leaf as Spark SQL, for large reads of tables that Spark reads itself.

Everywhere else PostgreSQL evaluates expressions itself. Millions of rows from another place would have to be copied
there first, so what can be said in Spark with exactly the same outcome is said in Spark. Only what the modules beside
this one list is translated, each rule tested against PostgreSQL. One expression beyond them, and PostgreSQL computes
the leaf after all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from runnel.model.types import Column
from runnel.plan.expr import may_raise, pg
from runnel.plan.stage import Computed, Leaf
from runnel.spark import floats
from runnel.sparksql import casts, conditions, moments, numbers, texts
from runnel.sparksql.values import (
    DIGITS,
    INT_DIGITS,
    TIMES,
    Around,
    Function,
    Rule,
    Untranslatable,
    Value,
    Walk,
    decimal,
    in_form,
    integer,
    quoted,
    typed,
)
from runnel.sql.grammar import Faithful

__all__ = ["Around", "Translation", "Untranslated", "is_moment", "translate"]

_PLAIN = {
    "smallint": "smallint", "integer": "int", "bigint": "bigint", "boolean": "boolean", "date": "date", "uuid": "uuid",
    "text": "text", "json": "json", "real": "float", "double precision": "double", "bytea": "bytea",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Translation:
    """A leaf in Spark SQL over the table's columns, named as PostgreSQL knows them."""

    columns: tuple[str, ...]
    filters: tuple[str, ...]
    clock_filters: tuple[str, ...] = ()
    clock_negations: tuple[str, ...] = ()

    def at(self, now: str) -> tuple[str, ...]:
        """All conditions at a moment."""
        return (*self.filters, *(moments.at_clock(f, now) for f in self.clock_filters))

    def leaves(self, now: str) -> str:
        """The condition that a row is not in the leaf at a moment."""
        return " OR ".join(f"({moments.at_clock(f, now)})" for f in self.clock_negations)


def is_moment(text: str | None) -> bool:
    """Whether a time of the clock can be said."""
    try:
        return text is None or bool(moments.instant(text).sql)
    except (Untranslatable, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class Untranslated:
    """A leaf that PostgreSQL computes."""

    reason: str
    """The expression that is not known here, as PostgreSQL writes it."""


def translate(leaf: Leaf, columns: Sequence[Column], around: Around) -> Translation | Untranslated:
    """The leaf's filters and computed columns, or the first expression that cannot be translated."""
    if leaf.functions:
        return Untranslated(leaf.functions[0].sql)
    walk = _Walk({c.name: c for c in columns}, around)
    try:
        return Translation(
            columns=tuple(f"{walk.computed(c)} AS {leaf.column(i)}" for i, c in enumerate(leaf.computed)),
            # PostgreSQL evaluates what is cheap first; what may fail comes last here.
            filters=tuple(walk.condition(tree) for tree in sorted(map(_parsed, leaf.filters), key=may_raise)),
            clock_filters=tuple(walk.condition(_parsed(_with_clock(f))) for f in leaf.clock_filters),
            clock_negations=tuple(walk.condition(_parsed(_with_clock(f))) for f in leaf.clock_negations),
        )
    except Untranslatable as error:
        return Untranslated(error.what or "")


def values(leaf: Leaf, columns: Sequence[Column], around: Around) -> tuple[list[Value], list[str]] | Untranslated:
    """The leaf's computed columns as they are, before they travel, and its filters; without the clock."""
    if leaf.functions or leaf.clock_filters:
        return Untranslated(leaf.functions[0].sql if leaf.functions else leaf.clock_filters[0])
    walk = _Walk({c.name: c for c in columns}, around)
    try:
        computed = [walk.value(_parsed(each.sql)) for each in leaf.computed]
        return computed, [walk.condition(_parsed(text)) for text in leaf.filters]
    except Untranslatable as error:
        return Untranslated(error.what or "")


def _with_clock(text: str) -> str:
    return text.replace(":clock", f"'{moments.CLOCK}'::timestamptz")


def _parsed(text: str) -> exp.Expr:
    try:
        return sqlglot.parse_one(text, read=Faithful)
    except SqlglotError:
        error = Untranslatable()
        error.what = text
        raise error from None


class _Walk:
    def __init__(self, columns: Mapping[str, Column], around: Around) -> None:
        self._columns = columns
        self.around = around

    def condition(self, tree: exp.Expr) -> str:
        return typed(self.value(tree), "boolean").sql

    def computed(self, computed: Computed) -> str:
        tree = _parsed(computed.sql)
        printed = self._printed_float(tree)
        if printed is not None:
            return printed
        value = self.value(tree)
        try:
            return in_form(value, computed.form)
        except Untranslatable as error:
            error.what = computed.sql
            raise

    def _printed_float(self, tree: exp.Expr) -> str | None:
        """A float's text. A function in Python is computed for every row, so it stands alone and under no condition."""
        inner = tree.unnest()
        if not isinstance(inner, exp.Cast) or inner.args["to"].sql(dialect="postgres").upper() != "TEXT":
            return None
        value = self.value(inner.this)
        return f"{floats.FUNCTION}({value.sql})" if value.type == "double" else None

    def value(self, node: exp.Expr) -> Value:
        """What a part of the tree is in Spark; who cannot say is remembered."""
        rule = _RULES.get(type(node))
        try:
            if rule is None:
                raise Untranslatable
            return rule(self, node)
        except Untranslatable as error:
            if error.what is None:
                error.what = pg(node)
            raise

    def column(self, name: str) -> Value:
        column = self._columns.get(name)
        if column is None or column.collation is not None:
            raise Untranslatable
        sql = f"`{column.name.replace('`', '``')}`"
        least, greatest = self.around.ranges.get(name, (None, None))
        type_ = _PLAIN.get(column.type.sql)
        if type_ in INT_DIGITS:
            return Value(sql, type_, _digits(least, greatest, 0) or 0)
        if type_ is not None:
            return Value(sql, type_, usual=type_ in TIMES and isinstance(least, date) and isinstance(greatest, date))
        bounds = column.type.bounds
        if bounds is None or bounds[0] > DIGITS or bounds[1] > bounds[0]:
            raise Untranslatable
        digits = _digits(least, greatest, bounds[1])
        if digits is None or digits >= bounds[0]:
            return Value(sql, "decimal", *bounds)
        # What statistics know of the values leaves room for products.
        return Value(f"CAST({sql} AS DECIMAL({digits}, {bounds[1]}))", "decimal", digits, bounds[1])


def _digits(least: object, greatest: object, scale: int) -> int | None:
    """So many digits have the values of a column, as far as statistics tell."""
    ends = [Decimal(v) for v in (least, greatest) if isinstance(v, (int, Decimal)) and not isinstance(v, bool)]
    if len(ends) < 2:
        return None
    return max(1, scale, *(max(0, v.adjusted() + 1) + scale for v in ends if v))


# --- what stands at the ends of a tree


def _column(walk: Walk, node: exp.Expr) -> Value:
    return walk.column(node.name)


def _literal(walk: Walk, node: exp.Expr) -> Value:  # noqa: ARG001
    text = str(node.this)
    if node.args.get("is_string"):
        return Value(quoted(text), "unknown", literal=text)
    if re.fullmatch(r"\d{39,}", text):
        # Longer than any number here: only division knows what to do with it.
        return Value("raise_error('a number of more than 38 digits')", "endless", literal=Decimal(text))
    if re.fullmatch(r"\d{1,38}", text):
        number = int(text)
        if number >= 2**63:
            return decimal(Decimal(text))
        return integer(number, "int" if number < 2**31 else "bigint")
    if re.fullmatch(r"\d{1,38}\.\d{1,37}", text):
        return decimal(Decimal(text))
    raise Untranslatable


def _boolean(walk: Walk, node: exp.Expr) -> Value:  # noqa: ARG001
    return Value("true" if node.this else "false", "boolean", literal=bool(node.this))


def _null(walk: Walk, node: exp.Expr) -> Value:  # noqa: ARG001
    return Value("NULL", "null")


def _paren(walk: Walk, node: exp.Expr) -> Value:
    return walk.value(node.this)


def _arithmetic(walk: Walk, node: exp.Expr) -> Value:
    left, right, sign = walk.value(node.this), walk.value(node.expression), _SIGNS[type(node)]
    if sign in "+-" and {left.type, right.type} & set(TIMES):
        return moments.calculated(walk.around, left, right, sign)
    return numbers.calculated(left, right, sign)


def _call(walk: Walk, node: exp.Expr) -> Value:
    function = _FUNCTIONS.get(str(node.this).strip('"').lower())
    if function is None:
        raise Untranslatable
    return function(walk, [walk.value(n) for n in node.expressions])


_SIGNS: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Mod: "%", exp.Div: "/"}
_RULES: dict[type[exp.Expr], Rule] = {
    exp.Column: _column, exp.Literal: _literal, exp.Boolean: _boolean, exp.Null: _null, exp.Paren: _paren,
    exp.Anonymous: _call, **dict.fromkeys(_SIGNS, _arithmetic),
    **conditions.RULES, **numbers.RULES, **texts.RULES, **moments.RULES, **casts.RULES,
}  # fmt: skip
_FUNCTIONS: dict[str, Function] = {
    **numbers.FUNCTIONS, **texts.FUNCTIONS, **moments.FUNCTIONS, **conditions.FUNCTIONS
}  # fmt: skip
