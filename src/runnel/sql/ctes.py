"""Common table expressions: what each name means where it is used.

A CTE sees those before it, so each is kept together with its own scope. Nothing is copied into anything else:
a chain of twenty CTEs stays twenty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from runnel.sql.draft import NotDifferentiable


@dataclass(frozen=True)
class Cte:
    """A CTE's query, and the names it can see."""

    body: exp.Query
    scope: Mapping[str, Cte]


Ctes = Mapping[str, Cte]


def with_ctes(query: exp.Query, outer: Ctes) -> Ctes:
    """The CTEs visible inside a query."""
    clause = query.args.get("with_")
    if clause is None:
        return outer
    if clause.args.get("recursive"):
        raise NotDifferentiable("WITH RECURSIVE")
    visible = dict(outer)
    for cte in clause.expressions:
        body = cte.this.copy()
        names = [i.name for i in cte.args["alias"].args.get("columns") or []]
        visible[cte.alias] = Cte(_rename_outputs(body, names) if names else body, dict(visible))
    return visible


def standalone(query: exp.Query, outer: Ctes) -> exp.Query:
    """The query with all the CTEs it needs in a WITH clause of its own."""
    needed: dict[str, exp.Query] = {}

    def visit(part: exp.Query, scope: Ctes) -> None:
        for table in part.find_all(exp.Table):
            name = table.name
            if table.db or name not in scope:
                continue
            if name in needed:
                if needed[name] != scope[name].body:
                    raise NotDifferentiable(f"the name {name!r} for two different CTEs")
                continue
            visit(scope[name].body, scope[name].scope)
            needed[name] = scope[name].body

    visible = with_ctes(query, outer)
    copy = query.copy()
    copy.set("with_", None)
    visit(copy, visible)
    if needed:
        items = [
            exp.CTE(this=body.copy(), alias=exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
            for name, body in needed.items()
        ]
        copy.set("with_", exp.With(expressions=items))
    return copy


def _rename_outputs(query: exp.Query, names: list[str]) -> exp.Query:
    """A query whose first output columns have these names."""
    first = query
    while isinstance(first, exp.SetOperation):
        first = first.this
    items = first.expressions
    renamed = [exp.alias_(item.unalias().copy(), name, quoted=True) for item, name in zip(items, names, strict=False)]
    first.set("expressions", renamed + [item.copy() for item in items[len(names) :]])
    return query
