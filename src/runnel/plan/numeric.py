"""How many digits an arithmetic expression can have.

PostgreSQL's numeric expressions carry no modifier, yet `price * (1 - discount)` over numeric(15,2) columns can never
have more than 32 digits, 4 of them after the point. Knowing that lets Spark add such values as exact decimals;
where no bound is known the values are carried, and PostgreSQL adds them.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

Bounds = tuple[int, int]


def bounds_of(expression: exp.Expr, column: Callable[[exp.Column], Bounds | None]) -> Bounds | None:
    """(precision, scale) that every value of the expression fits in, or None.

    >>> from sqlglot import parse_one
    >>> bounds_of(parse_one("a * (1 - b)"), lambda c: (15, 2))
    (31, 4)
    """

    def walk(node: exp.Expr | None) -> Bounds | None:
        match node:
            case exp.Paren() | exp.Neg():
                return walk(node.this)
            case exp.Column():
                return column(node)
            case exp.Literal() if not node.is_string:
                return _literal(str(node.this))
            case exp.Null():
                return (1, 0)
            case exp.Add() | exp.Sub():
                return _both(walk(node.left), walk(node.right), carry=1)
            case exp.Mul():
                left, right = walk(node.left), walk(node.right)
                return (left[0] + right[0], left[1] + right[1]) if left and right else None
            case exp.Cast():
                return _cast(node, walk)
            case exp.Case():
                results = [walk(i.args["true"]) for i in node.args["ifs"]]
                default = node.args.get("default")
                return _all([*results, walk(default)] if default is not None else results)
            case exp.Coalesce():
                return _all([walk(node.this), *(walk(e) for e in node.expressions)])
            case _:
                return None

    return walk(expression)


def _literal(text: str) -> Bounds | None:
    if not text.replace(".", "", 1).isdigit():
        return None
    whole, _, fraction = text.partition(".")
    return max(1, len(whole.lstrip("0")) + len(fraction)), len(fraction)


def _both(left: Bounds | None, right: Bounds | None, *, carry: int = 0) -> Bounds | None:
    if left is None or right is None:
        return None
    scale = max(left[1], right[1])
    return max(left[0] - left[1], right[0] - right[1]) + scale + carry, scale


def _all(bounds: list[Bounds | None]) -> Bounds | None:
    result = bounds[0]
    for other in bounds[1:]:
        result = _both(result, other)
    return result


def _cast(node: exp.Cast, walk: Callable[[exp.Expr | None], Bounds | None]) -> Bounds | None:
    target = node.to
    sizes = [int(str(p.this)) for p in target.expressions if str(p.this).isdigit()]
    if target.is_type(exp.DataType.Type.DECIMAL):
        if sizes:
            return sizes[0], sizes[1] if len(sizes) > 1 else 0
        return walk(node.this)
    if target.is_type(exp.DataType.Type.SMALLINT):
        return 5, 0
    if target.is_type(exp.DataType.Type.INT):
        return 10, 0
    if target.is_type(exp.DataType.Type.BIGINT):
        return 19, 0
    return None
