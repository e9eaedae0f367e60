"""PostgreSQL's expressions of a leaf as Spark SQL, for whole reads of tables that Spark reads itself.

Everywhere else PostgreSQL evaluates expressions itself. Millions of rows from another place would have to be copied
there first, so what can be said in Spark with exactly the same outcome is said in Spark. Only what is listed here is
translated, and each entry is tested against PostgreSQL. One expression beyond it, and PostgreSQL computes the leaf
after all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from runnel.model.types import Column
from runnel.plan.stage import Computed, Leaf
from runnel.sparksql.values import (
    DIGITS,
    INT_DIGITS,
    WIDTH,
    Untranslatable,
    Value,
    as_decimal,
    as_string,
    comparable,
    constant,
    decimal,
    in_form,
    integer,
    quoted,
    typed,
    unified,
    within,
)
from runnel.sql.grammar import Faithful

_UTC = frozenset({"utc", "etc/utc", "gmt", "etc/gmt", "zulu", "uct", "universal"})
_TRUNCATED = frozenset({"second", "minute", "hour", "day", "week", "month", "quarter", "year"})
_EXTRACTED = frozenset({"year", "quarter", "month", "day", "hour", "minute"})


@dataclass(frozen=True, slots=True)
class Translation:
    """A leaf in Spark SQL over the table's columns, named as PostgreSQL knows them."""

    columns: tuple[str, ...]
    filters: tuple[str, ...]


def translate(leaf: Leaf, columns: Sequence[Column], settings: Mapping[str, str]) -> Translation | None:
    """The leaf's filters and computed columns; None when one of them cannot be translated."""
    if leaf.clock_filters or leaf.functions:
        return None
    translator = _Translator({c.name: c for c in columns}, settings)
    try:
        return Translation(
            columns=tuple(f"{translator.computed(c)} AS {leaf.column(i)}" for i, c in enumerate(leaf.computed)),
            filters=tuple(translator.condition(f) for f in leaf.filters),
        )
    except (Untranslatable, SqlglotError):
        return None


class _Translator:
    def __init__(self, columns: Mapping[str, Column], settings: Mapping[str, str]) -> None:
        self._columns = columns
        self._iso = settings.get("DateStyle", "ISO").upper().startswith("ISO")
        self._utc = settings.get("TimeZone", "UTC").lower() in _UTC

    def condition(self, text: str) -> str:
        return typed(self._read(text), "boolean").sql

    def computed(self, computed: Computed) -> str:
        value = self._read(computed.sql)
        return in_form(value, computed.form)

    def _read(self, text: str) -> Value:
        return self.value(sqlglot.parse_one(text, read=Faithful))

    def value(self, node: exp.Expr) -> Value:
        rule = _RULES.get(type(node))
        if rule is None:
            raise Untranslatable
        return rule(self, node)

    # -- leaves of the tree ----------------------------------------------------------------------------------

    def column(self, node: exp.Expr) -> Value:
        column = self._columns.get(node.name)
        if column is None or column.collation is not None:
            raise Untranslatable
        name = f"`{column.name.replace('`', '``')}`"
        bounds = column.type.bounds
        match column.type.sql:
            case "smallint" | "bigint" | "boolean" | "date" | "uuid" | "text" | "json":
                return Value(name, column.type.sql)
            case "integer":
                return Value(name, "int")
            case "real":
                return Value(name, "float")
            case "double precision":
                return Value(name, "double")
            case "timestamp without time zone":
                return Value(name, "timestamp")
            case "timestamp with time zone":
                return Value(name, "timestamptz")
        if bounds is None or bounds[0] > DIGITS:
            raise Untranslatable
        return Value(name, "decimal", *bounds)

    def literal(self, node: exp.Expr) -> Value:
        text = str(node.this)
        if node.args.get("is_string"):
            return Value(quoted(text), "unknown", literal=text)
        if re.fullmatch(r"\d{1,18}", text):
            number = int(text)
            return integer(number, "int" if number < 2**31 else "bigint")
        if re.fullmatch(r"\d{1,18}\.\d{1,18}", text):
            return decimal(Decimal(text))
        raise Untranslatable

    def boolean(self, node: exp.Expr) -> Value:
        return Value("true" if node.this else "false", "boolean", literal=bool(node.this))

    def null(self, node: exp.Expr) -> Value:
        return Value("NULL", "null")

    # -- logic -----------------------------------------------------------------------------------------------

    def logic(self, node: exp.Expr) -> Value:
        left, right = (typed(self.value(n), "boolean") for n in (node.this, node.expression))
        word = "AND" if isinstance(node, exp.And) else "OR"
        return Value(f"({left.sql} {word} {right.sql})", "boolean")

    def negation(self, node: exp.Expr) -> Value:
        return Value(f"(NOT {typed(self.value(node.this), 'boolean').sql})", "boolean")

    def test(self, node: exp.Expr) -> Value:
        """IS [NOT] NULL, IS [NOT] TRUE and FALSE."""
        tested, what = self.value(node.this), node.expression
        negate = bool(node.args.get("negate"))
        if isinstance(what, exp.Not):
            what, negate = what.this, not negate
        if isinstance(what, exp.Null):
            sql = f"({tested.sql} IS NULL)"
        elif isinstance(what, exp.Boolean):
            sql = f"({typed(tested, 'boolean').sql} <=> {'true' if what.this else 'false'})"
        else:
            raise Untranslatable
        return Value(f"(NOT {sql})" if negate else sql, "boolean")

    def comparison(self, node: exp.Expr) -> Value:
        if isinstance(node.expression, exp.Any) or _is_all(node.expression):
            return self._listed(node)
        left, right = comparable(self.value(node.this), self.value(node.expression))
        sign = _SIGNS[type(node)]
        if "null" in (left.type, right.type) and sign not in ("<=>", "<!>"):
            raise Untranslatable
        if left.type in ("text", "uuid", "json") and sign in ("<", "<=", ">", ">="):
            # The order of text is the collation's; that of uuid is of bytes.
            raise Untranslatable
        if "json" in (left.type, right.type) and "null" not in (left.type, right.type):
            raise Untranslatable
        if sign == "<!>":
            return Value(f"(NOT ({left.sql} <=> {right.sql}))", "boolean")
        return Value(f"({left.sql} {sign} {right.sql})", "boolean")

    def _listed(self, node: exp.Expr) -> Value:
        """`x = ANY (ARRAY[..])` and `x <> ALL (ARRAY[..])` over constants."""
        tested = self.value(node.this)
        inner = node.expression.expressions[0] if _is_all(node.expression) else node.expression.this
        while isinstance(inner, exp.Paren):
            inner = inner.this
        wanted = exp.NEQ if _is_all(node.expression) else exp.EQ
        if not isinstance(inner, exp.Array) or not inner.expressions or not isinstance(node, wanted):
            raise Untranslatable
        pairs = [comparable(tested, self.value(item)) for item in inner.expressions]
        if any(item.literal is None or one.type in ("json", "null") for one, item in pairs):
            raise Untranslatable
        word = "NOT IN" if wanted is exp.NEQ else "IN"
        items = ", ".join(item.sql for _, item in pairs)
        if len({(one.sql, item.type, item.scale) for one, item in pairs}) > 1:
            # Items of several types: each is compared in the type that it asks for.
            each = [f"{one.sql} {'<>' if wanted is exp.NEQ else '='} {item.sql}" for one, item in pairs]
            return Value(f"({(' AND ' if wanted is exp.NEQ else ' OR ').join(each)})", "boolean")
        return Value(f"({pairs[0][0].sql} {word} ({items}))", "boolean")

    def like(self, node: exp.Expr) -> Value:
        tested, pattern = typed(self.value(node.this), "text"), self.value(node.expression)
        if not isinstance(pattern.literal, str) or "\\" in pattern.literal:
            raise Untranslatable
        return Value(f"({tested.sql} LIKE {quoted(pattern.literal)})", "boolean")

    # -- values ----------------------------------------------------------------------------------------------

    def paren(self, node: exp.Expr) -> Value:
        return self.value(node.this)

    def minus(self, node: exp.Expr) -> Value:
        value = self.value(node.this)
        if isinstance(value.literal, int) and not isinstance(value.literal, bool):
            return integer(-value.literal, value.type)
        if isinstance(value.literal, Decimal):
            return decimal(-value.literal)
        if value.type not in (*INT_DIGITS, "decimal"):
            raise Untranslatable
        return Value(f"(-{value.sql})", value.type, value.digits, value.scale)

    def arithmetic(self, node: exp.Expr) -> Value:
        left, right = self.value(node.this), self.value(node.expression)
        sign = _OPERATORS[type(node)]
        if left.type in INT_DIGITS and right.type in INT_DIGITS:
            wide = max(left.type, right.type, key=WIDTH.__getitem__)
            # A quotient of Spark is a bigint, and in Spark the smallest integer has no problem with -1.
            one, other = (f"CAST({v.sql} AS {wide})" for v in (left, right))
            if sign in ("div", "%") and (not isinstance(right.literal, int) or right.literal in (0, -1)):
                raise Untranslatable
            return Value(f"CAST(({one} {sign} {other}) AS {wide})", wide)
        if sign in ("div", "%"):
            raise Untranslatable
        left, right = as_decimal(left), as_decimal(right)
        if sign == "*":
            digits, scale = left.digits + right.digits + 1, left.scale + right.scale
        else:
            scale = max(left.scale, right.scale)
            digits = max(left.digits - left.scale, right.digits - right.scale) + scale + 1
        if digits > DIGITS:
            raise Untranslatable
        return Value(f"CAST(({left.sql} {sign} {right.sql}) AS DECIMAL({digits}, {scale}))", "decimal", digits, scale)

    def concatenation(self, node: exp.Expr) -> Value:
        left, right = (as_string(self.value(n)) for n in (node.this, node.expression))
        return Value(f"concat({left.sql}, {right.sql})", "text")

    def cases(self, node: exp.Expr) -> Value:
        if node.args.get("this") is not None:
            raise Untranslatable
        whens = [(typed(self.value(i.this), "boolean").sql, self.value(i.args["true"])) for i in node.args["ifs"]]
        default = node.args.get("default")
        results = [*(v for _, v in whens), *([] if default is None else [self.value(default)])]
        same = unified(results)
        arms = "".join(f" WHEN {c} THEN {v.sql}" for (c, _), v in zip(whens, same, strict=False))
        tail = "" if default is None else f" ELSE {same[-1].sql}"
        return Value(f"(CASE{arms}{tail} END)", same[0].type, same[0].digits, same[0].scale)

    def coalesce(self, node: exp.Expr) -> Value:
        same = unified([self.value(n) for n in (node.this, *node.expressions)])
        return Value(f"coalesce({', '.join(v.sql for v in same)})", same[0].type, same[0].digits, same[0].scale)

    def nullif(self, node: exp.Expr) -> Value:
        left, right = self.value(node.this), self.value(node.expression)
        if right.literal == "NaN" and left.type in ("decimal", *INT_DIGITS):
            # A decimal of Spark is never NaN.
            return left
        one, other = comparable(left, right)
        if one.type in ("json", "null") or other.type == "null":
            raise Untranslatable
        return Value(f"(CASE WHEN {one.sql} = {other.sql} THEN NULL ELSE {left.sql} END)",
                     left.type, left.digits, left.scale)  # fmt: skip

    def truncation(self, node: exp.Expr) -> Value:
        given = node.args["unit"]
        unit = given.name if isinstance(given, exp.Var) else self.value(given).literal
        value = self.value(node.this)
        if not isinstance(unit, str) or unit.lower() not in _TRUNCATED or node.args.get("zone") is not None:
            raise Untranslatable
        if value.type == "timestamp":
            return Value(f"CAST(date_trunc('{unit.upper()}', {value.sql}) AS TIMESTAMP_NTZ)", "timestamp")
        if value.type == "timestamptz" and self._utc:
            return Value(f"date_trunc('{unit.upper()}', {value.sql})", "timestamptz")
        raise Untranslatable

    def extraction(self, node: exp.Expr) -> Value:
        unit = node.name.lower() if isinstance(node.this, exp.Var) else ""
        value = self.value(node.expression)
        timed = value.type == "timestamp" or (value.type == "timestamptz" and self._utc)
        if unit not in _EXTRACTED or not (timed or (value.type == "date" and unit not in ("hour", "minute"))):
            raise Untranslatable
        return Value(f"CAST(extract({unit.upper()} FROM {value.sql}) AS DECIMAL(10, 0))", "decimal", 10, 0)

    def call(self, node: exp.Expr) -> Value:
        name, arguments = str(node.this).lower(), [self.value(n) for n in node.expressions]
        if name == "trim_scale" and len(arguments) == 1:
            value = as_decimal(arguments[0])
            # The form of a key: only its text is ever looked at.
            return Value(value.sql, "trimmed", value.digits, value.scale)
        raise Untranslatable

    def cast(self, node: exp.Expr) -> Value:
        target = node.args["to"].sql(dialect="postgres").upper()
        value = self.value(node.this)
        if value.type == "unknown":
            return constant(str(value.literal), target)
        if value.type == "null":
            spark = _SPARK_TYPES.get(target)
            if spark is None:
                raise Untranslatable
            return Value(f"CAST(NULL AS {spark[0]})", spark[1])
        match target:
            case "TEXT":
                return self._text(value)
            case "SMALLINT" | "INT" | "BIGINT":
                if value.type == "boolean" and target == "INT":
                    return Value(f"CAST({value.sql} AS INT)", "int")
                if value.type not in INT_DIGITS:
                    raise Untranslatable
                if isinstance(value.literal, int):
                    return integer(value.literal, target.lower())
                return Value(f"CAST({value.sql} AS {target})", target.lower())
            case "DECIMAL":
                return as_decimal(value)
            case "DOUBLE PRECISION":
                if isinstance(value.literal, Decimal):
                    return Value(f"CAST('{value.literal:f}' AS DOUBLE)", "double", literal=value.literal)
                if value.type not in ("float", "double", *INT_DIGITS):
                    raise Untranslatable
                return Value(f"CAST({value.sql} AS DOUBLE)", "double")
            case "DATE" if value.type in ("date", "timestamp"):
                return Value(f"CAST({value.sql} AS DATE)", "date")
            case "TIMESTAMP" if value.type in ("date", "timestamp"):
                return Value(f"CAST({value.sql} AS TIMESTAMP_NTZ)", "timestamp")
            case "TIMESTAMPTZ" if value.type == "timestamptz" or (value.type != "date" and self._utc):
                if value.type not in ("timestamp", "timestamptz"):
                    raise Untranslatable
                return Value(f"CAST({value.sql} AS TIMESTAMP)", "timestamptz")
            case "BOOLEAN" if value.type == "boolean":
                return value
            case "UUID" if value.type == "uuid":
                return value
        raise Untranslatable

    def _text(self, value: Value) -> Value:
        """A value in PostgreSQL's own notation."""
        sql = value.sql
        match value.type:
            case "text" | "uuid" | "json":
                return Value(sql, "text", literal=value.literal)
            case "smallint" | "int" | "bigint" | "decimal" | "boolean":
                return Value(f"CAST({sql} AS STRING)", "text")
            case "trimmed":
                plain = f"CAST({sql} AS STRING)"
                if not value.scale:
                    return Value(plain, "text")
                return Value(f"regexp_replace({plain}, '[.]?0+$', '')", "text")
            case "date" if self._iso:
                years = f"{sql} BETWEEN DATE '0001-01-01' AND DATE '9999-12-31'"
                return Value(within(years, f"CAST({sql} AS STRING)", sql), "text")
            case "timestamp" if self._iso:
                return Value(within(f"year({sql}) BETWEEN 1 AND 9999", f"CAST({sql} AS STRING)", sql), "text")
            case "timestamptz" if self._iso and self._utc:
                text = f"concat(CAST({sql} AS STRING), '+00')"
                return Value(within(f"year({sql}) BETWEEN 1 AND 9999", text, sql), "text")
        raise Untranslatable


_SIGNS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>", exp.NullSafeNEQ: "<!>",
}  # fmt: skip

_OPERATORS: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Mod: "%", exp.Div: "div"}

_SPARK_TYPES = {
    "TEXT": ("STRING", "text"), "INT": ("INT", "int"), "BIGINT": ("BIGINT", "bigint"),
    "BOOLEAN": ("BOOLEAN", "boolean"), "DATE": ("DATE", "date"), "TIMESTAMP": ("TIMESTAMP_NTZ", "timestamp"),
    "DOUBLE PRECISION": ("DOUBLE", "double"),
}  # fmt: skip

_RULES: dict[type[exp.Expr], Callable[[_Translator, exp.Expr], Value]] = {
    exp.Column: _Translator.column, exp.Literal: _Translator.literal, exp.Boolean: _Translator.boolean,
    exp.Null: _Translator.null, exp.Paren: _Translator.paren, exp.And: _Translator.logic, exp.Or: _Translator.logic,
    exp.Not: _Translator.negation, exp.Is: _Translator.test, exp.Like: _Translator.like, exp.Neg: _Translator.minus,
    exp.Add: _Translator.arithmetic, exp.Sub: _Translator.arithmetic, exp.Mul: _Translator.arithmetic,
    exp.Mod: _Translator.arithmetic, exp.Div: _Translator.arithmetic, exp.DPipe: _Translator.concatenation,
    exp.Case: _Translator.cases, exp.Coalesce: _Translator.coalesce, exp.Nullif: _Translator.nullif,
    exp.TimestampTrunc: _Translator.truncation, exp.Extract: _Translator.extraction, exp.Cast: _Translator.cast,
    exp.Anonymous: _Translator.call, **dict.fromkeys(_SIGNS, _Translator.comparison),
}  # fmt: skip


def _is_all(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.this).upper() == "ALL" and len(node.expressions) == 1
