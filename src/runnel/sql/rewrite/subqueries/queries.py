"""Questions about a query's shape, and small changes of it that do not depend on correlation."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context
from runnel.sql.rewrite.subqueries import build
from runnel.sql.rewrite.subqueries.block import Block, unique_keys
from runnel.sql.rewrite.subqueries.scopes import defined_by, is_closed, name_of

__all__ = ["is_scalar_aggregate", "name_outputs", "plain", "unique_keys", "unwrap", "width", "windows", "without_ctes"]


def unwrap(query: exp.Expr) -> exp.Expr:
    """Without parentheses around it."""
    while isinstance(query, (exp.Subquery, exp.Paren)) and not query.args.get("joins"):
        query = query.this
    return query


def plain(query: exp.Expr, block: Block) -> exp.Query:
    """A copy that is a SELECT or a set operation."""
    query = unwrap(query)
    if isinstance(query, exp.Values):
        return values(query, block)
    if not isinstance(query, exp.Query):
        raise NotDifferentiable(f"the subquery {ex.pg(query)}")
    return query.copy()


def values(rows: exp.Values, block: Block) -> exp.Select:
    """VALUES as a SELECT.

    With outer columns the rows are numbered instead: `VALUES (o.a), (o.b)` ->
    `SELECT CASE n.i WHEN 1 THEN o.a ELSE o.b END FROM (VALUES (1), (2)) n(i)`.
    """
    alias = block.ctx.fresh("r")
    lists = [t.expressions if isinstance(t, exp.Tuple) else [t] for t in rows.expressions]
    count = len(lists[0])
    if is_closed(rows, block.names):
        names = [f"pgt_c{i}" for i in range(count)]
        source = exp.Values(expressions=[t.copy() for t in rows.expressions])
        items: list[exp.Expr] = [build.column(n, alias) for n in names]
    else:
        names = ["pgt_i"]
        numbers = [exp.Tuple(expressions=[exp.Literal.number(i + 1)]) for i in range(len(lists))]
        source = exp.Values(expressions=numbers)
        items = [_chosen([row[i] for row in lists], build.column("pgt_i", alias)) for i in range(count)]
    source.set("alias", exp.TableAlias(this=tr.identifier(alias), columns=[tr.identifier(n) for n in names]))
    return build.select([build.named(item, f"column{i + 1}") for i, item in enumerate(items)], source)


def _chosen(options: Sequence[exp.Expr], number: exp.Expr) -> exp.Expr:
    if len(options) == 1:
        return options[0].copy()
    branches = [
        (exp.EQ(this=number.copy(), expression=exp.Literal.number(i + 1)), option) for i, option in enumerate(options)
    ]
    return build.case(branches)


def first_select(query: exp.Expr) -> exp.Select:
    """The SELECT that names a query's columns."""
    while not isinstance(query, exp.Select):
        query = query.this
    return query


def width(query: exp.Query) -> int:
    """How many columns a query has."""
    return len(first_select(query).expressions)


def name_outputs(query: exp.Expr, names: Sequence[str]) -> None:
    """Give a query's columns these names, in every member of a set operation."""
    query = unwrap(query)
    if isinstance(query, exp.SetOperation):
        name_outputs(query.this, names)
        name_outputs(query.expression, names)
    elif isinstance(query, exp.Select):
        items = [build.named(i.unalias(), n) for i, n in zip(query.expressions, names, strict=True)]
        query.set("expressions", items)


def without_ctes(query: exp.Query) -> exp.Query:
    """A correlated query with its own CTEs written out where they are used."""
    clause = query.args.get("with_")
    if clause is None:
        return query
    if clause.args.get("recursive"):
        raise NotDifferentiable("WITH RECURSIVE inside a correlated subquery")
    query.set("with_", None)
    bodies: dict[str, tuple[exp.Query, list[exp.Expr]]] = {}
    for cte in clause.expressions:
        body = cte.this.copy()
        _expand(body, bodies)
        bodies[cte.alias] = (body, cte.args["alias"].args.get("columns") or [])
    _expand(query, bodies)
    return query


def _expand(query: exp.Query, bodies: dict[str, tuple[exp.Query, list[exp.Expr]]]) -> None:
    for table in list(query.find_all(exp.Table)):
        if table.db or table.name not in bodies or not isinstance(table.this, exp.Identifier):
            continue
        body, columns = bodies[table.name]
        alias = table.args.get("alias")
        listed = (alias.args.get("columns") if alias is not None else None) or columns
        named = exp.TableAlias(
            this=tr.identifier(table.alias_or_name), columns=[c.copy() for c in listed] if listed else None
        )
        table.replace(exp.Subquery(this=body.copy(), alias=named, joins=table.args.get("joins")))


def own_aggregates(select: exp.Select, parts: Sequence[exp.Expr], ctx: Context) -> list[exp.Expr]:
    """The aggregate calls below some expressions that aggregate this SELECT's rows.

    Inside a nested subquery, one belongs to this SELECT if all its columns do: `(SELECT .. WHERE x = sum(t.y))`.
    """
    local = defined_by(select)
    found: list[exp.Expr] = []
    for part in parts:
        own = {id(n) for n in tr.own_nodes(part)}
        for call in tr.aggregates(part.walk(), ctx):
            whole = tr.whole_call(call)
            columns = [name_of(c) for c in whole.find_all(exp.Column)]
            if id(call) in own or (columns and set(columns) <= local):
                found.append(whole)
    return [c for c in found if not any(c is not o and _is_below(c, o) for o in found)]


def _is_below(node: exp.Expr, other: exp.Expr) -> bool:
    parent = node.parent
    while parent is not None:
        if parent is other:
            return True
        parent = parent.parent
    return False


def is_scalar_aggregate(select: exp.Expr, ctx: Context) -> bool:
    """Whether a SELECT aggregates all its rows into one."""
    if not isinstance(select, exp.Select) or select.args.get("group"):
        return False
    order = select.args.get("order")
    parts = [*select.expressions, *([order] if order is not None else [])]
    return bool(select.args.get("having")) or bool(own_aggregates(select, parts, ctx))


def windows(select: exp.Select) -> list[exp.Expr]:
    """The windows of a SELECT: OVER clauses, and definitions of the WINDOW clause."""
    return [
        n
        for part in [*select.expressions, select.args.get("order"), *(select.args.get("windows") or [])]
        if part is not None
        for n in tr.own_nodes(part)
        if isinstance(n, exp.Window)
    ]


def is_simple(select: exp.Expr, ctx: Context) -> bool:
    """Whether a query is a SELECT of rows: no groups, no DISTINCT, no window functions, no LIMIT."""
    if not isinstance(select, exp.Select) or tr.is_grouped(select, ctx) or windows(select):
        return False
    return not any(select.args.get(k) for k in ("distinct", "limit", "offset"))
