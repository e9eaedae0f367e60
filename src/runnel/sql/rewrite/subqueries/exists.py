"""EXISTS -> a join with the distinct keys of the subquery.

As a condition that has to hold, `EXISTS (SELECT 1 FROM i WHERE i.k = o.a)`:

    JOIN (SELECT DISTINCT i.k AS pgt_k0 FROM i) q ON q.pgt_k0 = o.a

Anywhere else, as `q.pgt_present IS NOT NULL`:

    LEFT JOIN (SELECT DISTINCT i.k AS pgt_k0, true AS pgt_present FROM i) q ON q.pgt_k0 = o.a

Uncorrelated, as `q.pgt_v`:

    CROSS JOIN (SELECT count(*) > 0 AS pgt_v FROM i) q

With one inequality of integers besides: see `unequal`.
"""

from __future__ import annotations

from sqlglot import exp

from runnel.sql.rewrite.subqueries import aggregated, build, limits, queries, unequal
from runnel.sql.rewrite.subqueries.block import Block
from runnel.sql.rewrite.subqueries.correlation import Detached, detach
from runnel.sql.rewrite.subqueries.shells import distinct_keys, shell_of


def semi_join(query: exp.Expr, block: Block) -> list[exp.Expr]:
    """EXISTS as a condition that has to hold: join the block, and return what remains to be checked."""
    reduced = reduce(query, block)
    if not _is_keyed(reduced, block):
        return [value(query, block)]
    grouped = unequal.condition(reduced, block, required=True)
    if grouped is not None:
        return grouped
    found = detach(reduced, block, duplicates=True)
    if not found.keys:
        return [_flag(found, block)]
    alias = block.ctx.fresh("q")
    block.inner_join(distinct_keys(found, [], block), alias, found.on(alias))
    return found.gate


def value(query: exp.Expr, block: Block) -> exp.Expr:
    """EXISTS as a boolean."""
    reduced = reduce(query, block)
    if isinstance(reduced, exp.Select):
        if limits.literal(reduced.args.get("limit")) == 0:
            return exp.false()
        if queries.is_scalar_aggregate(reduced, block.ctx) and not reduced.args.get("offset"):
            having = aggregated.lift(reduced, block).having
            return build.is_true([having] if having is not None else [])
        if reduced.args.get("from_") is None and not reduced.args.get("offset"):
            return build.is_true(build.where_of(reduced))
    grouped = unequal.condition(reduced, block, required=False)
    if grouped is not None:
        return build.is_true(grouped)
    found = detach(reduced, block, duplicates=True)
    if not found.keys:
        return _flag(found, block)
    alias = block.ctx.fresh("q")
    block.left_join(distinct_keys(found, [], block, present=True), alias, found.on(alias))
    present = build.is_not_null(build.column(build.PRESENT, alias))
    return build.both(present, found.gate)


def _is_keyed(query: exp.Expr, block: Block) -> bool:
    if not isinstance(query, exp.Select):
        return True
    return query.args.get("from_") is not None and not queries.is_scalar_aggregate(query, block.ctx)


def _flag(found: Detached, block: Block) -> exp.Expr:
    """Whether an uncorrelated query has rows: one boolean, which rarely changes."""
    shell, _ = shell_of(found, block)
    any_row = exp.GT(this=build.count_rows(), expression=exp.Literal.number(0))
    shell.set("expressions", [build.named(any_row, "pgt_v")])
    alias = block.ctx.fresh("q")
    block.cross_join(shell, alias)
    return build.both(build.column("pgt_v", alias), found.gate)


def reduce(query: exp.Expr, block: Block) -> exp.Query:
    """Drop what does not matter for whether there is a row."""
    query = queries.plain(query, block)
    limit = limits.literal(query.args.get("limit"))
    if query.args.get("limit") and (limit is None or limit == 0):
        return query
    query.set("limit", None)
    if query.args.get("offset"):
        return query
    query.set("order", None)
    if not isinstance(query, exp.Select):
        return query
    if queries.is_scalar_aggregate(query, block.ctx):
        return query
    query.set("distinct", None)
    if not query.args.get("having"):
        query.set("group", None)
    query.set("windows", None)
    query.set("expressions", [exp.Literal.number(1)])
    return query
