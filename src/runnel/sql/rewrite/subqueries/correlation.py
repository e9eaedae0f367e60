"""A correlated subquery -> an uncorrelated one with key columns: Q(o) = the rows of Q' whose keys match o.

    SELECT i.v FROM i WHERE i.k = o.a AND i.f         ->  SELECT i.v, i.k AS pgt_k0 FROM i WHERE i.f
    keys: pgt_k0 = o.a

Equalities between something inside and something outside give the keys. All other correlation goes through a domain
of outer values, whose columns are the keys then; they match by IS NOT DISTINCT FROM unless NULL cannot match anyway.
Keys join GROUP BY, DISTINCT and PARTITION BY of the block, so that each key's rows are treated on their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql import registry
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.subqueries import build, flat, limits, queries, selective
from runnel.sql.rewrite.subqueries.block import Block, never_null
from runnel.sql.rewrite.subqueries.domain import Domain, distinct_columns, domain
from runnel.sql.rewrite.subqueries.scopes import (
    Names,
    defined_by,
    free_columns,
    has_query,
    is_closed,
)


@dataclass(frozen=True)
class Key:
    """A column of the detached query, and the outer expression it has to equal."""

    name: str
    outer: exp.Expr
    null_safe: bool = False

    def condition(self, alias: str) -> exp.Expr:
        """The join condition."""
        kind = exp.NullSafeEQ if self.null_safe else exp.EQ
        return kind(this=build.column(self.name, alias), expression=ex.group(self.outer.copy()))


@dataclass
class Detached:
    """A query without correlation: its columns are `names` and the keys."""

    query: exp.Query
    names: list[str]
    keys: list[Key]
    gate: list[exp.Expr]
    """Conditions on the outer row without which the subquery has no rows."""

    def on(self, alias: str) -> list[exp.Expr]:
        """The conditions that join it back under an alias."""
        return [k.condition(alias) for k in self.keys]


@dataclass
class Split:
    """The conjuncts of a WHERE clause by what they say."""

    inner: list[exp.Expr]
    equalities: list[tuple[exp.Expr, exp.Expr, bool]]
    """(inside, outside, whether NULL equals NULL)"""
    gate: list[exp.Expr]
    mixed: list[exp.Expr]


def split(conditions: Sequence[exp.Expr], local: Names, outer: Names) -> Split:
    """Sort conditions of a subquery with the FROM names `local` within a query with the names `outer`."""
    result = Split([], [], [], [])
    for condition in conditions:
        free = free_columns(condition, outer, local)
        if not free:
            result.inner.append(condition)
            continue
        if _is_outside(condition, local):
            result.gate.append(condition)
            continue
        equality = _equality(condition, local, outer)
        if equality is not None:
            result.equalities.append(equality)
        else:
            result.mixed.append(condition)
    return result


def _is_outside(expression: exp.Expr, local: Names) -> bool:
    """Whether an expression only concerns the outer row."""
    return not has_query(expression) and not any(
        (c.table or f".{c.name}") in local for c in expression.find_all(exp.Column)
    )


def _equality(condition: exp.Expr, local: Names, outer: Names) -> tuple[exp.Expr, exp.Expr, bool] | None:
    if not isinstance(condition, (exp.EQ, exp.NullSafeEQ)):
        return None
    null_safe = isinstance(condition, exp.NullSafeEQ)
    left, right = condition.this.unnest(), condition.expression.unnest()
    if isinstance(left, exp.Tuple) or isinstance(right, (exp.Tuple, exp.Any, exp.All)):
        return None
    for inside, outside in ((left, right), (right, left)):
        if is_closed(inside, outer, local) and _is_outside(outside, local) and not has_query(inside):
            return inside, outside, null_safe
    return None


def detach(query: exp.Expr, block: Block, names: list[str] | None = None, *, duplicates: bool = False) -> Detached:
    """Detach a subquery from the block around it.

    With `duplicates` only the set of its rows matters.
    """
    query = queries.plain(query, block)
    names = names or [f"pgt_v{i}" for i in range(queries.width(query))]
    queries.name_outputs(query, names)
    if is_closed(query, block.names):
        return Detached(query, names, [], [])
    query = queries.without_ctes(query)
    if isinstance(query, exp.SetOperation):
        return _set_operation(query, names, block, duplicates)
    assert isinstance(query, exp.Select)
    if query.args.get("limit") or query.args.get("offset"):
        return _limited(query, names, block)
    if queries.is_scalar_aggregate(query, block.ctx):
        return _asked(query, names, block, free_columns(query, block.names))
    return detach_select(query, names, block, duplicates=duplicates)


def detach_select(
    select: exp.Select, names: list[str], block: Block, *, duplicates: bool = False, grouped: bool = False
) -> Detached:
    """Detach a SELECT whose rows, or groups, are not limited; `grouped` when it aggregates without GROUP BY."""
    outer = block.names
    flat.flatten(select)
    local = defined_by(select)
    flat.move_to_where(select, lambda c: not is_closed(c, outer, local))
    _detach_items(select, block)
    parts = split(build.where_of(select), local, outer)
    without_where = select.copy()
    without_where.set("where", None)
    if parts.mixed or not is_closed(without_where, outer):
        return _over_domain(select, names, block, free_columns(select, outer), duplicates, grouped)
    build.set_where(select, parts.inner)
    keys: list[Key] = []
    for number, (inside, outside, null_safe) in enumerate(parts.equalities):
        keys.append(Key(f"pgt_k{number}", outside.copy(), null_safe))
        _add_key(select, inside, f"pgt_k{number}", block, grouped)
    if grouped:
        selective.narrow(select, parts.equalities, block)
    return Detached(select, names, keys, [g.copy() for g in parts.gate])


def _detach_items(select: exp.Select, block: Block) -> None:
    """Detach correlated derived tables in FROM; their keys become conditions of the SELECT."""
    padded = flat.nullable_names(select)
    for item in flat.items(select):
        if not isinstance(item, exp.Subquery) or not item.alias or item.alias in padded:
            continue
        if is_closed(item.this, block.names):
            continue
        listed = [c.name for c in item.args["alias"].args.get("columns") or []]
        names = listed + tr.output_names(queries.plain(item.this, block))[len(listed) :]
        found = detach(item.this, block, names)
        build.add_where(select, [*found.on(item.alias), *found.gate])
        item.replace(build.derived(found.query, item.alias))


def _over_domain(
    select: exp.Select,
    names: list[str],
    block: Block,
    columns: Sequence[exp.Column],
    duplicates: bool = False,
    grouped: bool = False,
) -> Detached:
    """`SELECT v FROM i WHERE c(i, o)` -> `SELECT v, dom.* FROM dom CROSS JOIN i WHERE c(i, dom)`."""
    outer = block.names
    several = bool(grouped or select.args.get("group") or queries.windows(select))
    dom = domain(block, columns, duplicates=duplicates and not several)
    local = defined_by(select)
    _put_in_front(select, dom, outer, local)
    strict = [c for c in build.where_of(select) if build.is_strict(c)]
    keys: list[Key] = []
    for number, column in enumerate(dom.columns):
        own = dom.own(number)
        never = any(own in c.find_all(exp.Column) for c in strict)
        keys.append(Key(f"pgt_k{number}", column.copy(), not (never or block.never_null(column))))
        _add_key(select, own, f"pgt_k{number}", block, grouped)
    return Detached(select, names, keys, [])


def _put_in_front(select: exp.Select, dom: Domain, outer: Names, local: Names) -> None:
    """`FROM items` -> `FROM dom CROSS JOIN items`, with the domain's columns for those of the outer block."""
    source = select.args.get("from_")
    joins = [j.copy() for j in select.args.get("joins") or []]
    if source is not None:
        first = source.this.copy()
        if any((j.side or "").upper() in ("RIGHT", "FULL") for j in joins):
            first.set("joins", joins)
            first, joins = exp.Subquery(this=first), []
        joins.insert(0, exp.Join(this=first, kind="CROSS"))
    for join in joins:
        item = join.this
        if tr.is_join_group(item) and not item.alias and not is_closed(item, outer, local):
            raise NotDifferentiable(
                registry.CORRELATION, "a correlated subquery over a RIGHT, FULL or nested outer join"
            )
        if isinstance(item, exp.Subquery) and item.alias and not is_closed(item.this, outer):
            join.set("this", exp.Lateral(this=exp.Subquery(this=item.this.copy()), alias=item.args["alias"].copy()))
    select.set("from_", None)
    select.set("joins", joins)
    dom.substitute(select)
    select.set("from_", exp.From(this=dom.item()))


def _add_key(select: exp.Select, inside: exp.Expr, name: str, block: Block, grouped: bool) -> None:
    """Add a key to the output, and to everything that must be done key by key."""
    # A constant in GROUP BY or PARTITION BY would be a position, and is the same for all rows anyway.
    varies = build.varies(inside)
    for window in queries.windows(select):
        if varies and not window.args.get("alias"):  # one that is based on a named window shares its partitions
            window.set("partition_by", [*(window.args.get("partition_by") or []), inside.copy()])
    group = select.args.get("group")
    if group is not None and varies:
        group.set("expressions", [*group.expressions, inside.copy()])
    elif grouped:
        select.set("group", exp.Group(expressions=[inside.copy()]))
    distinct = select.args.get("distinct")
    on = distinct.args.get("on") if distinct is not None else None
    if on is not None and varies:
        on.set("expressions", [inside.copy(), *on.expressions])
        order = select.args.get("order")
        if order is not None:
            order.set("expressions", [exp.Ordered(this=inside.copy(), nulls_first=False), *order.expressions])
    select.set("expressions", [*select.expressions, build.named(inside, name)])


def _set_operation(query: exp.SetOperation, names: list[str], block: Block, duplicates: bool) -> Detached:
    """Each side by itself if both have the same keys, else both over one domain."""
    if query.args.get("limit") or query.args.get("offset"):
        wrapped = limits.limited_union(query, names, block)
        return _limited(wrapped, names, block)
    query.set("order", None)
    sides = [detach(side.copy(), block, list(names), duplicates=duplicates) for side in (query.this, query.expression)]
    signatures = [[(ex.pg(k.outer), k.null_safe) for k in side.keys] for side in sides]
    if any(side.gate for side in sides) or not sides[0].keys or signatures[0] != signatures[1]:
        columns = distinct_columns(free_columns(query, block.names))
        sides = [_forced(side.copy(), names, block, columns) for side in (query.this, query.expression)]
    result = query.copy()
    result.set("this", _operand(sides[0].query))
    result.set("expression", _operand(sides[1].query))
    return Detached(result, names, sides[0].keys, [])


def _operand(query: exp.Query) -> exp.Query:
    return exp.Subquery(this=query) if isinstance(query, exp.SetOperation) or query.args.get("with_") else query


def _forced(query: exp.Expr, names: list[str], block: Block, columns: list[exp.Column]) -> Detached:
    """Detach with exactly these outer columns as keys."""
    query = queries.plain(query, block)
    queries.name_outputs(query, names)
    limited = query.args.get("limit") or query.args.get("offset")
    if isinstance(query, exp.SetOperation) and not limited:
        sides = [_forced(side.copy(), names, block, columns) for side in (query.this, query.expression)]
        result = query.copy()
        result.set("this", _operand(sides[0].query))
        result.set("expression", _operand(sides[1].query))
        return Detached(result, names, _null_safe(sides[0].keys), [])
    return _asked(query, names, block, columns)


def _null_safe(keys: Sequence[Key]) -> list[Key]:
    return [Key(k.name, k.outer, True) for k in keys]


def _asked(query: exp.Query, names: list[str], block: Block, columns: Sequence[exp.Column]) -> Detached:
    """`SELECT l.*, dom.* FROM dom CROSS JOIN LATERAL (query) l`: the most general form."""
    dom = domain(block, columns, duplicates=False)
    closed = is_closed(query, block.names)
    dom.substitute(query)
    alias = block.ctx.fresh("l")
    item: exp.Expr = build.derived(query, alias)
    if not closed:
        item = exp.Lateral(this=exp.Subquery(this=query), alias=exp.TableAlias(this=tr.identifier(alias)))
    values = [build.named(build.column(n, alias), n) for n in names]
    result = build.select(values, dom.item())
    result.set("joins", [exp.Join(this=item, kind="CROSS")])
    keys: list[Key] = []
    for number, column in enumerate(dom.columns):
        result.append("expressions", build.named(dom.own(number), f"pgt_k{number}"))
        keys.append(Key(f"pgt_k{number}", column.copy(), not block.never_null(column)))
    return Detached(result, names, keys, [])


def _limited(select: exp.Select, names: list[str], block: Block) -> Detached:
    """ORDER BY .. LIMIT n per outer row -> row_number() per key <= n."""
    numbered, keep = limits.number_rows(select, names, block)
    extra = [*names, *limits.COUNTERS]
    inner = detach(numbered, block, extra)
    alias = block.ctx.fresh("n")
    columns = [*names, *(k.name for k in inner.keys)]
    items = [build.named(build.column(c, alias), c) for c in columns]
    result = build.select(items, build.derived(inner.query, alias), keep(alias))
    return Detached(result, names, inner.keys, inner.gate)


def at_most_one_row(query: exp.Expr, block: Block) -> bool:
    """Whether a subquery certainly has no second row: a table's key is given, or all columns it groups by."""
    query = queries.unwrap(query)
    if not isinstance(query, exp.Select):
        return False
    if limits.literal(query.args.get("limit")) in (0, 1) and not limits.with_ties(query):
        return True
    if query.args.get("limit") or queries.windows(query):
        return False
    copy = query.copy()
    flat.flatten(copy)
    local = defined_by(copy)
    conditions = build.where_of(copy)
    fixed = [inside for inside, _, null_safe in split(conditions, local, block.names).equalities if not null_safe]
    fixed += [e for c in conditions if (e := _constant_equality(c)) is not None]
    group = query.args.get("group")
    if group is not None:
        return all(g.unnest() in fixed for g in group.expressions)
    items = flat.items(copy)
    if len(items) != 1:
        return False
    names = {c.name for c in fixed if isinstance(c, exp.Column)}
    return any(set(key) <= names for key in queries.unique_keys(items[0], block.ctx))


def _constant_equality(condition: exp.Expr) -> exp.Expr | None:
    if not isinstance(condition, exp.EQ) or has_query(condition):
        return None
    left, right = condition.this.unnest(), condition.expression.unnest()
    for inside, constant in ((left, right), (right, left)):
        if (
            isinstance(inside, exp.Column)
            and not build.varies(constant)
            and not isinstance(constant, (exp.Any, exp.All))
        ):
            return inside
    return None


__all__ = ["Detached", "Key", "at_most_one_row", "detach", "detach_select", "never_null", "split"]
