"""Windows, DISTINCT ON and LIMIT, each in a block of its own over a derived table `s`.

    SELECT a, rank() OVER (PARTITION BY a ORDER BY sum(b)) FROM t GROUP BY a, c ORDER BY a LIMIT 3

becomes

    SELECT s.x0 AS a, s.x1 AS rank FROM (
        SELECT s.x0 AS x0, rank() OVER (PARTITION BY s.x0 ORDER BY s.x1) AS x1 FROM (
            SELECT a AS x0, sum(b) AS x1 FROM t GROUP BY a, c) AS s) AS s
    ORDER BY s.x0 LIMIT 3

so that what lies below is a stage like any other, and the block itself is a function of whole partitions of its
rows. Windows over different partitions are put on top of each other; one whose partitions refine another's shares
its block.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql import registry
from runnel.sql.aggregates import is_aggregate
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite.context import Context

ALIAS = "s"


def rewrite(tree: exp.Query, _: Context) -> exp.Query:
    """The query with every such block layered."""
    tree = tree.copy()
    holder = exp.Subquery(this=tree)
    for query in reversed(list(holder.find_all(exp.Select, exp.SetOperation))):
        layered = layers(query)
        if layered is not query:
            query.replace(layered)
    result = holder.this
    assert isinstance(result, exp.Query)
    return result


def windows_of(select: exp.Select) -> list[exp.Window]:
    """The window calls of a block's own select list and order."""
    parts = [*select.expressions, *([select.args["order"]] if select.args.get("order") else [])]
    return [n for p in parts for n in p.walk(prune=lambda n: isinstance(n, exp.Query)) if isinstance(n, exp.Window)]


def limited(query: exp.Query) -> bool:
    """Whether only some of the query's rows are kept."""
    return bool(query.args.get("limit") or query.args.get("offset"))


def layers(query: exp.Query) -> exp.Query:
    """One block as a stack of blocks, each with a single concern."""
    if limited(query):
        return _moved_ctes(query, _limit(query))
    if not isinstance(query, exp.Select):
        return query
    distinct = query.args.get("distinct")
    has_windows = bool(windows_of(query))
    if distinct is not None and distinct.args.get("on"):
        return _moved_ctes(query, _distinct_on(query))
    if distinct is not None and has_windows:
        return _moved_ctes(query, _distinct(query))
    if has_windows and not _is_layered(query):
        return _moved_ctes(query, _windows(query))
    return query


def _is_layered(select: exp.Select) -> bool:
    source = select.args["from_"].this if select.args.get("from_") else None
    plain = not any(select.args.get(k) for k in ("joins", "where", "group", "having", "windows"))
    return plain and isinstance(source, exp.Subquery) and source.alias == ALIAS and len(_key_sets(select)) == 1


def _moved_ctes(query: exp.Query, outer: exp.Query) -> exp.Query:
    """CTEs are visible below, so they stay at the top."""
    clause = query.args.get("with_")
    if clause is not None:
        for inner in outer.find_all(exp.Query):
            if inner.args.get("with_") == clause:
                inner.set("with_", None)
        outer.set("with_", clause.copy())
    return outer


# -- LIMIT, DISTINCT ON, DISTINCT ------------------------------------------------------------------------------


def _limit(query: exp.Query) -> exp.Query:
    order = query.args.get("order")
    if order is None:
        raise NotDifferentiable(registry.UNRULED, "LIMIT without ORDER BY")
    inner = query.copy()
    for key in ("order", "limit", "offset"):
        inner.set(key, None)
    columns: Callable[[exp.Expr], exp.Expr]
    if isinstance(inner, exp.Select):
        distinct = inner.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            inner.set("order", order.copy())
        names = [e.alias_or_name for e in inner.expressions]
        atoms = _Atoms([e.unalias() for e in inner.expressions])
        columns = atoms.column
        ordered = [_reordered(o, columns) for o in order.expressions]
        inner.set("expressions", atoms.items())
        outputs = [_named(_column(i), n) for i, n in enumerate(names)]
    else:
        names = _names_of_union(inner)
        outputs = [_named(exp.column(exp.to_identifier(n, quoted=True), table=ALIAS), n) for n in names]
        ordered = [_reordered(o, lambda e: _by_position(e, names)) for o in order.expressions]
    below = layers(inner) if isinstance(inner, exp.Select) else inner
    outer = _over(below, outputs)
    outer.set("order", exp.Order(expressions=ordered))
    for key in ("limit", "offset"):
        if query.args.get(key):
            outer.set(key, query.args[key].copy())
    return outer


def _names_of_union(query: exp.Query) -> list[str]:
    first: exp.Query = query
    while isinstance(first, (exp.SetOperation, exp.Subquery)):
        first = first.this
    return [e.alias_or_name for e in first.expressions]


def _by_position(node: exp.Expr, names: list[str]) -> exp.Expr:
    if isinstance(node, exp.Literal) and not node.is_string:
        return exp.column(exp.to_identifier(names[int(str(node.this)) - 1], quoted=True), table=ALIAS)
    if isinstance(node, exp.Column) and node.name in names:
        return exp.column(exp.to_identifier(node.name, quoted=True), table=ALIAS)
    if isinstance(node, exp.Cast):
        return exp.Cast(this=_by_position(node.this, names), to=node.to.copy())
    raise NotDifferentiable(registry.UNRULED, "ORDER BY of a set operation by an expression")


def _reordered(ordered: exp.Expr, column: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    copy = ordered.copy()
    if isinstance(copy, exp.Ordered):
        copy.set("this", column(copy.this))
        return copy
    return column(copy)


def _distinct_on(select: exp.Select) -> exp.Query:
    inner = select.copy()
    on = [e.copy() for e in select.args["distinct"].args["on"].expressions]
    order = select.args.get("order")
    inner.set("distinct", None)
    inner.set("order", None)
    names = [e.alias_or_name for e in inner.expressions]
    atoms = _Atoms([e.unalias() for e in inner.expressions])
    keys = [atoms.column(e) for e in on]
    ordered = [_reordered(o, atoms.column) for o in (order.expressions if order else [])]
    inner.set("expressions", atoms.items())
    outer = _over(layers(inner), [_named(_column(i), n) for i, n in enumerate(names)])
    outer.set("distinct", exp.Distinct(on=exp.Tuple(expressions=keys)))
    if ordered:
        outer.set("order", exp.Order(expressions=ordered))
    return outer


def _distinct(select: exp.Select) -> exp.Query:
    inner = select.copy()
    inner.set("distinct", None)
    inner.set("order", None)
    names = [e.alias_or_name for e in inner.expressions]
    atoms = _Atoms([e.unalias() for e in inner.expressions])
    inner.set("expressions", atoms.items())
    outer = _over(layers(inner), [_named(_column(i), n) for i, n in enumerate(names)])
    outer.set("distinct", exp.Distinct())
    return outer


# -- windows ---------------------------------------------------------------------------------------------------


def _windows(select: exp.Select) -> exp.Query:
    inner = select.copy()
    inner.set("order", None)
    inner.set("windows", None)
    named = {w.name: w for w in select.args.get("windows") or []}
    names = [e.alias_or_name for e in select.expressions]
    atoms = _Atoms([])
    group = select.args.get("group")
    grouped = [g.unnest() for g in group.expressions] if group else []
    items = [_over_atoms(_expanded(e.unalias(), named), atoms, grouped) for e in select.expressions]
    if not atoms.found:
        atoms.column(exp.Boolean(this=True))
    inner.set("expressions", atoms.items())
    below: exp.Query = inner
    key_sets = _minimal([_keys(w) for i in items for w in i.find_all(exp.Window)])
    width = len(atoms.found)
    for keys in key_sets[:-1]:
        # Windows over other partitions are computed first; the block above sees them as columns.
        found = [w for i in items for w in i.find_all(exp.Window) if keys <= _keys(w)]
        computed: dict[exp.Expr, exp.Expr] = {w: _column(width + n) for n, w in enumerate(dict.fromkeys(found))}
        items = [ex.rewrite(i, computed.get) for i in items]
        passed = [_named(_column(i), f"x{i}") for i in range(width)]
        below = _over(below, [*passed, *(_named(w, c.name) for w, c in computed.items())])
        width += len(computed)
    return _over(below, [_named(i, n) for i, n in zip(items, names, strict=True)])


def _expanded(expression: exp.Expr, named: dict[str, exp.Window]) -> exp.Expr:
    """Calls over named windows, with the definition written into each."""

    def resolve(window: exp.Expr) -> exp.Window:
        assert isinstance(window, exp.Window)
        base = window.args.get("alias")
        copy = window.copy()
        if base is None:
            return copy
        below = resolve(named[base.name])
        copy.set("alias", None)
        for key in ("partition_by", "order", "spec"):
            if not copy.args.get(key) and below.args.get(key):
                value = below.args[key]
                copy.set(key, [v.copy() for v in value] if isinstance(value, list) else value.copy())
        return copy

    return ex.rewrite(expression, lambda node: resolve(node) if isinstance(node, exp.Window) else None)


def _over_atoms(expression: exp.Expr, atoms: _Atoms, grouped: list[exp.Expr]) -> exp.Expr:
    """The expression with everything below its windows computed by the block underneath."""

    def change(node: exp.Expr) -> exp.Expr | None:
        if isinstance(node, exp.Window):
            return _window_over_atoms(node, change, atoms)
        if node.unnest() in grouped:
            return atoms.column(node)
        if (is_aggregate(node) or isinstance(node, exp.Column)) and not node.find(exp.Window):
            return atoms.column(node)
        return None

    return ex.rewrite(expression, change)


def _window_over_atoms(window: exp.Window, change: Callable[[exp.Expr], exp.Expr | None], atoms: _Atoms) -> exp.Expr:
    copy = window.copy()
    call = copy.this
    holder = call.this if isinstance(call, exp.Filter) else call
    if isinstance(call, exp.Filter):
        call.set("expression", ex.rewrite(call.expression, change))
    for key, value in list(holder.args.items()):
        if isinstance(value, exp.Expr):
            holder.set(key, ex.rewrite(value, change))
        elif isinstance(value, list):
            holder.set(key, [ex.rewrite(v, change) if isinstance(v, exp.Expr) else v for v in value])
    # Whole expressions, because partitions are found by columns.
    copy.set("partition_by", [atoms.column(p) for p in copy.args.get("partition_by") or []])
    order = copy.args.get("order")
    if order is not None:
        copy.set("order", ex.rewrite(order, change))
    return copy


def _keys(window: exp.Window) -> frozenset[str]:
    return frozenset(ex.pg(p) for p in window.args.get("partition_by") or [])


def _key_sets(select: exp.Select) -> list[frozenset[str]]:
    return _minimal([_keys(w) for w in windows_of(select)])


def _minimal(sets: list[frozenset[str]]) -> list[frozenset[str]]:
    """The sets that contain no other: partitions by a superset lie inside partitions by the set."""
    distinct = list(dict.fromkeys(sets))
    return [s for s in distinct if not any(other < s for other in distinct)]


# -- details ---------------------------------------------------------------------------------------------------


class _Atoms:
    """Expressions that the block underneath computes, as columns x0, x1, ... of `s`."""

    def __init__(self, first: list[exp.Expr]) -> None:
        self.found: list[exp.Expr] = [e.copy() for e in first]

    def column(self, expression: exp.Expr) -> exp.Expr:
        """The column that holds an expression."""
        bare = expression.unnest()
        for i, known in enumerate(self.found):
            if known.unnest() == bare:
                return _column(i)
        self.found.append(bare.copy())
        return _column(len(self.found) - 1)

    def items(self) -> list[exp.Expr]:
        """The select list of the block underneath."""
        return [_named(e, f"x{i}") for i, e in enumerate(self.found)]


def _column(i: int) -> exp.Column:
    return exp.column(f"x{i}", table=ALIAS)


def _named(expression: exp.Expr, name: str) -> exp.Expr:
    return exp.alias_(expression.copy(), name, quoted=True)


def _over(below: exp.Query, outputs: list[exp.Expr]) -> exp.Select:
    derived = exp.Subquery(this=below, alias=exp.TableAlias(this=exp.to_identifier(ALIAS)))
    return exp.Select(expressions=outputs, from_=exp.From(this=derived))
