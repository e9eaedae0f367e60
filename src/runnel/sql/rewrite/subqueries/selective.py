"""Aggregates per key of a table of which few rows are wanted -> only their keys are kept.

    SELECT .. FROM p JOIN i ON .. WHERE p.brand = 'x' AND i.v < (SELECT avg(j.v) FROM j WHERE j.k = p.id)
    ->  LEFT JOIN (SELECT j.k AS pgt_k0, avg(j.v) AS pgt_a0 FROM j CROSS JOIN p m
                   WHERE j.k = m.id AND m.brand = 'x' GROUP BY j.k) q ON q.pgt_k0 = p.id

Groups of other keys are never looked at: every row of the block has a p that fulfils the conditions. `id` is unique in
p, so no row of j is counted twice. Whether few rows are wanted is told by the query alone, since its plan must not
depend on statistics: a column has to equal a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.subqueries import build, flat
from runnel.sql.rewrite.subqueries.block import Block, unique_keys
from runnel.sql.rewrite.subqueries.scopes import has_query, name_of

Equality = tuple[exp.Expr, exp.Expr, bool]
"""(inside, outside, whether NULL equals NULL)"""


def narrow(select: exp.Select, equalities: Sequence[Equality], block: Block) -> None:
    """Keep a grouped SELECT, whose rows are asked for by these equalities, to the keys that can be asked for."""
    if block.position is not None:
        return
    for item in flat.items(block.select):
        found = _conditions(item, equalities, block)
        if found is None or not isinstance(item, exp.Table):
            continue
        _join(select, item, found, block.ctx.fresh("m"))
        return


def _join(select: exp.Select, item: exp.Table, conditions: Sequence[exp.Expr], alias: str) -> None:
    """Join a table of the block once more, under another alias."""
    table = item.copy()
    table.set("alias", exp.TableAlias(this=tr.identifier(alias)))
    table.set("joins", None)

    def change(column: exp.Column) -> exp.Expr | None:
        return build.column(column.name, alias) if column.table == item.alias_or_name else None

    select.set("joins", [*(select.args.get("joins") or []), exp.Join(this=table, kind="CROSS")])
    build.add_where(select, [build.replace_columns(c.copy(), change) for c in conditions])


def _conditions(item: exp.Expr, equalities: Sequence[Equality], block: Block) -> list[exp.Expr] | None:
    """What rows of a table must fulfil, by the block and by the equalities; None where it tells too little."""
    name = item.alias_or_name
    if not isinstance(item, exp.Table) or name in flat.nullable_names(block.select):
        return None
    own = [
        c
        for c in build.where_of(block.select)
        if not has_query(c) and {name_of(x) for x in c.find_all(exp.Column)} == {name} and not ex.mentions_clock(c)
    ]
    asked = [
        (inside, outside)
        for inside, outside, null_safe in equalities
        if isinstance(outside, exp.Column) and outside.table == name and not null_safe
    ]
    columns = {outside.name for _, outside in asked}
    if not any(map(_is_fixed, own)) or not any(set(key) <= columns for key in unique_keys(item, block.ctx)):
        return None
    return [*(exp.EQ(this=inside.copy(), expression=outside.copy()) for inside, outside in asked), *own]


def _is_fixed(condition: exp.Expr) -> bool:
    """`column = constant`"""
    if not isinstance(condition, exp.EQ):
        return False
    sides = [condition.this.unnest(), condition.expression.unnest()]
    return any(isinstance(s, exp.Column) for s in sides) and not all(build.varies(s) for s in sides)
