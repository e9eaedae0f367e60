"""A comparison with an array that a query makes is a comparison with the query's rows.

    x = ANY (ARRAY (SELECT u.a FROM u))           ->   x = ANY (SELECT u.a FROM u)
    x <> ALL ((ARRAY (SELECT u.a FROM u))::text[])   ->   x <> ALL (SELECT CAST(q.v AS text) FROM (SELECT u.a ..) q(v))

Both are false (ALL: true) without rows, whatever x is, and NULL for a NULL that matters. The order of the rows, which
an array would keep, does not. A query of arrays stays as it is: its elements would be compared one by one.
"""

from __future__ import annotations

from sqlglot import exp

from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context


def rewrite(tree: exp.Query, ctx: Context) -> exp.Query:
    """Replace the arrays in every ANY and ALL."""
    for node in list(tree.find_all(exp.Any, exp.Anonymous)):
        array = _operand(node)
        made = array.this.unnest() if isinstance(array, exp.Cast) else array
        if made is None or not isinstance(node.parent, exp.Binary) or node.arg_key != "expression":
            continue
        query = made.expressions[0] if tr.function_name(made) == "array" or isinstance(made, exp.Array) else None
        if len(made.expressions) != 1 or not isinstance(query, (exp.Select, exp.SetOperation)):
            continue
        (column,) = tr.column_types(query, query, ctx)
        if column.type.sql.endswith("]"):
            continue
        kind = exp.Any if isinstance(node, exp.Any) else exp.All
        node.replace(kind(this=exp.Paren(this=_rows(query, array, ctx))))
    return tree


def _operand(node: exp.Expr) -> exp.Expr | None:
    """What ANY or ALL compares with."""
    operand: exp.Expr | None = None
    if isinstance(node, exp.Any):
        operand = node.this
    elif tr.function_name(node) == "all" and len(node.expressions) == 1:
        operand = node.expressions[0]
    return operand.unnest() if operand is not None else None


def _rows(query: exp.Query, array: exp.Expr | None, ctx: Context) -> exp.Query:
    """The query, with the cast of the array for each of its rows."""
    if not isinstance(array, exp.Cast):
        return query.copy()
    alias = ctx.fresh("a")
    item = exp.cast(tr.column("v", alias), array.to.expressions[0].copy())
    named = exp.TableAlias(this=tr.identifier(alias), columns=[tr.identifier("v")])
    return exp.Select(
        expressions=[tr.named(item, "v")], from_=exp.From(this=exp.Subquery(this=query.copy(), alias=named))
    )
