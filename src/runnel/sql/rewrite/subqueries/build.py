"""Small constructors for the trees that the rules put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.rewrite.tree import column, derived, identifier

__all__ = ["column", "derived"]

PRESENT = "pgt_present"


def named(expression: exp.Expr, name: str) -> exp.Alias:
    """`expression AS name`, also for a subquery, which sqlglot would take for a derived table."""
    return exp.Alias(this=expression.copy(), alias=identifier(name))


def select(
    items: Iterable[exp.Expr], source: exp.Expr, where: Iterable[exp.Expr] = (), group: Iterable[exp.Expr] = ()
) -> exp.Select:
    """`SELECT items FROM source WHERE .. GROUP BY ..`."""
    query = exp.Select(expressions=list(items), from_=exp.From(this=source))
    set_where(query, where)
    keys = [k.copy() for k in group]
    if keys:
        query.set("group", exp.Group(expressions=keys))
    return query


def every(conditions: Iterable[exp.Expr]) -> exp.Expr | None:
    """The conjunction of conditions, or None for none."""
    parts = [wrap(c.copy()) for c in conditions]
    if not parts:
        return None
    result = parts[0]
    for part in parts[1:]:
        result = exp.And(this=result, expression=part)
    return result


def wrap(condition: exp.Expr) -> exp.Expr:
    """In parentheses unless it is a name, a call or already in parentheses."""
    plain = (exp.Column, exp.Paren, exp.Func, exp.Boolean, exp.Literal)
    return (
        condition if isinstance(condition, plain) and not isinstance(condition, exp.Connector) else exp.paren(condition)
    )


def set_where(query: exp.Select, conditions: Iterable[exp.Expr]) -> None:
    """Give a SELECT this WHERE clause."""
    condition = every(conditions)
    query.set("where", exp.Where(this=condition) if condition is not None else None)


def where_of(query: exp.Select) -> list[exp.Expr]:
    """The conjuncts of a SELECT's WHERE clause."""
    where = query.args.get("where")
    return list(ex.conjuncts(where.this)) if where is not None else []


def add_where(query: exp.Select, conditions: Iterable[exp.Expr]) -> None:
    """Add conjuncts to a SELECT's WHERE clause, which itself stays in place."""
    extra = every(conditions)
    if extra is None:
        return
    where = query.args.get("where")
    if where is None:
        query.set("where", exp.Where(this=extra))
    else:
        where.set("this", exp.And(this=wrap(where.this.copy()), expression=extra))


def is_not_null(expression: exp.Expr) -> exp.Expr:
    """`(expression IS NOT NULL)`."""
    return exp.paren(exp.Not(this=exp.Is(this=expression.copy(), expression=exp.Null())))


def is_null(expression: exp.Expr) -> exp.Expr:
    """`(expression IS NULL)`."""
    return exp.paren(exp.Is(this=expression.copy(), expression=exp.Null()))


def is_true(conditions: Iterable[exp.Expr]) -> exp.Expr:
    """`(condition IS TRUE)` for a conjunction; TRUE for none."""
    condition = every(conditions)
    if condition is None:
        return exp.true()
    return exp.paren(exp.Is(this=exp.paren(condition), expression=exp.true()))


def case(branches: Iterable[tuple[exp.Expr, exp.Expr]], default: exp.Expr | None = None) -> exp.Expr:
    """`CASE WHEN .. THEN .. ELSE .. END`."""
    ifs = [exp.If(this=when.copy(), true=then.copy()) for when, then in branches]
    return exp.Case(ifs=ifs, default=default.copy() if default is not None else None)


def call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    """A function call."""
    return exp.Anonymous(this=name, expressions=[a.copy() for a in arguments])


def count_rows() -> exp.Expr:
    """`count(*)`."""
    return exp.Count(this=exp.Star(), big_int=True)


def replace_columns(node: exp.Expr, change: Callable[[exp.Column], exp.Expr | None]) -> exp.Expr:
    """Replace columns anywhere below a node, inside subqueries too; returns the node or what replaced it."""
    for found in list(node.find_all(exp.Column)):
        new = change(found)
        if new is None:
            continue
        new = ex.group(new.copy())
        if found is node:
            return new
        if isinstance(found.parent, exp.Select) and found.arg_key == "expressions":
            new = named(new, found.name)
        found.replace(new)
    return node


def varies(expression: exp.Expr) -> bool:
    """Whether an expression can differ from row to row (a constant in GROUP BY would be a position)."""
    return expression.find(exp.Column) is not None


def is_strict(expression: exp.Expr) -> bool:
    """Whether NULL in any column makes the whole expression NULL (`||` does for text, not for arrays)."""
    return ex.is_strict(expression) and not expression.find(exp.DPipe)


def bare(expression: exp.Expr) -> exp.Expr:
    """Without parentheses; unlike `unnest`, a subquery stays one."""
    while isinstance(expression, exp.Paren):
        expression = expression.this
    return expression


def both(flag: exp.Expr, conditions: Iterable[exp.Expr]) -> exp.Expr:
    """`(flag AND (conditions IS TRUE))`, or the flag alone if there are no conditions."""
    listed = list(conditions)
    return exp.paren(exp.And(this=flag.copy(), expression=is_true(listed))) if listed else flag
