"""Which names a FROM clause defines, and which columns of a query belong to a query around it.

`t.x` belongs to the nearest enclosing FROM clause that defines `t`. A merged column of a USING join has no table; it
is noted as `.x`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlglot import exp

from runnel.sql.rewrite.tree import is_join_group, is_query

Names = frozenset[str]
NONE: Names = frozenset()


def defined_by(select: exp.Select) -> Names:
    """The names that a SELECT's FROM clause defines.

    >>> from sqlglot import parse_one
    >>> sorted(defined_by(parse_one("SELECT 1 FROM a JOIN (b AS c JOIN d USING (x)) ON true")))
    ['.x', 'a', 'c', 'd']
    """
    source = select.args.get("from_")
    names = set(item_names(source.this)) if source is not None else set()
    return frozenset(names | _joined(select.args.get("joins")))


def item_names(item: exp.Expr) -> Names:
    """The names that one item of a FROM clause defines, with those of the joins inside its parentheses."""
    alias = item.args.get("alias")
    names: set[str] = set()
    if alias is not None and alias.name:
        names.add(alias.name)
    elif isinstance(item, exp.Subquery):
        names |= item_names(item.this)
    elif isinstance(item, exp.Table):
        names.add(item.name)
    return frozenset(names | _joined(item.args.get("joins")))


def _joined(joins: Iterable[exp.Join] | None) -> set[str]:
    names: set[str] = set()
    for join in joins or ():
        names |= item_names(join.this)
        names |= {f".{i.name}" for i in join.args.get("using") or []}
    return names


def name_of(column: exp.Column) -> str:
    """Under which name a FROM clause would define the column."""
    return column.table or f".{column.name}"


def free_columns(node: exp.Expr, outer: Names, bound: Names = NONE) -> list[exp.Column]:
    """The columns below a node that belong to an enclosing FROM clause with the names `outer`.

    >>> from sqlglot import parse_one
    >>> inner = parse_one("SELECT b.x FROM b WHERE b.y = a.y AND EXISTS (SELECT 1 FROM c WHERE c.z = a.z + b.z)")
    >>> [c.sql() for c in free_columns(inner, frozenset({"a"}))]
    ['a.y', 'a.z']
    """
    return [c for c in _unbound(node, bound) if name_of(c) in outer]


def is_closed(node: exp.Expr, outer: Names, bound: Names = NONE) -> bool:
    """Whether nothing below a node belongs to the enclosing FROM clause."""
    return not free_columns(node, outer, bound)


def _unbound(node: exp.Expr, bound: Names) -> Iterator[exp.Column]:
    if isinstance(node, exp.Column):
        if name_of(node) not in bound:
            yield node
    elif isinstance(node, exp.Select):
        yield from _unbound_in_select(node, bound)
    else:
        for child in node.iter_expressions():
            yield from _unbound(child, bound)


def _unbound_in_select(select: exp.Select, bound: Names) -> Iterator[exp.Column]:
    inside = bound | defined_by(select)
    for key, value in select.args.items():
        if key == "with_" and value is not None:
            yield from _unbound(value, bound)
        elif key == "from_" and value is not None:
            yield from _unbound_in_item(value.this, bound, inside)
        elif key == "joins":
            yield from _unbound_in_joins(value, bound, inside)
        elif isinstance(value, exp.Expr):
            yield from _unbound(value, inside)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, exp.Expr):
                    yield from _unbound(item, inside)


def _unbound_in_joins(joins: Iterable[exp.Join] | None, bound: Names, inside: Names) -> Iterator[exp.Column]:
    for join in joins or ():
        yield from _unbound_in_item(join.this, bound, inside)
        if join.args.get("on") is not None:
            yield from _unbound(join.args["on"], inside)


def _unbound_in_item(item: exp.Expr, bound: Names, inside: Names) -> Iterator[exp.Column]:
    if is_join_group(item) and not item.alias:
        yield from _unbound_in_item(item.this, bound, inside)
    elif isinstance(item, exp.Subquery):
        # A derived table sees the queries around it, not its neighbours.
        yield from _unbound(item.this, bound)
    elif isinstance(item, exp.Table):
        yield from _unbound(item.this, inside)
    else:
        for child in item.iter_expressions():
            yield from _unbound(child, inside)
    yield from _unbound_in_joins(item.args.get("joins"), bound, inside)


def has_query(node: exp.Expr) -> bool:
    """Whether an expression contains a subquery."""
    return any(is_query(n) or isinstance(n, exp.Values) for n in node.walk())


def clauses(select: exp.Select) -> Iterator[exp.Expr]:
    """The parts of a SELECT that hold expressions: all but FROM, joins and WITH."""
    yield from select.expressions
    for key in ("where", "group", "having", "distinct", "order", "limit", "offset"):
        part = select.args.get(key)
        if isinstance(part, exp.Expr):
            yield part
    yield from select.args.get("windows") or []
