"""How many digits after the point an expression can have, by PostgreSQL's rules for numeric.

| form | digits |
|---|---|
| `a + b`, `a - b`, `a % b`, CASE, COALESCE, GREATEST, set operations | the most of its parts |
| `a * b` | the sum |
| sum, min, max, any_value, lag, first_value, NULLIF, abs | those of what they are given |
| round, trunc | what they say |
| EXTRACT | six: microseconds |
| a cast | the type's; without bounds those of the value |
| `a / b`, avg, variances, power, floats, text, functions of users | not known: they depend on the values |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation

from sqlglot import exp

Digits = int | None
"""None: any number."""

_INTEGERS = (exp.DataType.Type.SMALLINT, exp.DataType.Type.INT, exp.DataType.Type.BIGINT)
_SAME = (
    exp.Paren, exp.Neg, exp.Alias, exp.Sum, exp.Min, exp.Max, exp.Abs, exp.Window, exp.Filter, exp.Nullif, exp.Order,
    exp.Ordered,
)  # fmt: skip
_MOST = (exp.Add, exp.Sub, exp.Mod)
_SAME_CALLS = frozenset({"abs", "any_value", "first_value", "last_value", "nth_value", "trim_scale"})
_SHIFTED = frozenset({"lag", "lead"})
_ORDERED = frozenset({"percentile_disc", "mode"})
_WHOLE_CALLS = frozenset(
    {"ceil", "ceiling", "floor", "sign", "div", "factorial", "row_number", "rank", "dense_rank", "ntile"}
)
_MOST_CALLS = frozenset({"mod", "gcd", "lcm"})
_MICROSECONDS = 6
_EXTRACTED = frozenset(
    {
        "CENTURY", "DAY", "DECADE", "DOW", "DOY", "EPOCH", "HOUR", "ISODOW", "ISOYEAR", "MICROSECONDS", "MILLENNIUM",
        "MILLISECONDS", "MINUTE", "MONTH", "QUARTER", "SECOND", "TIMEZONE", "TIMEZONE_HOUR", "TIMEZONE_MINUTE", "WEEK",
        "YEAR",
    }
)  # fmt: skip


def expression_scale(node: exp.Expr | None, leaf: Callable[[exp.Expr], Digits]) -> Digits:
    """Digits of an expression; `leaf` knows those of columns and of scalar subqueries."""

    def of(inner: exp.Expr | None) -> Digits:
        return expression_scale(inner, leaf)

    match node:
        case exp.Column() | exp.Subquery():
            return leaf(node)
        case exp.Null() | exp.Count():
            return 0
        case exp.Literal():
            return _literal(str(node.this), quoted=bool(node.is_string))
        case exp.Mul():
            left, right = of(node.left), of(node.right)
            return None if left is None or right is None else left + right
        case exp.Cast():
            return _cast(node.to, of(node.this))
        case exp.Case():
            default = node.args.get("default")
            return most([*(of(i.args["true"]) for i in node.args["ifs"]), 0 if default is None else of(default)])
        case exp.Coalesce() | exp.Greatest() | exp.Least():
            return most([of(node.this), *(of(e) for e in node.expressions)])
        case exp.Extract():
            return _MICROSECONDS if node.name.upper() in _EXTRACTED else None
        case exp.WithinGroup():
            keys = node.expression.expressions
            return of(keys[0]) if node.this.name.lower() in _ORDERED and len(keys) == 1 else None
        case exp.Distinct():
            return of(node.expressions[0]) if len(node.expressions) == 1 else None
        case exp.Anonymous():
            return _call(node, of)
    if isinstance(node, _MOST):
        return most([of(node.left), of(node.right)])
    return of(node.this) if isinstance(node, _SAME) else None


def most(scales: Sequence[Digits]) -> Digits:
    """The most of all, if all are known.

    >>> most([2, 4]), most([2, None]), most([])
    (4, None, None)
    """
    known = [n for n in scales if n is not None]
    return max(known) if len(known) == len(scales) and known else None


def _call(node: exp.Anonymous, of: Callable[[exp.Expr | None], Digits]) -> Digits:
    # PostgreSQL prints its own functions without a schema, and only these.
    name, arguments = str(node.this).lower(), node.expressions
    if isinstance(node.parent, exp.Dot):
        return None
    if name in _WHOLE_CALLS:
        return 0
    if not arguments:
        return None
    if name in ("round", "trunc"):
        return 0 if len(arguments) == 1 else _said(arguments[1])
    if name in _SAME_CALLS:
        return of(arguments[0])
    if name in _SHIFTED:
        # The value, and what stands for one beyond the partition.
        return most([of(arguments[0]), *(of(a) for a in arguments[2:])])
    return most([of(a) for a in arguments]) if name in _MOST_CALLS else None


def _said(digits: exp.Expr) -> Digits:
    """The second argument of round."""
    while isinstance(digits, exp.Paren):
        digits = digits.this
    if isinstance(digits, exp.Neg):
        return 0 if isinstance(digits.this, exp.Literal) else None
    return int(digits.name) if isinstance(digits, exp.Literal) and digits.name.isdigit() else None


def _literal(text: str, *, quoted: bool) -> Digits:
    """A number, or the text of one: PostgreSQL prints negative constants as `'-1.5'::numeric`."""
    try:
        exponent = Decimal(text).as_tuple().exponent
    except InvalidOperation:
        return None
    if not isinstance(exponent, int):
        return 0 if quoted else None  # NaN and Infinity have no digits
    return max(-exponent, 0)


def _cast(to: exp.DataType, inner: Digits) -> Digits:
    if to.is_type(*_INTEGERS):
        return 0
    if not to.is_type(exp.DataType.Type.DECIMAL):
        return None
    sizes = [str(p.this) for p in to.expressions]
    if not sizes:
        return inner
    return int(sizes[1]) if len(sizes) > 1 and sizes[1].isdigit() else 0 if len(sizes) == 1 else None
