"""Walking over a query block by block: what belongs to a SELECT itself, and what to the queries inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from runnel.plan import expr as ex


def is_join_group(node: object) -> bool:
    """Whether a node is a join in parentheses, `(a JOIN b ON ..)`, which sqlglot calls a subquery."""
    return isinstance(node, exp.Subquery) and isinstance(node.this, (exp.Table, exp.Subquery, exp.Values, exp.Lateral))


def is_query(node: object) -> bool:
    """Whether a node is a query of its own, not a join in parentheses."""
    return isinstance(node, exp.Query) and not isinstance(node, exp.Table) and not is_join_group(node)


def own_nodes(root: exp.Expr, *, into: bool = False) -> Iterator[exp.Expr]:
    """A node and all below it that belong to the same SELECT; nested queries are yielded, but not entered.

    >>> from sqlglot import parse_one
    >>> [n.sql() for n in own_nodes(parse_one("SELECT a.x FROM a WHERE EXISTS (SELECT b.y FROM b)"))
    ...  if isinstance(n, exp.Column)]
    ['a.x']
    """
    yield root
    if is_query(root) and into is False and root.parent is not None:
        return
    for child in _children(root):
        yield from _below(child)


def _below(node: exp.Expr) -> Iterator[exp.Expr]:
    yield node
    if is_query(node):
        return
    for child in _children(node):
        yield from _below(child)


def block_nodes(select: exp.Select, *keys: str) -> Iterator[exp.Expr]:
    """The nodes of a SELECT block, without its WITH clause; `keys` narrow it to some clauses."""
    for key, value in select.args.items():
        if key == "with_" or (keys and key not in keys):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, exp.Expr):
                yield from _below(child)


def _children(node: exp.Expr) -> Iterator[exp.Expr]:
    for value in node.args.values():
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, exp.Expr):
                yield child


def nested_queries(query: exp.Query) -> list[exp.Query]:
    """The queries directly inside a query: its CTEs, derived tables, subqueries, or the members of a set operation."""
    found: list[exp.Query] = []
    for child in _children(query):
        found += [n for n in _below(child) if is_query(n) and isinstance(n, exp.Query)]
    return found


def change_queries(tree: exp.Query, change: Callable[[exp.Query], exp.Query]) -> exp.Query:
    """Apply `change` to every SELECT and set operation, innermost first."""
    for inner in nested_queries(tree):
        change_queries(inner, change)
    if isinstance(tree, exp.Subquery):
        return tree
    changed = change(tree)
    if changed is not tree and tree.parent is not None:
        tree.replace(changed)
    return changed


def leaf_items(select: exp.Select) -> list[exp.Expr]:
    """The tables, derived tables and functions of a FROM clause, left to right."""
    source = select.args.get("from_")
    if source is None:
        return []
    found = list(_leaves(source.this))
    for join in select.args.get("joins") or []:
        found += _leaves(join.this)
    return found


def _leaves(item: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(item, exp.Subquery) and is_join_group(item) and not item.alias:
        yield from _leaves(item.this)
    else:
        yield item
    for join in item.args.get("joins") or []:
        yield from _leaves(join.this)


def joins_of(select: exp.Select) -> Iterator[exp.Join]:
    """Every join of a FROM clause, also those in parentheses."""
    for node in block_nodes(select, "from_", "joins"):
        if isinstance(node, exp.Join):
            yield node


def merged_columns(select: exp.Select) -> frozenset[str]:
    """The names that USING joins merge: they belong to no table."""
    return frozenset(i.name for join in joins_of(select) for i in join.args.get("using") or [])


def function_name(node: exp.Expr) -> str | None:
    """The name of a called function, in lower case unless it was quoted."""
    if isinstance(node, exp.Anonymous):
        name = node.this
        return name.name if isinstance(name, exp.Identifier) else str(name).lower()
    if isinstance(node, exp.Unnest):
        return "unnest"
    if isinstance(node, exp.Func) and not isinstance(node, (exp.Cast, exp.Case, exp.And, exp.Or, exp.Array)):
        return node.sql_name().lower()
    return None


def output_name(item: exp.Expr) -> str:
    """The name under which a select item is visible; empty when it has none."""
    return item.output_name


def first_select(query: exp.Query) -> exp.Select:
    """The SELECT that gives a query its column names."""
    while not isinstance(query, exp.Select):
        inner = query.this
        assert isinstance(inner, exp.Query)
        query = inner
    return query


def output_names(query: exp.Query) -> list[str]:
    """The names of a query's result columns."""
    return [output_name(item) for item in first_select(query).expressions]


def name_outputs(select: exp.Select, names: Sequence[str]) -> None:
    """Give a SELECT's items these names, in place."""
    select.set("expressions", [named(i.unalias(), n) for i, n in zip(select.expressions, names, strict=True)])


def named(expression: exp.Expr, name: str) -> exp.Expr:
    """The select item `expression AS name`."""
    return exp.alias_(expression.copy(), identifier(name), copy=False)


def identifier(name: str) -> exp.Identifier:
    """A quoted identifier."""
    return exp.to_identifier(name, quoted=True)


def column(name: str, table: str) -> exp.Column:
    """`table.name`, quoted."""
    return exp.Column(this=identifier(name), table=identifier(table))


def derived(query: exp.Query, alias: str) -> exp.Subquery:
    """The FROM item `(query) AS alias`."""
    return exp.Subquery(this=query, alias=exp.TableAlias(this=identifier(alias)))


def text(query: exp.Expr) -> str:
    """The SQL text."""
    return ex.pg(query)
