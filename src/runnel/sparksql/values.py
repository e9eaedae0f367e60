"""Values of Spark SQL with PostgreSQL's types, and the ways to bring two of them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Protocol

from sqlglot import exp

from runnel.model.types import Form

DIGITS = 38
INT_DIGITS = {"smallint": 5, "int": 10, "bigint": 19}
WIDTH = {"smallint": 0, "int": 1, "bigint": 2}
FLOATS = ("float", "double")
TIMES = ("date", "timestamp", "timestamptz")

_UTC = frozenset({"utc", "etc/utc", "gmt", "etc/gmt", "zulu", "uct", "universal"})


class Untranslatable(Exception):
    """Only PostgreSQL knows."""

    what: str | None = None
    """The innermost expression that is not known here, as PostgreSQL writes it."""


@dataclass(frozen=True, slots=True)
class Value:
    """A Spark expression with its type: smallint, int, bigint, decimal, float, double, text, ..."""

    sql: str
    type: str
    digits: int = 0
    scale: int = 0
    literal: object = None
    """The value, if it is known."""
    settled: bool = True
    """Whether every value of a decimal shows all digits of its scale; if not, `text` may know better."""
    text: str | None = None
    """SQL of its text, where that does not follow from type and value."""
    usual: bool = False
    """Whether a date or timestamp is known to be within the years 1 to 9999."""


@dataclass(frozen=True, slots=True)
class Around:
    """What the meaning of expressions depends on besides the columns' types."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the session that made the query."""
    bytewise: bool = False
    """Whether the database sorts text by its bytes."""
    ranges: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    """The least and the greatest value of columns, as far as statistics tell."""

    @property
    def iso(self) -> bool:
        """Whether dates are written as Spark writes them."""
        return self.settings.get("DateStyle", "ISO").upper().startswith("ISO")

    @property
    def utc(self) -> bool:
        """Whether a day begins when it begins for Spark."""
        return self.settings.get("TimeZone", "UTC").lower() in _UTC


class Walk(Protocol):
    """The way through a tree, for the rules of one kind of expression."""

    around: Around

    def value(self, node: exp.Expr) -> Value:
        """What a part of the tree is in Spark."""

    def column(self, name: str) -> Value:
        """A column of the table."""


Rule = Callable[[Walk, exp.Expr], Value]
Function = Callable[[Walk, list[Value]], Value]


def typed(value: Value, type_: str) -> Value:
    """The value, which must have this type."""
    if value.type == "null":
        return Value(f"CAST(NULL AS {'STRING' if type_ == 'text' else type_})", type_)
    if value.type != type_:
        raise Untranslatable
    return value


def stringy(value: Value) -> Value:
    """The value, which must be text."""
    return Value(value.sql, "text", literal=value.literal) if value.type == "unknown" else typed(value, "text")


def integer(number: int, type_: str) -> Value:
    """An integer constant."""
    # A literal with a minus is an expression to Spark; the cast gives it the type that PostgreSQL sees.
    return Value(f"CAST({number} AS {type_})", type_, literal=number)


def decimal(number: Decimal) -> Value:
    """A numeric constant."""
    _, digits, exponent = number.as_tuple()
    scale = max(0, -int(exponent))
    precision = max(len(digits) + max(0, int(exponent)), scale + 1)
    if precision > DIGITS:
        raise Untranslatable
    return Value(f"CAST('{number:f}' AS DECIMAL({precision}, {scale}))", "decimal", precision, scale, literal=number)


def decimal_value(sql: str, digits: int, scale: int, *, settled: bool = True) -> Value:
    """An expression of so many digits, whatever Spark makes of it."""
    if digits > DIGITS:
        raise Untranslatable
    return Value(f"CAST({sql} AS DECIMAL({digits}, {scale}))", "decimal", digits, scale, settled=settled)


def as_decimal(value: Value) -> Value:
    """A number as a numeric."""
    if value.type in ("decimal", "trimmed"):
        return replace(value, type="decimal", settled=value.settled and value.type == "decimal")
    if value.type not in INT_DIGITS:
        raise Untranslatable
    if isinstance(value.literal, int):
        return decimal(Decimal(value.literal))
    digits = value.digits or INT_DIGITS[value.type]
    return Value(f"CAST({value.sql} AS DECIMAL({digits}, 0))", "decimal", digits, 0)


def decimal_text(value: Value) -> str | None:
    """SQL of a numeric's text, if it is known how many digits it shows."""
    if value.text is not None:
        return value.text
    return f"CAST({value.sql} AS STRING)" if value.settled else None


def unified(values: Sequence[Value]) -> list[Value]:
    """Results of one expression in one type; only those that need no thought."""
    known = [v for v in values if v.type != "null"]
    if not known:
        raise Untranslatable
    types = {v.type for v in known}
    if types <= {"text", "unknown"}:
        return [_null("text") if v.type == "null" else stringy(v) for v in values]
    if types <= {"decimal", *INT_DIGITS} and "decimal" in types:
        return _same_scale(values)
    if types <= INT_DIGITS.keys():
        wide = max(types, key=WIDTH.__getitem__)
        digits = max(v.digits or INT_DIGITS[v.type] for v in known)
        return [Value(f"CAST({v.sql} AS {wide})", wide, digits) for v in values]
    if len(types) > 1 or types & {"unknown", "trimmed", "span"}:
        raise Untranslatable
    usual = all(v.usual for v in known)
    return [replace(v, literal=None, type=known[0].type, usual=usual) for v in values]


def _null(type_: str) -> Value:
    return Value("NULL", type_)


def _same_scale(values: Sequence[Value]) -> list[Value]:
    """Numerics in one type. PostgreSQL keeps each number's own scale, which its text shows."""
    same = [v if v.type == "null" else as_decimal(v) for v in values]
    numbers = [v for v in same if v.type != "null"]
    scale = max(v.scale for v in numbers)
    digits = max(v.digits - v.scale for v in numbers) + scale
    alike = all(v.scale == scale and v.settled for v in numbers)
    if digits > DIGITS:
        raise Untranslatable
    found = []
    for v in same:
        if v.type == "null":
            found.append(Value("NULL", "decimal", digits, scale, settled=alike, text=None if alike else "NULL"))
            continue
        text = None if alike else decimal_text(v)
        found.append(
            Value(f"CAST({v.sql} AS DECIMAL({digits}, {scale}))", "decimal", digits, scale, settled=alike, text=text)
        )
    return found


def chosen(values: Sequence[Value], choose: Callable[[list[str]], str]) -> Value:
    """One of several unified values, whichever it is."""
    first = values[0]
    texts = [v.text for v in values]
    known = [text for text in texts if text is not None]
    text = choose(known) if known and len(known) == len(texts) else None
    sql = choose([v.sql for v in values])
    return Value(sql, first.type, first.digits, first.scale, settled=first.settled, text=text, usual=first.usual)


def in_form(value: Value, form: Form) -> str:
    """The value as it travels."""
    match form.kind:
        case "long" if value.type in INT_DIGITS:
            return f"CAST({value.sql} AS BIGINT)"
        case "long" if value.type == "decimal" and value.scale == 0:
            return f"CAST({value.sql} AS BIGINT)"
        case "bool" if value.type == "boolean":
            return value.sql
        case "text" if value.type == "text":
            return value.sql
        case "decimal" if value.type in ("decimal", *INT_DIGITS):
            exact = as_decimal(value)
            if exact.scale > form.scale or exact.digits - exact.scale + form.scale > DIGITS:
                raise Untranslatable
            return f"CAST({exact.sql} AS DECIMAL({DIGITS}, {form.scale}))"
        case "double" if value.type in (*FLOATS, *INT_DIGITS):
            return f"CAST({value.sql} AS DOUBLE)"
    raise Untranslatable


def quoted(text: str) -> str:
    r"""A string literal of Spark SQL.

    >>> quoted("it's \\ a")
    "'it\\'s \\\\ a'"
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
