"""LATERAL subqueries -> joins with derived tables.

    o CROSS JOIN LATERAL (SELECT i.v + o.b AS w FROM i WHERE i.k < o.a) l
    ->  o JOIN (SELECT i.v AS pgt_c0, i.k AS pgt_c1 FROM i) l ON l.pgt_c1 < o.a,   and l.w becomes l.pgt_c0 + o.b

A subquery of rows is opened like this: it gives the columns that are needed, and what mentions the outer row moves
out. An aggregate without GROUP BY is left joined (see `aggregated`). All others are detached.
"""

from __future__ import annotations

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.subqueries import aggregated, build, flat, queries
from runnel.sql.rewrite.subqueries.block import Block
from runnel.sql.rewrite.subqueries.correlation import detach, split
from runnel.sql.rewrite.subqueries.scopes import defined_by, has_query, is_closed, name_of


def is_subquery(item: exp.Expr) -> bool:
    """Whether a FROM item is LATERAL (SELECT ..)."""
    return isinstance(item, exp.Lateral) and isinstance(queries.unwrap(item.this), (exp.Query, exp.Values))


def clear(block: Block) -> None:
    """Replace the LATERAL subqueries of a block, left to right."""
    select = block.select
    source = select.args.get("from_")
    if source is not None and is_subquery(source.this):
        source.set("this", _closed(source.this))
    number = 0
    while number < len(select.args.get("joins") or []):
        join = select.args["joins"][number]
        if is_subquery(join.this):
            number = _replace(block, number, join)
        number += 1
    if any(is_subquery(n) for n in tr.block_nodes(select, "from_", "joins")):
        raise NotDifferentiable("a LATERAL subquery inside a nested outer join")


def _closed(item: exp.Expr) -> exp.Subquery:
    """The item without the word LATERAL."""
    return exp.Subquery(this=queries.unwrap(item.this).copy(), alias=item.args["alias"].copy())


def _replace(block: Block, number: int, join: exp.Join) -> int:
    """Replace one LATERAL join by others; returns the number of the last of them."""
    item = join.this
    side = (join.side or "").upper()
    if is_closed(item.this, block.names):
        join.set("this", _closed(item))
        return number
    if side not in ("", "LEFT") or join.args.get("using"):
        raise NotDifferentiable("a LATERAL subquery joined by USING")
    alias = item.args["alias"]
    query = queries.plain(item.this, block)
    names = [i.name for i in alias.args.get("columns") or []]
    names += [e.alias_or_name for e in queries.first_select(query).expressions][len(names) :]
    queries.name_outputs(query, names)
    conditions = list(ex.conjuncts(join.args.get("on")))
    joins = block.select.args["joins"]
    # The chain up to here is what the subquery sees; new joins go where it stood.
    block.select.set("joins", [*joins[:number], *joins[number + 1 :]])
    block.position = number
    _join(block, query, names, alias.name, side, conditions)
    number = block.position - 1
    block.position = None
    return number


def _join(block: Block, query: exp.Query, names: list[str], alias: str, side: str, conditions: list[exp.Expr]) -> None:
    limited = query.args.get("limit") or query.args.get("offset")
    if isinstance(query, exp.Select) and not limited:
        if queries.is_scalar_aggregate(query, block.ctx):
            row = aggregated.lift(queries.without_ctes(query), block)
            _one_row(block, row.items, [row.having] if row.having is not None else [], names, alias, side, conditions)
            return
        if query.args.get("from_") is None and queries.is_simple(query, block.ctx):
            items = [e.unalias().copy() for e in query.expressions]
            _one_row(block, items, build.where_of(query), names, alias, side, conditions)
            return
        opened = _open(block, query.copy(), names, alias, side, conditions)
        if opened:
            return
    found = detach(query, block, names)
    on = [*found.on(alias), *found.gate, *conditions]
    if side == "LEFT":
        block.left_join(found.query, alias, on or [exp.true()])
    elif on:
        block.inner_join(found.query, alias, on)
    else:
        block.cross_join(found.query, alias)


def _one_row(
    block: Block,
    items: list[exp.Expr],
    present: list[exp.Expr],
    names: list[str],
    alias: str,
    side: str,
    conditions: list[exp.Expr],
) -> None:
    """A subquery of at most one row, all of it known: its columns are replaced by what they are."""
    values: dict[str, exp.Expr] = {n: exp.paren(i.copy()) for n, i in zip(names, items, strict=True)}
    required = [_substituted(c.copy(), alias, values) for c in [*present, *conditions]]
    if side == "LEFT" and required:
        values = {n: exp.paren(build.case([(build.is_true(required), v)])) for n, v in values.items()}
    substitute(block.select, alias, values)
    if side != "LEFT":
        _require(block, required)


def _require(block: Block, conditions: list[exp.Expr]) -> None:
    """Conditions of an inner join: in WHERE, if no later join pads."""
    later = (block.select.args.get("joins") or [])[block.position :]
    if any((j.side or "").upper() in ("RIGHT", "FULL") for j in later) and conditions:
        raise NotDifferentiable("a LATERAL subquery before a RIGHT or FULL JOIN")
    build.add_where(block.select, conditions)


def substitute(node: exp.Expr, alias: str, values: dict[str, exp.Expr]) -> None:
    """Replace columns of an alias, in place."""
    _substituted(node, alias, values)


def _substituted(node: exp.Expr, alias: str, values: dict[str, exp.Expr]) -> exp.Expr:
    def change(column: exp.Column) -> exp.Expr | None:
        if column.table != alias:
            return None
        if isinstance(column.this, exp.Star):
            raise NotDifferentiable("a whole row of a LATERAL subquery used as a value")
        return values.get(column.name)

    return build.replace_columns(node, change)


def _open(
    block: Block, select: exp.Select, names: list[str], alias: str, side: str, conditions: list[exp.Expr]
) -> bool:
    """Open a SELECT of rows, if what mentions the outer row can move out of it."""
    outer = block.names
    without = queries.without_ctes(select)
    if not queries.is_simple(without, block.ctx):
        return False
    assert isinstance(without, exp.Select)
    select = without
    flat.flatten(select)
    local = defined_by(select)
    flat.move_to_where(select, lambda c: not is_closed(c, outer, local))
    parts = split(build.where_of(select), local, outer)
    bare = exp.Select(
        expressions=[exp.Literal.number(1)],
        from_=select.args["from_"].copy(),
        joins=[j.copy() for j in select.args.get("joins") or []],
    )
    if not is_closed(bare, outer) or (side == "LEFT" and not all(_compares(c, local) for c in parts.mixed)):
        return False
    exposed: list[exp.Expr] = []

    def lifted(expression: exp.Expr) -> exp.Expr:
        def change(column: exp.Column) -> exp.Expr | None:
            if name_of(column) not in local:
                return None
            if column not in exposed:
                exposed.append(column.copy())
            return build.column(f"pgt_c{exposed.index(column)}", alias)

        return build.replace_columns(expression.copy(), change)

    correlated = [
        *(_condition(e) for e in parts.equalities),
        *parts.mixed,
        *parts.gate,
    ]
    on = [lifted(c) for c in correlated]
    items: list[exp.Expr] = []
    values: dict[str, exp.Expr] = {}
    for name, item in zip(names, select.expressions, strict=True):
        value = item.unalias()
        if is_closed(value, outer, local):
            items.append(build.named(value, name))
        elif side == "LEFT":
            present = build.is_not_null(build.column(build.PRESENT, alias))
            values[name] = exp.paren(build.case([(present, lifted(value))]))
        else:
            values[name] = exp.paren(lifted(value))
    items += [build.named(e, f"pgt_c{i}") for i, e in enumerate(exposed)]
    if side == "LEFT" and values:
        items.append(build.named(exp.true(), build.PRESENT))
    select.set("expressions", items or [exp.Literal.number(1)])
    build.set_where(select, parts.inner)
    on += [_substituted(c.copy(), alias, values) for c in conditions]
    substitute(block.select, alias, values)
    if side == "LEFT":
        block.left_join(select, alias, on or [exp.true()])
        return True
    later = [c for c in on if has_query(c)]
    on = [c for c in on if not has_query(c)]
    if on:
        block.inner_join(select, alias, on)
    else:
        block.cross_join(select, alias)
    _require(block, later)
    return True


def _condition(equality: tuple[exp.Expr, exp.Expr, bool]) -> exp.Expr:
    inside, outside, null_safe = equality
    kind = exp.NullSafeEQ if null_safe else exp.EQ
    return kind(this=ex.group(inside.copy()), expression=ex.group(outside.copy()))


def _compares(condition: exp.Expr, local: frozenset[str]) -> bool:
    """Whether a condition compares something inside with something outside."""
    if not isinstance(condition, (exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NEQ, exp.EQ)) or has_query(condition):
        return False
    sides = [
        {name_of(c) in local for c in side.find_all(exp.Column)} for side in (condition.this, condition.expression)
    ]
    return all(len(s) == 1 for s in sides)
