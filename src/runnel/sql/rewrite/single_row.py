"""Where LIMIT has nothing to choose: over one row at most, and in EXISTS.

SELECT count(*) FROM t LIMIT 100                      ->   SELECT count(*) FROM t
WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a LIMIT 1)   ->   .. EXISTS (SELECT 1 FROM u WHERE u.a = t.a)
"""

from __future__ import annotations

from sqlglot import exp

from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context
from runnel.sql.rewrite.subqueries.limits import literal

# What stands around a query that gives rows, and not one value.
_ROWS = (exp.From, exp.Join, exp.Lateral, exp.CTE, exp.SetOperation, exp.In, exp.Any, exp.All, exp.Array, exp.Exists)


def drop_limit(query: exp.Query, ctx: Context) -> None:
    """Remove a LIMIT of at least one row where there is one row at most, or where one is enough."""
    limit = literal(query.args.get("limit"))
    if not limit or query.args.get("offset"):
        return
    if isinstance(query.parent, exp.Exists) or at_most_one_row(query, ctx):
        query.set("limit", None)


def at_most_one_row(query: exp.Expr | None, ctx: Context) -> bool:
    """Whether a query gives one row at most whatever its tables hold."""
    while isinstance(query, (exp.Subquery, exp.Paren)) and not query.args.get("joins"):
        query = query.this
    if not isinstance(query, exp.Select) or _makes_rows(query, ctx):
        return False
    if query.args.get("group") is None and tr.is_grouped(query, ctx):
        return True
    source = query.args.get("from_")
    if source is None:
        return True
    if query.args.get("group") or query.args.get("laterals"):
        return False
    joins = query.args.get("joins") or []
    if any(join.side for join in joins):
        return False
    return all(_one_row_item(item, ctx) for item in [source.this, *(join.this for join in joins)])


def is_value(query: exp.Expr) -> bool:
    """Whether a query is used as one value: there its LIMIT can only choose a row."""
    node = query
    while isinstance(node.parent, (exp.Subquery, exp.Paren)):
        node = node.parent
    if not isinstance(node, exp.Subquery) or node.parent is None or isinstance(node.parent, _ROWS):
        return False
    return not (isinstance(node.parent, exp.Anonymous) and tr.function_name(node.parent) == "array")


def _one_row_item(item: exp.Expr, ctx: Context) -> bool:
    if isinstance(item, exp.Subquery):
        return at_most_one_row(item, ctx)
    if not isinstance(item, exp.Table) or item.db or item.args.get("joins"):
        return False
    return at_most_one_row(_cte(item), ctx)


def _cte(table: exp.Table) -> exp.Expr | None:
    """The query of the CTE that a name stands for, unless it is recursive."""
    node: exp.Expr | None = table
    while node is not None:
        with_ = node.args.get("with_")
        for cte in with_.expressions if with_ is not None and not with_.args.get("recursive") else []:
            if cte.alias == table.name:
                return cte.this if isinstance(cte.this, exp.Expr) else None
        node = node.parent
    return None


def _makes_rows(select: exp.Select, ctx: Context) -> bool:
    names = (tr.function_name(node) for item in select.expressions for node in tr.own_nodes(item))
    return any(name is not None and ctx.is_set_returning(name) for name in names)
