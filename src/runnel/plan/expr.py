"""Helpers over scalar expressions (sqlglot trees whose columns are `l<leaf>.<column>`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

# A strict expression is NULL as soon as one of its columns is NULL, so evaluating it before an outer join pads
# the row gives the same as evaluating it after. Only what is certainly strict is listed.
_STRICT: tuple[type[exp.Expr], ...] = (
    exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Paren, exp.Cast, exp.DataType, exp.DataTypeParam,
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE,
    exp.Like, exp.ILike, exp.RegexpLike, exp.RegexpILike, exp.Lower, exp.Upper, exp.Length, exp.Abs, exp.Not,
    exp.Substring, exp.Trim, exp.TimestampTrunc, exp.Extract, exp.AtTimeZone, exp.DPipe, exp.Interval, exp.Var,
)  # fmt: skip

# DPipe is strict for text (`||`); for arrays it is not, which only matters for values under outer joins.


def pg(expression: exp.Expr) -> str:
    """Print for PostgreSQL, with functions as they were written: `"left"(x, 1)` is not `"LEFT"(x, 1)`."""
    return expression.sql(dialect="postgres", normalize_functions=False)


def leaves_of(expression: exp.Expr) -> frozenset[int]:
    """The leaves an expression reads.

    >>> from sqlglot import parse_one
    >>> sorted(leaves_of(parse_one("l0.a + l2.b")))
    [0, 2]
    """
    return frozenset(int(c.table[1:]) for c in expression.find_all(exp.Column) if is_leaf_column(c))


def is_leaf_column(column: exp.Column) -> bool:
    """Whether a column is already resolved to a leaf."""
    return column.table.startswith("l") and column.table[1:].isdigit()


def is_strict(expression: exp.Expr) -> bool:
    """Whether NULL in any column certainly makes the whole expression NULL."""
    return all(isinstance(node, _STRICT) or _is_harmless(node) for node in expression.walk())


_MAY_RAISE: tuple[type[exp.Expr], ...] = (exp.Div, exp.Mod, exp.IntDiv)
# Built-in functions that are strict and never raise, whatever their arguments.
_HARMLESS = frozenset(
    {
        "btrim", "ceil", "ceiling", "char_length", "date_part", "floor", "initcap", "left", "ltrim", "md5", "replace",
        "reverse", "right", "round", "rtrim", "sign", "starts_with", "strpos", "to_char", "trunc",
    }
)  # fmt: skip
_SAFE_CASTS = (
    "text",
    "varchar",
    "char",
    "bigint",
    "decimal",
    "double",
    "timestamptz",
    "timestamp",
    "interval",
    "oid",
)


def may_raise(expression: exp.Expr) -> bool:
    """Whether evaluating it on a row that the query's joins would drop could raise an error.

    >>> from sqlglot import parse_one
    >>> may_raise(parse_one("a / b")), may_raise(parse_one("a + b"))
    (True, False)
    """
    return any(isinstance(node, _MAY_RAISE) or _is_risky(node) for node in expression.walk())


def _is_harmless(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.this).lower() in _HARMLESS


def _is_risky(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return not _is_harmless(node)
    if not isinstance(node, exp.Cast) or isinstance(node.this.unnest(), exp.Literal):
        return False
    target = node.to.this
    # sqlglot keeps the names of oid and its aliases as plain text.
    name = target if isinstance(target, str) else target.name
    return bool(node.to.expressions) or name.lower() not in _SAFE_CASTS


def conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    """The parts of a conjunction; what all arms of an OR have in common is a part, too.

    >>> from sqlglot import parse_one
    >>> [c.sql() for c in conjuncts(parse_one("(a = 1 AND (b = 2)) AND c"))]
    ['a = 1', 'b = 2', 'c']
    >>> [c.sql() for c in conjuncts(parse_one("(a = b AND c) OR (d AND a = b)"))]
    ['a = b', '(c OR d)']
    """
    if condition is None:
        return
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        yield from conjuncts(condition.this)
        yield from conjuncts(condition.expression)
    elif isinstance(condition, exp.Or):
        yield from _factored(condition)
    elif isinstance(condition, exp.Not) and isinstance(condition.this.unnest(), exp.NullSafeNEQ):
        # PostgreSQL prints IS NOT DISTINCT FROM as the negation of IS DISTINCT FROM.
        negated = condition.this.unnest()
        yield exp.NullSafeEQ(this=negated.this.copy(), expression=negated.expression.copy())
    elif not (isinstance(condition, exp.Boolean) and condition.this):
        yield condition


def _factored(condition: exp.Or) -> Iterator[exp.Expr]:
    """(a AND b) OR (a AND c)  =  a AND (b OR c), also for NULL."""
    arms = [list(conjuncts(arm)) for arm in _disjuncts(condition)]
    common = [part for part in arms[0] if all(part in arm for arm in arms[1:])]
    if not common:
        yield condition
        return
    yield from common
    rests = [[part for part in arm if part not in common] for arm in arms]
    if all(rests):
        yield exp.paren(exp.or_(*(exp.and_(*rest) for rest in rests)))


def _disjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    condition = condition.unnest()
    if isinstance(condition, exp.Or):
        yield from _disjuncts(condition.this)
        yield from _disjuncts(condition.expression)
    else:
        yield condition


def rewrite(expression: exp.Expr, change: Callable[[exp.Expr], exp.Expr | None]) -> exp.Expr:
    """A copy in which `change` replaces the highest nodes it answers for (None: look further down)."""

    def walk(node: exp.Expr) -> exp.Expr:
        replaced = change(node)
        if replaced is not None:
            return replaced.copy()
        args: dict[str, object] = {}
        for key, value in node.args.items():
            if isinstance(value, exp.Expr):
                args[key] = walk(value)
            elif isinstance(value, list):
                args[key] = [walk(v) if isinstance(v, exp.Expr) else v for v in value]
            else:
                args[key] = value
        return type(node)(**args)

    return walk(expression)


def group(expression: exp.Expr) -> exp.Expr:
    """The expression in parentheses unless it cannot be misread without."""
    if isinstance(expression, (exp.Column, exp.Literal, exp.Paren, exp.Cast, exp.Func)):
        return expression
    return exp.paren(expression, copy=True)


CLOCK = (exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime)
CLOCK_FUNCTIONS = frozenset({"NOW", "TRANSACTION_TIMESTAMP", "LOCALTIMESTAMP", "LOCALTIME"})


def mentions_clock(expression: exp.Expr) -> bool:
    """Whether the value changes as time passes."""
    return any(_is_clock(node) for node in expression.walk())


def _is_clock(node: exp.Expr) -> bool:
    if isinstance(node, CLOCK) or type(node).__name__ in ("Localtimestamp", "Localtime"):
        return True
    return isinstance(node, exp.Anonymous) and str(node.this).upper() in CLOCK_FUNCTIONS


def substitute_clock(expression: exp.Expr) -> exp.Expr:
    """Replace every clock function by an expression over the placeholder `:clock` (a timestamptz)."""
    return rewrite(expression, _clock_replacement)


def _clock_replacement(node: exp.Expr) -> exp.Expr | None:
    if not _is_clock(node):
        return None
    placeholder = exp.Var(this=":clock")
    target = {
        "CurrentTimestamp": None,
        "CurrentDate": "date",
        "CurrentTime": "timetz",
        "Localtimestamp": "timestamp",
        "Localtime": "time",
    }.get(type(node).__name__)
    if isinstance(node, exp.Anonymous):
        target = {"LOCALTIMESTAMP": "timestamp", "LOCALTIME": "time"}.get(str(node.this).upper())
    return exp.cast(placeholder, target, dialect="postgres") if target else placeholder


_OPPOSITE: dict[type[exp.Expr], type[exp.Binary]] = {
    exp.LT: exp.GTE,
    exp.LTE: exp.GT,
    exp.GT: exp.LTE,
    exp.GTE: exp.LT,
}


def negation(condition: exp.Expr) -> str:
    """PostgreSQL SQL that holds where the condition does not.

    >>> from sqlglot import parse_one
    >>> negation(parse_one("a >= b")), negation(parse_one("f(a)"))
    ('a < b', '(f(a)) IS NOT TRUE')
    """
    condition = condition.unnest()
    opposite = _OPPOSITE.get(type(condition))
    if opposite is not None and isinstance(condition, exp.Binary):
        return pg(opposite(this=condition.left.copy(), expression=condition.right.copy()))
    return f"({pg(condition)}) IS NOT TRUE"
