"""PostgreSQL types, and the forms in which their values travel to Spark and back.

Spark never interprets a value that PostgreSQL can interpret: it compares keys for equality, multiplies weights,
and adds numbers. So a value travels in one of few forms, and everything else is text in PostgreSQL's own
notation, which its input functions read back without loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal[
    "int",
    "numeric",
    "float",
    "text",
    "bpchar",
    "bool",
    "date",
    "timestamp",
    "timestamptz",
    "uuid",
    "enum",
    "other",
]
FormKind = Literal["long", "bool", "text", "decimal", "double", "value"]

# Spark's decimals end at 38 digits; ten are kept free so that a sum over ten billion rows cannot overflow.
DECIMAL_DIGITS = 38
SUM_HEADROOM = 10

_FAMILIES: dict[int, Family] = {
    20: "int", 21: "int", 23: "int",
    1700: "numeric",
    700: "float", 701: "float",
    25: "text", 1043: "text", 19: "text",
    1042: "bpchar",
    16: "bool",
    1082: "date", 1114: "timestamp", 1184: "timestamptz",
    2950: "uuid",
}  # fmt: skip

_PLAIN = frozenset({"int", "text", "bpchar", "bool", "date", "timestamp", "timestamptz", "uuid", "enum"})

# Types without an equality operator (or with one that is not equality), or without a hash function, and arrays of
# such: compared by their text.
TEXTUAL = frozenset({
    114, 199, 142, 143, 4072, 4073,  # json, xml, jsonpath
    600, 1017, 601, 1018, 602, 1019, 603, 1020, 604, 1027, 628, 629, 718, 719,  # point ... circle
    790, 791, 1560, 1561, 1562, 1563,  # money, bit, bit varying
    3614, 3643, 3615, 3645,  # tsvector, tsquery
    1790, 2201, 2970, 2949, 5038, 5039,  # refcursor, txid_snapshot, pg_snapshot
})  # fmt: skip

_INT_DIGITS = {21: 5, 23: 10, 20: 19}

_FIRST_USER_OID = 16384


@dataclass(frozen=True, slots=True)
class PgType:
    """A PostgreSQL type with its modifier, as `format_type` prints it."""

    oid: int
    typmod: int
    sql: str
    is_enum: bool = False

    @property
    def family(self) -> Family:
        """The group of types that share one form and one notion of equality."""
        return "enum" if self.is_enum else _FAMILIES.get(self.oid, "other")

    @property
    def is_builtin(self) -> bool:
        """Whether no ordinary role has a say in how its values are read: no domain, and nothing made of one."""
        return 0 < self.oid < _FIRST_USER_OID and "." not in self.sql

    @property
    def is_plain(self) -> bool:
        """Whether equal values also look the same: 1.0 and 1.00 do not, unless the type fixes the scale."""
        return self.family in _PLAIN or (self.family == "numeric" and self.bounds is not None)

    @property
    def is_short(self) -> bool:
        """Whether every value fits into a B-tree entry."""
        return self.family not in ("text", "bpchar", "other")

    @property
    def bounds(self) -> tuple[int, int] | None:
        """(precision, scale) when every value of the type is an exact decimal within them."""
        if self.oid in _INT_DIGITS:
            return _INT_DIGITS[self.oid], 0
        if self.oid == 1700 and self.typmod >= 4:
            precision = ((self.typmod - 4) >> 16) & 0xFFFF
            scale = (self.typmod - 4) & 0x7FF
            # A negative scale is stored in the same bits; such a type has no fraction to bound.
            return (precision, scale) if scale <= 1000 else None
        return None


@dataclass(frozen=True, slots=True)
class Form:
    """How one computed column travels: the Arrow/Spark side of a PostgreSQL expression."""

    kind: FormKind
    scale: int = 0


LONG = Form("long")
BOOL = Form("bool")
TEXT = Form("text")
DOUBLE = Form("double")
VALUE = Form("value")
"""The value itself, in PostgreSQL; outside of it its text."""


def decimal_form(scale: int) -> Form:
    """A decimal with all the digits Spark has."""
    return Form("decimal", scale)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation or of a query's result."""

    name: str
    type: PgType
    not_null: bool = False
    collation: str | None = None
