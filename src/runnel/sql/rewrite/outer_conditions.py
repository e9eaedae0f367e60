"""LEFT JOIN on a condition that only PostgreSQL can evaluate -> LEFT JOIN on equalities.

    a LEFT JOIN b ON f(a.x, b.y)
    =
    a LEFT JOIN (SELECT d.d0, b.* FROM (SELECT DISTINCT a.x AS d0 FROM a) d JOIN b ON f(d.d0, b.y)) b
      ON a.x IS NOT DISTINCT FROM b.d0

The condition moves into an inner join, whose rows PostgreSQL may filter after Spark has joined them; what is left of
the outer join compares whole values.
"""

from __future__ import annotations

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql import registry
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context
from runnel.sql.rewrite.enclose import enclose_left


def rewrite_members(query: exp.Query, ctx: Context) -> exp.Query:
    """A SELECT, or every member of a set operation."""
    if isinstance(query, exp.Select):
        return rewrite(query, ctx)
    copy = query.copy()
    for key in ("this", "expression"):
        member = copy.args.get(key)
        if isinstance(member, exp.Query):
            copy.set(key, rewrite_members(member, ctx))
    return copy


def rewrite(select: exp.Select, ctx: Context) -> exp.Select:
    """One block with all of its LEFT JOINs on equalities; raises NotDifferentiable where that cannot be."""
    select = select.copy()
    position = 0
    while position < len(select.args.get("joins") or []):
        join = select.args["joins"][position]
        side = (join.side or "").upper()
        if side and not all(_is_equality(c) for c in ex.conjuncts(join.args.get("on"))):
            if side == "FULL" or join.args.get("using") or join.this.args.get("joins") or tr.is_join_group(join.this):
                shown = f"a {side} JOIN on a condition that compares more than columns"
                words = (f"{side} JOIN", f"{side} OUTER JOIN")
                raise NotDifferentiable(registry.OUTER_CONDITION, shown, words=words)
            if side == "RIGHT":
                position, join = 0, _turned(select, position, ctx)
            _matches_first(select, position, join, ctx)
        position += 1
    return select


def _turned(select: exp.Select, position: int, ctx: Context) -> exp.Join:
    """`a RIGHT JOIN b` as `b LEFT JOIN a`, where a is one table."""
    if position or tr.is_join_group(select.args["from_"].this):
        enclose_left(select, position, ctx)
    join = select.args["joins"][0]
    left = select.args["from_"].this
    select.set("from_", exp.From(this=join.this.copy()))
    join.set("this", left.copy())
    join.set("side", "LEFT")
    assert isinstance(join, exp.Join)
    return join


def _is_equality(condition: exp.Expr) -> bool:
    return isinstance(condition, (exp.EQ, exp.NullSafeEQ)) and all(
        isinstance(side.unnest(), exp.Column) for side in (condition.left, condition.right)
    )


def _matches_first(select: exp.Select, position: int, join: exp.Join, ctx: Context) -> None:
    right = join.this
    alias = right.alias_or_name
    before = exp.Select(from_=select.args["from_"].copy(), joins=[j.copy() for j in select.args["joins"][:position]])
    condition = join.args["on"].copy()
    ours = list(dict.fromkeys(c for c in condition.find_all(exp.Column) if c.table != alias))
    theirs = list(
        dict.fromkeys(c.name for c in tr.block_nodes(select) if isinstance(c, exp.Column) and c.table == alias)
    )
    if not ours:
        raise NotDifferentiable(registry.OUTER_CONDITION, "an outer join on a condition over one side")
    domain = ctx.fresh("d")
    names = {column: f"{domain}_{i}" for i, column in enumerate(ours)}
    before.set("expressions", [tr.named(c, n) for c, n in names.items()])
    before.set("distinct", exp.Distinct())

    def moved(node: exp.Expr) -> exp.Expr | None:
        return tr.column(names[node], domain) if isinstance(node, exp.Column) and node in names else None

    items = [tr.named(tr.column(n, domain), n) for n in names.values()]
    items += [tr.named(tr.column(n, alias), n) for n in theirs]
    matches = exp.Select(
        expressions=items,
        from_=exp.From(this=tr.derived(before, domain)),
        joins=[exp.Join(this=right.copy(), kind="INNER", on=ex.rewrite(condition, moved))],
    )
    same = [exp.NullSafeEQ(this=c.copy(), expression=tr.column(n, alias)) for c, n in names.items()]
    join.set("this", tr.derived(matches, alias))
    join.set("on", exp.and_(*same))
