"""What cannot be maintained by deltas yet, each construct under the name a user knows it by."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from runnel.sql.aggregates import aggregate_calls
from runnel.sql.draft import NotDifferentiable

# sqlglot node -> the construct's name in messages; checked anywhere inside a SELECT's own expressions.
EXPRESSIONS: Mapping[type[exp.Expr], str] = {
    exp.Exists: "EXISTS (subquery)",
    exp.Subquery: "a subquery used as a value",
    exp.Select: "a subquery used as a value",
}

CLAUSES: Mapping[str, str] = {
    "locks": "FOR UPDATE / FOR SHARE",
    "laterals": "LATERAL",
    "qualify": "QUALIFY",
}

GROUPINGS: Mapping[type[exp.Expr], str] = {
    exp.Rollup: "GROUP BY ROLLUP",
    exp.Cube: "GROUP BY CUBE",
    exp.GroupingSets: "GROUP BY GROUPING SETS",
}


def check_block(select: exp.Select) -> None:
    """Refuse what a SELECT block must not contain."""
    for key, name in CLAUSES.items():
        if select.args.get(key):
            raise NotDifferentiable(name)
    group = select.args.get("group")
    for item in group.expressions if group else []:
        for kind, name in GROUPINGS.items():
            if isinstance(item, kind):
                raise NotDifferentiable(name)
    parts = [*select.expressions, select.args.get("where"), group, select.args.get("having")]
    for part in parts:
        for node in part.walk() if part is not None else ():
            if isinstance(node, exp.In) and node.args.get("query"):
                raise NotDifferentiable("IN (subquery)")
            for kind, name in EXPRESSIONS.items():
                if isinstance(node, kind):
                    raise NotDifferentiable(name)
    for join in select.args.get("joins") or []:
        on = join.args.get("on")
        if on is not None and on.find(exp.Subquery, exp.Select):
            raise NotDifferentiable("a subquery in a join condition")


def has_aggregates(select: exp.Select) -> bool:
    """Whether the select list aggregates."""
    return any(True for e in select.expressions for _ in aggregate_calls(e))


def is_stateful(select: exp.Select) -> bool:
    """Whether the block needs a head of its own (so it cannot be inlined)."""
    return bool(
        select.args.get("group")
        or select.args.get("having")
        or select.args.get("distinct")
        or select.args.get("limit")
        or select.args.get("offset")
        or select.find(exp.Window)
        or has_aggregates(select)
    )


def name_of(item: exp.Expr) -> str:
    """A construct's name for a message."""
    if isinstance(item, exp.Lateral):
        return "LATERAL"
    if isinstance(item, exp.Values):
        return "VALUES in FROM"
    if isinstance(item, exp.Unnest):
        return "unnest() in FROM"
    return f"{type(item).__name__.upper()} in FROM"
