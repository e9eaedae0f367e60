"""Common table expressions: what each name means where it is used.

A CTE sees those before it, so each is kept together with its own scope. Nothing is copied into anything else:
a chain of twenty CTEs stays twenty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from runnel.sql.draft import NotDifferentiable


@dataclass(frozen=True)
class Cte:
    """A CTE's query, and the names it can see."""

    body: exp.Query
    scope: Mapping[str, Cte] = field(repr=False, compare=False)
    recursive: bool = False
    """Whether it mentions itself; its scope then holds itself."""
    names: tuple[str, ...] = ()
    """Column names given to a recursive one; others are renamed in their body."""


Ctes = Mapping[str, Cte]


def with_ctes(query: exp.Query, outer: Ctes) -> Ctes:
    """The CTEs visible inside a query."""
    clause = query.args.get("with_")
    if clause is None:
        return outer
    visible = dict(outer)
    for cte in clause.expressions:
        body = cte.this.copy()
        names = [i.name for i in cte.args["alias"].args.get("columns") or []]
        if clause.args.get("recursive") and mentions(body, cte.alias):
            if clause.args.get("search") or clause.args.get("cycle"):
                raise NotDifferentiable("a SEARCH or CYCLE clause")
            scope = dict(visible)
            visible[cte.alias] = scope[cte.alias] = Cte(body, scope, recursive=True, names=tuple(names))
        else:
            visible[cte.alias] = Cte(rename_outputs(body, names) if names else body, dict(visible))
    return visible


def mentions(query: exp.Expr, name: str) -> bool:
    """Whether a query reads the CTE of that name."""
    return any(not table.db and table.name == name for table in query.find_all(exp.Table))


def recursive_name(query: exp.Query, ctes: Ctes) -> str | None:
    """The name of the recursive CTE whose body a query is."""
    return next((name for name, cte in ctes.items() if cte.recursive and cte.body is query), None)


def standalone(query: exp.Query, outer: Ctes) -> exp.Query:
    """The query with all the CTEs it needs in a WITH clause of its own."""
    own = recursive_name(query, outer)
    if own is not None:
        query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.Table(this=_quoted(own))))
    needed: dict[str, Cte] = {}
    entered: dict[str, exp.Query] = {}

    def visit(part: exp.Query, scope: Ctes) -> None:
        for table in part.find_all(exp.Table):
            name = table.name
            if table.db or name not in scope:
                continue
            if name in entered:
                if entered[name] != scope[name].body:
                    raise NotDifferentiable(f"the name {name!r} for two different CTEs")
                continue
            entered[name] = scope[name].body
            visit(scope[name].body, scope[name].scope)
            needed[name] = scope[name]

    visible = with_ctes(query, outer)
    copy = query.copy()
    copy.set("with_", None)
    visit(copy, visible)
    if needed:
        items = [
            exp.CTE(
                this=cte.body.copy(),
                alias=exp.TableAlias(this=_quoted(name), columns=[_quoted(n) for n in cte.names]),
            )
            for name, cte in needed.items()
        ]
        copy.set("with_", exp.With(expressions=items, recursive=any(c.recursive for c in needed.values())))
    return copy


def _quoted(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def rename_outputs(query: exp.Query, names: list[str]) -> exp.Query:
    """A query whose first output columns have these names."""
    first = query
    while isinstance(first, exp.SetOperation):
        first = first.this
    items = first.expressions
    renamed = [exp.alias_(item.unalias().copy(), name, quoted=True) for item, name in zip(items, names, strict=False)]
    first.set("expressions", renamed + [item.copy() for item in items[len(names) :]])
    return query
