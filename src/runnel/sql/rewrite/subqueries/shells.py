"""Other select lists over the rows of a detached query."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from runnel.sql.rewrite.subqueries import build, queries
from runnel.sql.rewrite.subqueries.block import Block
from runnel.sql.rewrite.subqueries.correlation import Detached


def shell_of(found: Detached, block: Block) -> tuple[exp.Select, dict[str, exp.Expr]]:
    """A SELECT over the same rows with no select list yet, and what its columns are called in there."""
    query = found.query
    if isinstance(query, exp.Select) and queries.is_simple(query, block.ctx) and query.args.get("from_") is not None:
        shell = query.copy()
        columns = {item.alias: item.this for item in shell.expressions}
        shell.set("expressions", [])
        return shell, columns
    alias = block.ctx.fresh("s")
    shell = build.select([], build.derived(query.copy(), alias))
    names = [*found.names, *(k.name for k in found.keys)]
    return shell, {n: build.column(n, alias) for n in names}


def distinct_keys(found: Detached, names: Sequence[str], block: Block, *, present: bool = False) -> exp.Select:
    """`SELECT DISTINCT names, keys [, true AS pgt_present]`."""
    if isinstance(found.query, exp.Select):
        distinct = found.query.args.get("distinct")
        if distinct is not None and not distinct.args.get("on"):
            found.query.set("distinct", None)
    shell, columns = shell_of(found, block)
    wanted = [*names, *(k.name for k in found.keys)]
    items: list[exp.Expr] = [build.named(columns[n], n) for n in wanted]
    if present:
        items.append(build.named(exp.true(), build.PRESENT))
    shell.set("expressions", items)
    shell.set("distinct", exp.Distinct())
    return shell


def grouped_by_keys(found: Detached, block: Block) -> tuple[exp.Select, dict[str, exp.Expr]]:
    """`SELECT keys .. GROUP BY keys`, to which aggregates are added, and the columns to aggregate."""
    shell, columns = shell_of(found, block)
    keys = [columns[k.name] for k in found.keys]
    shell.set("expressions", [build.named(c, k.name) for c, k in zip(keys, found.keys, strict=True)])
    if keys:
        shell.set("group", exp.Group(expressions=[k.copy() for k in keys]))
    return shell, columns
