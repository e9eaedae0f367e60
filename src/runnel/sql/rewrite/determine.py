"""Make every result total that PostgreSQL leaves to chance.

    SELECT o.id, o.price FROM o ORDER BY o.price LIMIT 3   ->   .. ORDER BY o.price, o.id LIMIT 3

The query allows any of the cheapest orders when prices tie; the rewritten one says which. Each result of the refined
query is a result that the original could have given, so it may be maintained in its place. Rows that tie in all
columns added here are equal wherever the block looks at them, and which of them comes first makes no difference.

What is refined: ORDER BY under LIMIT, OFFSET and in ARRAY (..), DISTINCT ON, aggregates that depend on the order of
their input, and window functions that count rows. Functions that treat ties alike (rank, a sum over a RANGE frame)
stay as they are. A LIMIT that has nothing to choose is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from runnel.sql.calls import is_row, row_items
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite import windows
from runnel.sql.rewrite.context import BUILT_IN_AGGREGATES, Context
from runnel.sql.rewrite.qualify import ORDER_SENSITIVE, feeds_aggregate
from runnel.sql.rewrite.single_row import drop_limit
from runnel.sql.rewrite.totality import is_total, is_total_input, key


def rewrite(tree: exp.Query, ctx: Context) -> exp.Query:
    """Refine a whole query."""
    return tr.change_queries(tree.copy(), lambda query: _refine(query, ctx))


def _refine(query: exp.Query, ctx: Context) -> exp.Query:
    drop_limit(query, ctx)
    if not isinstance(query, exp.Select):
        return _limit_of_set_operation(query, ctx) if _is_cut(query) else query
    _take_over_order(query, ctx)
    for call in tr.aggregates(tr.block_nodes(query), ctx):
        _aggregate(call, query, ctx)
    windows.refine(query, ctx)
    distinct = query.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        _distinct_on(query, distinct.args["on"].expressions, ctx)
    elif _is_cut(query):
        _limit(query, ctx)
    return query


def _is_cut(query: exp.Query) -> bool:
    limit = query.args.get("limit")
    options = limit.args.get("limit_options") if limit is not None else None
    if options is not None and options.args.get("with_ties"):
        return False
    return limit is not None or query.args.get("offset") is not None or tr.is_array_query(query)


def _cause(query: exp.Query) -> str:
    return "ARRAY (..)" if tr.is_array_query(query) else "LIMIT"


def _limit(select: exp.Select, ctx: Context) -> None:
    ordered = _order_of(select)
    if is_total(select, (o.this for o in ordered), ctx):
        return
    added = _outputs(select, ordered, ctx)
    if added:
        names = ", ".join(tr.text(o.this).replace('"', "") for o in added)
        ctx.note(
            f"ORDER BY does not decide ties for {_cause(select)}: they are broken by the remaining columns ({names})"
        )
        select.set("order", exp.Order(expressions=[*ordered, *added]))


def _distinct_on(select: exp.Select, keys: Sequence[exp.Expr], ctx: Context) -> None:
    ordered = _order_of(select) or [exp.Ordered(this=k.copy(), nulls_first=False) for k in keys]
    added = [] if is_total(select, (o.this for o in ordered), ctx) else _outputs(select, ordered, ctx)
    if added:
        names = ", ".join(tr.text(o.this).replace('"', "") for o in added)
        ctx.note(f"ORDER BY does not decide which row DISTINCT ON keeps: ties are broken by ({names})")
    select.set("order", exp.Order(expressions=[*ordered, *added]))


def _order_of(query: exp.Query) -> list[exp.Ordered]:
    order = query.args.get("order")
    return list(order.expressions) if order is not None else []


def _outputs(select: exp.Select, ordered: Sequence[exp.Ordered], ctx: Context) -> list[exp.Ordered]:
    """The output columns that an order does not mention yet."""
    known = {key(o.this) for o in ordered}
    types = tr.column_types(select, select, ctx)
    plain = select.args.get("distinct") is not None and not select.args["distinct"].args.get("on")
    added = []
    for item, column in zip(select.expressions, types, strict=True):
        expression = item.unalias()
        if key(expression) in known or not tr.varies(expression):
            continue
        known.add(key(expression))
        added.append(tr.ascending(expression, plain or tr.is_orderable(column.type)))
    return added


def _limit_of_set_operation(query: exp.Query, ctx: Context) -> exp.Query:
    ordered = _order_of(query)
    known = {str(o.this.this) for o in ordered if isinstance(o.this, exp.Literal)}
    types = tr.column_types(query, query, ctx)
    outputs = tr.output_names(query)
    missing = [i for i in range(len(types)) if str(i + 1) not in known]
    if not missing:
        return query
    names = ", ".join(outputs[i] for i in missing)
    ctx.note(f"ORDER BY does not decide ties for {_cause(query)}: they are broken by the remaining columns ({names})")
    if all(tr.is_orderable(types[i].type) for i in missing):
        added = [tr.ascending(exp.Literal.number(i + 1)) for i in missing]
        query.set("order", exp.Order(expressions=[*ordered, *added]))
        return query
    # Positions cannot be cast: the order moves to a block around the set operation.
    alias = ctx.fresh("u")
    columns = [tr.column(name, alias) for name in outputs]
    outer = exp.Select(expressions=[tr.named(c, c.name) for c in columns])
    for clause in ("with_", "limit", "offset"):
        outer.set(clause, query.args.get(clause))
        query.set(clause, None)
    query.set("order", None)
    moved = [o.copy() for o in ordered]
    for item in moved:
        item.set("this", columns[int(item.this.this) - 1].copy())
    moved += [tr.ascending(columns[i], tr.is_orderable(types[i].type)) for i in missing]
    outer.set("order", exp.Order(expressions=moved))
    outer.set("from_", exp.From(this=tr.derived(query.copy(), alias)))
    return outer


# -- aggregates ----------------------------------------------------------------------------------------------


def _aggregate(call: exp.Expr, select: exp.Select, ctx: Context) -> None:
    name = tr.function_name(call) or ""
    if tr.whole_call(call).find(exp.WithinGroup):
        return
    if name not in ORDER_SENSITIVE and name in BUILT_IN_AGGREGATES:
        return
    arguments, order, distinct = _arguments(call)
    ordered = list(order.expressions) if order is not None else []
    if not arguments or is_total_input(select, (o.this for o in ordered), ctx):
        return
    known = {key(o.this) for o in ordered}
    # Rows and VARIADIC arrays are compared by their parts; DISTINCT allows no other keys, and sorts by its arguments.
    atoms = [p for a in arguments for p in _parts(a) if p is a or not distinct]
    wanted = [a for a in atoms if key(a) not in known and tr.varies(a)]
    if not wanted:
        return
    added = tr.sortable(wanted, select, ctx)
    if not distinct:
        shown = tr.text(call).replace('"', "")
        ctx.note(f"the result of {shown} depends on the order of its input: ties are broken by its arguments")
    _set_order(call, [*ordered, *added])


def _arguments(call: exp.Expr) -> tuple[list[exp.Expr], exp.Order | None, bool]:
    """The arguments of an aggregate, its ORDER BY, and whether it is DISTINCT."""
    first = [call.this] if isinstance(call.this, exp.Expr) and not isinstance(call, exp.Anonymous) else []
    parts: list[exp.Expr] = [*first, *call.expressions]
    order = None
    distinct = False
    arguments: list[exp.Expr] = []
    for part in parts:
        inner = part
        if isinstance(inner, exp.Order):
            order, inner = inner, inner.this
        if isinstance(inner, exp.Distinct):
            distinct = True
            arguments += inner.expressions
        elif isinstance(inner, exp.Star):
            return [], order, distinct
        else:
            arguments.append(inner)
    separator = call.args.get("separator")
    if separator is not None:
        arguments.append(separator)
    return arguments, order, distinct


def _parts(argument: exp.Expr) -> list[exp.Expr]:
    """An argument, or what it is made of if it has no type of its own."""
    if isinstance(argument, exp.Variadic):
        return _parts(argument.this)
    return [p for item in row_items(argument) for p in _parts(item)] if is_row(argument) else [argument]


def _set_order(call: exp.Expr, ordered: list[exp.Ordered]) -> None:
    """Give an aggregate call an ORDER BY; sqlglot keeps it around the last argument."""
    last = call.expressions[-1] if isinstance(call, exp.Anonymous) else call.this
    bare = last.this if isinstance(last, exp.Order) else last
    last.replace(exp.Order(this=bare.copy(), expressions=[o.copy() for o in ordered]))


def _take_over_order(select: exp.Select, ctx: Context) -> None:
    """`array_agg(q.x) FROM (SELECT .. ORDER BY y) q` -> `array_agg(q.x ORDER BY q.y) FROM (SELECT ..) q`."""
    source = select.args.get("from_")
    item = source.this if source is not None else None
    if not isinstance(item, exp.Subquery) or not isinstance(item.this, exp.Select):
        return
    inner = item.this
    ordered = _order_of(inner)
    distinct = inner.args.get("distinct")
    if not ordered or not feeds_aggregate(inner) or _is_cut(inner) or inner.args.get("limit"):
        return
    places = []
    for part in ordered:
        place = next((i for i, e in enumerate(inner.expressions) if key(e.unalias()) == key(part.this)), None)
        if place is None:
            inner.append("expressions", tr.named(part.this, ctx.fresh("o")))
            place = len(inner.expressions) - 1
        places.append(place)
    alias = item.args["alias"]
    listed = [c.name for c in alias.args.get("columns") or []]
    names = listed + tr.output_names(inner)[len(listed) :]
    moved = [o.copy() for o in ordered]
    for part, place in zip(moved, places, strict=True):
        part.set("this", tr.column(names[place], alias.name))
    for call in tr.aggregates(tr.block_nodes(select), ctx):
        _, order, is_distinct = _arguments(call)
        if tr.function_name(call) in ORDER_SENSITIVE and order is None and not is_distinct:
            _set_order(call, moved)
    if distinct is None or not distinct.args.get("on"):
        inner.set("order", None)
