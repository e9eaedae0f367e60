"""Set-returning functions move from the SELECT list to the FROM clause.

    SELECT t.a, unnest(t.b) + 1 FROM t     ->   SELECT t.a, f.c1 + 1 FROM t CROSS JOIN LATERAL unnest(t.b) AS f(c1)
    SELECT unnest(t.a), unnest(t.b) FROM t ->   .. FROM t CROSS JOIN ROWS FROM (unnest(t.a), unnest(t.b)) AS f(c1, c2)

PostgreSQL runs the functions of one list in lockstep and pads the shorter ones with NULL, as ROWS FROM does; a call
inside another call's arguments runs before it. All of them run after grouping and window functions, which therefore
move into a derived table. Only a function in GROUP BY runs before the groups are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context

_UPPER = ("expressions", "order", "distinct")
"""The clauses that see the rows which set-returning functions make."""


def rewrite(tree: exp.Query, ctx: Context) -> exp.Query:
    """Move every set-returning function of a query into a FROM clause."""
    return tr.change_queries(tree.copy(), lambda query: _block(query, ctx))


def _block(query: exp.Query, ctx: Context) -> exp.Query:
    if not isinstance(query, exp.Select) or not _calls(tr.block_nodes(query, "group", *_UPPER), ctx):
        return query
    types = [c.type for c in tr.column_types(query, query, ctx)]
    place = query
    select = query.copy()
    _move(select, place, ("group",), ("group", "having", *_UPPER), ctx)
    if _calls(tr.block_nodes(select, *_UPPER), ctx):
        windows = any(isinstance(n, exp.Window) for n in tr.block_nodes(select, *_UPPER))
        if windows or tr.is_grouped(select, ctx):
            select = _split(select, ctx)
        _move(select, place, _UPPER, _UPPER, ctx)
    order = select.args.get("order")
    if order is not None and not (select.args.get("limit") or select.args.get("offset") or tr.is_array_query(place)):
        distinct = select.args.get("distinct")
        if distinct is None or not distinct.args.get("on"):
            select.set("order", None)
    if [c.type for c in tr.column_types(select, place, ctx)] != types:
        raise NotDifferentiable("a set-returning function that returns rows, used as one value")
    return select


def _calls(nodes: Iterable[exp.Expr], ctx: Context) -> list[exp.Expr]:
    """The calls of set-returning functions, with their schemas."""
    return [tr.whole_call(n) for n in nodes if (name := tr.function_name(n)) and ctx.is_set_returning(name)]


def _move(select: exp.Select, place: exp.Expr, where: tuple[str, ...], replaced: tuple[str, ...], ctx: Context) -> None:
    """Move the calls in some clauses to FROM, innermost calls first, and put columns in their place."""
    while calls := _calls(tr.block_nodes(select, *where), ctx):
        ready = {tr.text(c): c for c in calls if len(_calls(tr.own_nodes(c), ctx)) == 1}
        alias = ctx.fresh("f")
        fields = {text: _fields(call, select, place, ctx) for text, call in ready.items()}
        names = {}
        count = 0
        for text, found in fields.items():
            names[text] = [f"c{count + i + 1}" for i in range(len(found))]
            count += len(found)
        listed = [n for part in names.values() for n in part]
        _join(select, list(ready), alias, listed)
        change = _to_columns(fields, names, alias)
        for clause in replaced:
            value = select.args.get(clause)
            if isinstance(value, list):
                select.set(clause, [ex.rewrite(v, change) for v in value])
            elif value is not None:
                select.set(clause, ex.rewrite(value, change))


def _to_columns(
    fields: dict[str, list[str]], names: dict[str, list[str]], alias: str
) -> Callable[[exp.Expr], exp.Expr | None]:
    def change(node: exp.Expr) -> exp.Expr | None:
        if isinstance(node, exp.Alias):
            return exp.alias_(ex.rewrite(node.this, change), node.args["alias"].copy(), copy=False)
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
            text = tr.text(node.this.unnest())
            if text in fields:
                return tr.column(names[text][fields[text].index(node.expression.name)], alias)
        text = tr.text(node) if isinstance(node, (exp.Func, exp.Dot)) else ""
        if text in fields:
            if len(names[text]) != 1:
                raise NotDifferentiable("a set-returning function that returns rows, used as one value")
            return tr.column(names[text][0], alias)
        return None

    return change


def _fields(call: exp.Expr, select: exp.Select, place: exp.Expr, ctx: Context) -> list[str]:
    """The names of the columns that a function gives in FROM."""
    probe = exp.Select(expressions=[exp.Column(this=exp.Star(), table=tr.identifier("pgt_p"))])
    for key in ("with_", "from_", "joins"):
        value = select.args.get(key)
        if value is not None:
            probe.set(key, [v.copy() for v in value] if isinstance(value, list) else value.copy())
    _join(probe, [tr.text(call)], "pgt_p", [])
    return [c.name for c in tr.described(probe, place, ctx)]


def _join(select: exp.Select, calls: list[str], alias: str, columns: list[str]) -> None:
    join = tr.function_join(calls, alias, columns)
    source = select.args.get("from_")
    if source is None:
        item = join.this
        if isinstance(item, exp.Lateral):
            item = tr.function_item(calls[0], alias, columns)
        select.set("from_", exp.From(this=item))
    else:
        select.set("joins", [*(select.args.get("joins") or []), join])


def _split(select: exp.Select, ctx: Context) -> exp.Select:
    """Move all that runs before the set-returning functions into a derived table."""
    alias = ctx.fresh("s")
    inner = select.copy()
    for key in ("with_", "distinct", "order", "limit", "offset"):
        inner.set(key, None)
    atoms: dict[str, exp.Expr] = {}

    def change(node: exp.Expr) -> exp.Expr | None:
        if isinstance(node, (exp.Alias, exp.Ordered, exp.Order, exp.Distinct)) or not tr.varies(node):
            return None
        if isinstance(node, (exp.Tuple, exp.Identifier)) or _calls(tr.own_nodes(node), ctx):
            return None
        text = tr.text(node.unnest())
        atoms.setdefault(text, node.unnest())
        return tr.column(f"a{list(atoms).index(text) + 1}", alias)

    names = [tr.output_name(item) for item in select.expressions]
    items = [ex.rewrite(item.unalias(), change) for item in select.expressions]
    outer = exp.Select(expressions=[tr.named(i, n) if n else i for i, n in zip(items, names, strict=True)])
    for key in ("order", "distinct"):
        if select.args.get(key) is not None:
            outer.set(key, ex.rewrite(select.args[key], change))
    for key in ("with_", "limit", "offset"):
        outer.set(key, select.args.get(key))
    inner.set("expressions", [tr.named(e, f"a{i + 1}") for i, e in enumerate(atoms.values())])
    if not atoms:
        inner.set("expressions", [tr.named(exp.Literal.number(1), "a1")])
        if not inner.args.get("group") and not inner.args.get("having") and tr.is_grouped(select, ctx):
            inner.set("having", exp.Having(this=exp.true()))
    outer.set("from_", exp.From(this=tr.derived(inner, alias)))
    return outer
