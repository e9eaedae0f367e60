"""Conditions and choices: logic, comparisons, lists, CASE and its relatives."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from runnel.sparksql import moments
from runnel.sparksql.casts import constant
from runnel.sparksql.values import (
    DIGITS,
    FLOATS,
    INT_DIGITS,
    TIMES,
    Around,
    Function,
    Rule,
    Untranslatable,
    Value,
    Walk,
    as_decimal,
    chosen,
    typed,
    unified,
)

_SIGNS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>", exp.NullSafeNEQ: "<!>",
}  # fmt: skip
_OF_TYPE = {
    "text": "TEXT", "bpchar": "BPCHAR", "date": "DATE", "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMPTZ",
    "uuid": "UUID", "smallint": "SMALLINT", "int": "INT", "bigint": "BIGINT", "decimal": "DECIMAL",
    "double": "DOUBLE PRECISION", "boolean": "BOOLEAN",
}  # fmt: skip


# --- logic


def logic(walk: Walk, node: exp.Expr) -> Value:
    """AND, OR."""
    left, right = (typed(walk.value(n), "boolean") for n in (node.this, node.expression))
    word = "AND" if isinstance(node, exp.And) else "OR"
    return Value(f"({left.sql} {word} {right.sql})", "boolean")


def negation(walk: Walk, node: exp.Expr) -> Value:
    """NOT."""
    return Value(f"(NOT {typed(walk.value(node.this), 'boolean').sql})", "boolean")


def test(walk: Walk, node: exp.Expr) -> Value:
    """IS [NOT] NULL, IS [NOT] TRUE and FALSE."""
    tested, what = walk.value(node.this), node.expression
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


def finite(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """isfinite(date or timestamp)."""
    if len(arguments) != 1 or arguments[0].type not in TIMES:
        raise Untranslatable
    return Value(f"(NOT {moments.is_infinite(arguments[0])})", "boolean")


# --- comparisons


def comparison(walk: Walk, node: exp.Expr) -> Value:
    """`= <> < <= > >=`, IS [NOT] DISTINCT FROM, and lists."""
    if isinstance(node.expression, exp.Any) or _is_all(node.expression):
        return _listed(walk, node)
    return compared(walk.around, walk.value(node.this), walk.value(node.expression), _SIGNS[type(node)])


def compared(around: Around, left: Value, right: Value, sign: str) -> Value:
    """Two values of types that PostgreSQL compares."""
    left, right = comparable(around, left, right)
    types = {left.type, right.type}
    if "null" in types and sign not in ("<=>", "<!>"):
        raise Untranslatable
    if ("json" in types and "null" not in types) or types & {"unknown", "interval"}:
        raise Untranslatable
    if types & {"text", "bpchar"} and sign in ("<", "<=", ">", ">=") and not around.bytewise:
        # The order of text is the collation's.
        raise Untranslatable
    if "bpchar" in types and sign in ("<", "<=", ">", ">="):
        raise Untranslatable
    if sign == "<!>":
        return Value(f"(NOT ({left.sql} <=> {right.sql}))", "boolean")
    return Value(f"({left.sql} {sign} {right.sql})", "boolean")


def comparable(around: Around, left: Value, right: Value) -> tuple[Value, Value]:
    """Both sides in the type in which PostgreSQL compares them."""
    if right.literal == "NaN" and right.type == "unknown" and left.type in ("decimal", *INT_DIGITS):
        # Never equal; NULL stays NULL. A decimal of one more digit than any value has stands for it.
        return left, _beyond(left)
    if right.type == "unknown" and left.type in _OF_TYPE:
        right = constant(str(right.literal), _OF_TYPE[left.type])
    if left.type == "unknown" and right.type in _OF_TYPE:
        left = constant(str(left.literal), _OF_TYPE[right.type])
    if isinstance(right.literal, moments.Span) and left.type == "span":
        return left, moments.span_micros(right.literal)
    types = {left.type, right.type}
    if "null" in types or (len(types) == 1 and types != {"decimal"}):
        return left, right
    if types <= INT_DIGITS.keys() or types <= set(FLOATS):
        return left, right
    if types <= set(TIMES):
        return moments.alike(around, left, right)
    if types & set(FLOATS) and types <= {*FLOATS, *INT_DIGITS}:
        # PostgreSQL compares as float8.
        return tuple(Value(f"CAST({v.sql} AS DOUBLE)", "double") for v in (left, right))  # type: ignore[return-value]
    return as_decimal(left), as_decimal(right)


def _beyond(value: Value) -> Value:
    """A number that no value of this type is."""
    whole = value.digits - value.scale if value.type == "decimal" else INT_DIGITS[value.type]
    if whole >= DIGITS:
        raise Untranslatable
    return Value(f"CAST('1{'0' * whole}' AS DECIMAL({whole + 1}, 0))", "decimal", whole + 1, 0)


def _listed(walk: Walk, node: exp.Expr) -> Value:
    """`x = ANY (ARRAY[..])` and `x <> ALL (ARRAY[..])`."""
    tested = walk.value(node.this)
    inner = node.expression.expressions[0] if _is_all(node.expression) else node.expression.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    wanted = exp.NEQ if _is_all(node.expression) else exp.EQ
    if not isinstance(inner, exp.Array) or not inner.expressions or not isinstance(node, wanted):
        raise Untranslatable
    items = [walk.value(item) for item in inner.expressions]
    word, sign = ("NOT IN", "<>") if wanted is exp.NEQ else ("IN", "=")
    each = [compared(walk.around, tested, item, sign).sql for item in items]
    pairs = [comparable(walk.around, tested, item) for item in items]
    constant_items = all(item.literal is not None for _, item in pairs)
    if (
        not constant_items
        or tested.type in FLOATS
        or len({(one.sql, item.type, item.scale) for one, item in pairs}) > 1
    ):
        # Items of several types: each is compared in the type that it asks for. And 0 is -0, but not in a set.
        return Value(f"({(' AND ' if wanted is exp.NEQ else ' OR ').join(each)})", "boolean")
    return Value(f"({pairs[0][0].sql} {word} ({', '.join(item.sql for _, item in pairs)}))", "boolean")


def _is_all(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.this).upper() == "ALL" and len(node.expressions) == 1


# --- choices


def cases(walk: Walk, node: exp.Expr) -> Value:
    """CASE, with and without a value to compare."""
    subject = node.args.get("this")
    conditions = []
    for arm in node.args["ifs"]:
        tested = walk.value(arm.this)
        if subject is not None:
            tested = compared(walk.around, walk.value(subject), tested, "=")
        conditions.append(typed(tested, "boolean").sql)
    default = node.args.get("default")
    results = [walk.value(arm.args["true"]) for arm in node.args["ifs"]]
    results.append(Value("NULL", "null") if default is None else walk.value(default))

    def written(parts: Sequence[str]) -> str:
        arms = "".join(f" WHEN {c} THEN {part}" for c, part in zip(conditions, parts, strict=False))
        return f"(CASE{arms} ELSE {parts[-1]} END)"

    return chosen(unified(results), written)


def coalesce(walk: Walk, node: exp.Expr) -> Value:
    """COALESCE."""
    same = unified([walk.value(n) for n in (node.this, *node.expressions)])
    return chosen(same, lambda parts: f"coalesce({', '.join(parts)})")


def nullif(walk: Walk, node: exp.Expr) -> Value:
    """NULLIF."""
    left, right = walk.value(node.this), walk.value(node.expression)
    if right.literal == "NaN" and left.type in ("decimal", *INT_DIGITS):
        # A decimal of Spark is never NaN.
        return left
    same = compared(walk.around, left, right, "=")

    def written(parts: Sequence[str]) -> str:
        return f"(CASE WHEN {same.sql} THEN NULL ELSE {parts[0]} END)"

    return chosen([left], written)


def extreme(walk: Walk, node: exp.Expr) -> Value:
    """GREATEST and LEAST, which pass over NULLs. Of equal numerics only the value is known, not which is meant."""
    same = unified([walk.value(n) for n in (node.this, *node.expressions)])
    first = same[0]
    if first.type in ("text", "bpchar", "json", "trimmed", "bytea", *FLOATS):
        raise Untranslatable
    name = "greatest" if isinstance(node, exp.Greatest) else "least"
    sql = f"{name}({', '.join(v.sql for v in same)})" if len(same) > 1 else first.sql
    return Value(sql, first.type, first.digits, first.scale, settled=first.settled, usual=first.usual)


RULES: dict[type[exp.Expr], Rule] = {
    exp.And: logic, exp.Or: logic, exp.Not: negation, exp.Is: test, exp.Case: cases, exp.Coalesce: coalesce,
    exp.Nullif: nullif, exp.Greatest: extreme, exp.Least: extreme, **dict.fromkeys(_SIGNS, comparison),
}  # fmt: skip
FUNCTIONS: dict[str, Function] = {"isfinite": finite}
