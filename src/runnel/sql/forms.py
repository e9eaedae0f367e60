"""Which form a value travels in, by what Spark has to do with it.

- carried: Spark passes it through or groups by it; PostgreSQL reads it back (text, int8 or bool);
- key: two values are equal in PostgreSQL exactly when their forms are equal in Spark;
- ordered: the form also sorts as PostgreSQL sorts.
"""

from __future__ import annotations

from runnel.model.types import BOOL, DOUBLE, LONG, TEXT, Form, PgType, decimal_form

_INSTANT = (
    "CASE WHEN isfinite({e}) THEN (extract(epoch FROM {e}) * 1000000)::int8 "
    "WHEN {e} > '2000-01-01' THEN 9223372036854775807 WHEN {e} < '2000-01-01' THEN -9223372036854775808 END"
)
_TIME_RANK = {"date": 0, "timestamp": 1, "timestamptz": 2}
_NUMBER_RANK = {"int": 0, "numeric": 1, "float": 2}
_ONE_TEXT = {
    17: "bytea", 18: '"char"', 26: "oid", 27: "tid", 28: "xid", 29: "cid", 650: "cidr", 774: "macaddr8", 829: "macaddr",
    869: "inet", 1083: "time", 1266: "timetz", 1562: "varbit", 3220: "pg_lsn", 5069: "xid8",
}  # fmt: skip
"""Types whose values are equal exactly when their texts are: not interval (30 days = 1 month), not jsonb (1 = 1.0)."""


def carried(sql: str, type_: PgType) -> tuple[str, Form]:
    """How a value passes through Spark."""
    if type_.family == "int":
        return f"({sql})::int8", LONG
    if type_.family == "bool":
        return sql, BOOL
    return f"({sql})::text", TEXT


def key_pair(left: PgType, right: PgType) -> tuple[str, Form, str] | None:
    """For `left = right`: the SQL template, the form, and the array type of restricted reads.

    >>> int4, num = PgType(23, -1, "integer"), PgType(1700, -1, "numeric")
    >>> key_pair(int4, int4)[2], key_pair(int4, num)[2]
    ('int8', 'numeric')
    """
    a, b = left.family, right.family
    if a in _NUMBER_RANK and b in _NUMBER_RANK:
        common = max(a, b, key=_NUMBER_RANK.__getitem__)
        return {
            "int": ("({e})::int8", LONG, "int8"),
            "numeric": ("trim_scale(({e})::numeric)::text", TEXT, "numeric"),
            # Adding zero turns -0 into 0, which PostgreSQL holds equal.
            "float": ("(({e})::float8 + 0)::text", TEXT, "float8"),
        }[common]
    if a in _TIME_RANK and b in _TIME_RANK:
        target = max(a, b, key=_TIME_RANK.__getitem__)
        return f"(({{e}})::{target})::text", TEXT, target
    if a != b:
        return None
    if a in ("text", "bpchar"):
        return "({e})::text", TEXT, "text" if a == "text" else "bpchar"
    if a == "bool":
        return "{e}", BOOL, "bool"
    if a == "uuid" or (a == "enum" and left.oid == right.oid):
        return "({e})::text", TEXT, left.sql
    if left.oid == right.oid and left.oid in _ONE_TEXT:
        return "({e})::text", TEXT, _ONE_TEXT[left.oid]
    return None


def ordered_pair(left: PgType, right: PgType) -> tuple[str, Form] | None:
    """For `left < right` and kin: a template and a form that sort as PostgreSQL does."""
    a, b = left.family, right.family
    if a == b == "int":
        return "({e})::int8", LONG
    if a in _TIME_RANK and b in _TIME_RANK:
        target = max(a, b, key=_TIME_RANK.__getitem__)
        return _INSTANT.replace("{e}", f"(({{e}})::{'timestamp' if target == 'date' else target})"), LONG
    if a in _NUMBER_RANK and b in _NUMBER_RANK:
        if "float" in (a, b):
            return "({e})::float8", DOUBLE
        if left.bounds and right.bounds:
            scale = max(left.bounds[1], right.bounds[1])
            digits = max(left.bounds[0] - left.bounds[1], right.bounds[0] - right.bounds[1])
            if digits + scale < 38:
                # Decimals know no NaN, which PostgreSQL holds equal to itself and above every number.
                highest = f"1{'0' * digits}"
                value = f"CASE WHEN ({{e}})::numeric = 'NaN' THEN {highest} ELSE ({{e}})::numeric END"
                return value, decimal_form(scale)
    return None
