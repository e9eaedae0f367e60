"""Whether an order tells all rows of a block apart."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context


def is_total(select: exp.Select, order: Iterable[exp.Expr], ctx: Context) -> bool:
    """Whether no two rows of a block can tie in all of these expressions."""
    found = list(order)
    if tr.is_grouped(select, ctx):
        group = select.args.get("group")
        keys = group.expressions if group is not None else []
        plain = not any(isinstance(k, (exp.Rollup, exp.Cube, exp.GroupingSets)) for k in keys)
        if select.args.get("distinct") is not None or not plain:
            return False
        return {key(k) for k in keys} <= {key(e) for e in found}
    return is_total_input(select, found, ctx)


def is_total_input(select: exp.Select, order: Iterable[exp.Expr], ctx: Context) -> bool:
    """Whether no two rows of a block's FROM clause can tie in all of these expressions.

    That is so when the expressions contain a unique key of every table: a padded row of an outer join is told from
    the others by the key of the side that is there.
    """
    columns = [e.unnest() for e in order]
    names = {(c.table, c.name) for c in columns if isinstance(c, exp.Column)}
    if not names or any(_has_set_function(e, ctx) for e in select.expressions):
        return False
    for item in tr.leaf_items(select):
        if not isinstance(item, exp.Table) or not item.db or item.args.get("alias", exp.TableAlias()).columns:
            return False
        keys = ctx.unique_keys(item.db, item.name)
        if not any(all((item.alias, k) in names for k in key) for key in keys):
            return False
    return True


def _has_set_function(expression: exp.Expr, ctx: Context) -> bool:
    return any((n := tr.function_name(node)) and ctx.is_set_returning(n) for node in tr.own_nodes(expression))


def key(expression: exp.Expr) -> str:
    """What two spellings of one expression have in common."""
    return tr.text(expression.unnest())
