"""Walking over a query block by block: what belongs to a SELECT itself, and what to the queries inside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import sqlglot
from sqlglot import exp

from runnel.model.types import Column, PgType
from runnel.plan import expr as ex
from runnel.sql.grammar import Faithful
from runnel.sql.rewrite.context import Context


def is_join_group(node: object) -> bool:
    """Whether a node is a join in parentheses, `(a JOIN b ON ..)`, which sqlglot calls a subquery."""
    return isinstance(node, exp.Subquery) and isinstance(node.this, (exp.Table, exp.Subquery, exp.Values, exp.Lateral))


def is_query(node: object) -> bool:
    """Whether a node is a query of its own, not a join in parentheses."""
    return isinstance(node, exp.Query) and not isinstance(node, exp.Table) and not is_join_group(node)


def own_nodes(root: exp.Expr) -> Iterator[exp.Expr]:
    """A node and all below it that belong to the same SELECT; nested queries are yielded, but not entered.

    >>> from sqlglot import parse_one
    >>> [n.sql() for n in own_nodes(parse_one("SELECT 1 WHERE a.x = 1 AND EXISTS (SELECT b.y FROM b)").args["where"])
    ...  if isinstance(n, exp.Column)]
    ['a.x']
    """
    yield root
    if is_query(root):
        return
    for child in _children(root):
        yield from own_nodes(child)


def block_nodes(select: exp.Select, *keys: str) -> Iterator[exp.Expr]:
    """The nodes of a SELECT block, without its WITH clause; `keys` narrow it to some clauses."""
    for key, value in select.args.items():
        if key == "with_" or (keys and key not in keys):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, exp.Expr):
                yield from own_nodes(child)


def _children(node: exp.Expr) -> Iterator[exp.Expr]:
    for value in node.args.values():
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, exp.Expr):
                yield child


def nested_queries(query: exp.Query) -> list[exp.Query]:
    """The queries directly inside a query: its CTEs, derived tables, subqueries, or the members of a set operation."""
    found: list[exp.Query] = []
    for child in _children(query):
        found += [n for n in own_nodes(child) if is_query(n) and isinstance(n, exp.Query)]
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


def open_left(select: exp.Select) -> None:
    """`(a JOIN b ON ..) JOIN c` as `a JOIN b ON .. JOIN c`: parentheses on the left say nothing."""
    if select.args.get("from_") is None:
        return
    item = select.args["from_"].this
    joins = list(select.args.get("joins") or [])
    while True:
        joins = [*(item.args.get("joins") or []), *joins]
        item.set("joins", None)
        if not is_join_group(item) or item.alias:
            break
        item = item.this
    select.set("from_", exp.From(this=item.copy()))
    select.set("joins", [j.copy() for j in joins])


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


# Calls that sqlglot reads under a name of its own.
_NAMES: dict[type[exp.Expr], str] = {
    exp.GroupConcat: "string_agg",
    exp.JSONArrayAgg: "json_agg",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
    exp.VariancePop: "var_pop",
    exp.Variance: "var_samp",
    exp.Unnest: "unnest",
}


def function_name(node: exp.Expr) -> str | None:
    """The name of a called function, in lower case unless it was quoted; None for all other nodes."""
    if isinstance(node, exp.Anonymous):
        return node.this.name if isinstance(node.this, exp.Identifier) else str(node.this).lower()
    if type(node) in _NAMES:
        return _NAMES[type(node)]
    return node.sql_name().lower() if isinstance(node, exp.AggFunc) else None


def whole_call(node: exp.Expr) -> exp.Expr:
    """A function call with its schema, FILTER and WITHIN GROUP."""
    while True:
        parent = node.parent
        wraps = isinstance(parent, (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls))
        if isinstance(parent, exp.Expr) and (
            (wraps and node.arg_key == "this") or (isinstance(parent, exp.Dot) and node.arg_key == "expression")
        ):
            node = parent
        else:
            return node


def is_windowed(node: exp.Expr) -> bool:
    """Whether a function call is the one that an OVER clause belongs to."""
    call = whole_call(node)
    return isinstance(call.parent, exp.Window) and call.arg_key == "this"


def aggregates(nodes: Iterable[exp.Expr], ctx: Context) -> list[exp.Expr]:
    """The bare aggregate calls among nodes, without those over a window."""
    return [n for n in nodes if (name := function_name(n)) and ctx.is_aggregate(name) and not is_windowed(n)]


def is_grouped(select: exp.Select, ctx: Context) -> bool:
    """Whether a block gives groups instead of rows."""
    if select.args.get("group") or select.args.get("having"):
        return True
    return bool(aggregates(block_nodes(select, "expressions", "order"), ctx))


def described(query: exp.Query, at: exp.Expr, ctx: Context) -> tuple[Column, ...]:
    """The columns of a query that stands where `at` stands: CTEs and outer columns visible there are visible to it.

    PostgreSQL can only be asked about whole queries. So the query is wrapped, block by block on the way up, in what it
    sees of the block: the FROM clause, with the query LATERAL behind it, and the WITH clause.
    """
    query = query.copy()
    node: exp.Expr | None = at
    sees_from = False
    while node is not None:
        parent = node.parent
        # What stands in FROM sees the tables beside it only as LATERAL; a join's condition sees them always.
        if isinstance(parent, exp.Lateral) or node.arg_key == "on":
            sees_from = True
        if isinstance(parent, exp.Select):
            if sees_from or node.arg_key not in ("from_", "joins", "with_"):
                query = _below_from(query, parent)
            sees_from = False
        if isinstance(parent, exp.Query) and parent.args.get("with_"):
            query = _with(query, parent.args["with_"])
        node = parent
    return ctx.describe(text(query))


def _below_from(query: exp.Query, select: exp.Select) -> exp.Select:
    """`SELECT q.* FROM <the FROM clause> CROSS JOIN LATERAL (query) AS q`."""
    source = select.args.get("from_")
    if source is None:
        return _outer_block(derived(query, "pgt_q"))
    lateral = exp.Lateral(this=exp.Subquery(this=query), alias=exp.TableAlias(this=identifier("pgt_q")))
    joins = [j.copy() for j in select.args.get("joins") or []]
    block = exp.Select(expressions=[_star("pgt_q")], from_=source.copy())
    block.set("joins", [*joins, exp.Join(this=lateral, kind="CROSS")])
    return block


def _outer_block(item: exp.Expr) -> exp.Select:
    return exp.Select(expressions=[_star("pgt_q")], from_=exp.From(this=item))


def _star(alias: str) -> exp.Column:
    return exp.Column(this=exp.Star(), table=identifier(alias))


def _with(query: exp.Query, clause: exp.Expr) -> exp.Query:
    if query.args.get("with_"):
        query = _outer_block(derived(query, "pgt_q"))
    query.set("with_", clause.copy())
    return query


def column_types(query: exp.Query, at: exp.Expr, ctx: Context) -> tuple[Column, ...]:
    """The columns of a query, renamed to c1, c2, ..: names may repeat in a subquery, and not in what is described."""
    while isinstance(query, exp.Subquery):
        query = query.this
    width = len(first_select(query).expressions)
    names = [identifier(f"c{i + 1}") for i in range(width)]
    inner = query.copy()
    clause = inner.args.get("with_")
    inner.set("with_", None)
    item = exp.Subquery(this=inner, alias=exp.TableAlias(this=identifier("pgt_t"), columns=names))
    probe = exp.Select(expressions=[exp.Star()], from_=exp.From(this=item))
    probe.set("with_", clause)
    return described(probe, at, ctx)


# Built-in types that ORDER BY refuses, by oid; of others only the name is known.
_UNORDERED = frozenset({28, 29, 114, 142, 600, 601, 602, 603, 604, 628, 718, 1033, 1790, 2970, 4072, 5038})
_UNORDERED_ARRAYS = ("json", "xml", "point", "lseg", "path", "box", "polygon", "line", "circle", "xid", "jsonpath")
_FIRST_USER_OID = 16384


def is_orderable(type_: PgType) -> bool:
    """Whether ORDER BY certainly accepts values of a type."""
    if type_.sql.endswith("[]"):
        return "." not in type_.sql and type_.sql.removesuffix("[]") not in _UNORDERED_ARRAYS
    return type_.is_enum or (type_.oid < _FIRST_USER_OID and type_.oid not in _UNORDERED)


def varies(expression: exp.Expr) -> bool:
    """Whether an expression can differ from row to row (a constant in ORDER BY would be a position)."""
    kinds = (exp.Column, exp.Func, exp.Window, exp.Query)
    return any(isinstance(n, kinds) and not isinstance(n, exp.Cast) for n in expression.walk())


def ascending(expression: exp.Expr, orderable: bool = True) -> exp.Ordered:
    """The ORDER BY item for an expression; what has no order of its own is compared as text."""
    value = expression.copy() if orderable else exp.cast(ex.group(expression), "text", dialect="postgres")
    return exp.Ordered(this=value, nulls_first=False)


def sortable(expressions: Sequence[exp.Expr], select: exp.Select, ctx: Context) -> list[exp.Ordered]:
    """ORDER BY items for expressions over a block's FROM clause, or over its groups."""
    expressions = [_value(e) for e in expressions]
    probe = exp.Select(expressions=[named(e, f"c{i}") for i, e in enumerate(expressions)])
    keys = ["from_", "joins"]
    if any(aggregates(own_nodes(e), ctx) or function_name(e) == "grouping" for e in expressions):
        keys.append("group")
    for key in keys:
        value = select.args.get(key)
        if value is not None:
            probe.set(key, [v.copy() for v in value] if isinstance(value, list) else value.copy())
    if select.args.get("with_"):
        probe.set("with_", select.args["with_"].copy())
    types = described(probe, select, ctx)
    return [ascending(e, is_orderable(t.type)) for e, t in zip(expressions, types, strict=True)]


def _value(expression: exp.Expr) -> exp.Expr:
    if isinstance(expression, exp.Column) and isinstance(expression.this, exp.Star):
        return exp.cast(expression.copy(), "text", dialect="postgres")
    return expression


def grouping_keys(node: exp.Expr) -> list[exp.Expr]:
    """The expressions inside ROLLUP, CUBE and GROUPING SETS, in order of appearance."""
    if isinstance(node, (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple)):
        return [k for e in node.expressions for k in grouping_keys(e)]
    return [node.unnest()]


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


# sqlglot forgets a part of these types.
_MISREAD = ("bit varying", "interval ")


def typed(expression: exp.Expr, column: Column) -> exp.Expr:
    """The expression cast to a column's type, under its collation."""
    if column.type.sql.startswith(_MISREAD):
        to = exp.DataType(this=exp.DType.USERDEFINED, kind=column.type.sql)
    else:
        to = exp.DataType.build(column.type.sql, dialect=Faithful, udt=True)
    bare = expression if isinstance(expression, exp.Null) else ex.group(expression)
    value: exp.Expr = exp.Cast(this=bare.copy(), to=to)
    if column.collation is not None:
        value = exp.paren(exp.Collate(this=value, expression=_collation(column.collation)), copy=False)
    return value


def _collation(name: str) -> exp.Expr:
    """A collation from its qualified name; built-in ones are printed without their schema, as PostgreSQL does."""
    parts = [p.strip('"').replace('""', '"') for p in re.findall(r'"(?:[^"]|"")+"|[^."]+', name)]
    schema, bare = parts
    own = identifier(bare)
    return own if schema == "pg_catalog" else exp.Dot(this=identifier(schema), expression=own)


def is_array_query(query: exp.Query) -> bool:
    """Whether a query stands in ARRAY (..), which keeps the order of its rows."""
    parent = query.parent
    return isinstance(parent, exp.Array) or (parent is not None and function_name(parent) == "array")


def function_join(calls: Sequence[str], alias: str, columns: Sequence[str]) -> exp.Join:
    """`CROSS JOIN LATERAL call AS alias(columns)`; several calls run in lockstep: `CROSS JOIN ROWS FROM (..) AS ..`."""
    item = f"LATERAL {calls[0]}" if len(calls) == 1 else f"ROWS FROM ({', '.join(calls)})"
    join = _parsed(f"SELECT 1 FROM t CROSS JOIN {item} AS {_listed(alias, columns)}").args["joins"][0]
    assert isinstance(join, exp.Join)
    return join.pop()


def function_item(call: str, alias: str, columns: Sequence[str]) -> exp.Expr:
    """The FROM item `call AS alias(columns)`."""
    item = _parsed(f"SELECT 1 FROM {call} AS {_listed(alias, columns)}").args["from_"].this
    assert isinstance(item, exp.Expr)
    return item.pop()


def _listed(alias: str, columns: Sequence[str]) -> str:
    names = ", ".join(text(identifier(c)) for c in columns)
    return text(identifier(alias)) + (f"({names})" if names else "")


def _parsed(query: str) -> exp.Expr:
    return sqlglot.parse_one(query, read=Faithful)


def derived(query: exp.Query, alias: str) -> exp.Subquery:
    """The FROM item `(query) AS alias`."""
    return exp.Subquery(this=query, alias=exp.TableAlias(this=identifier(alias)))


def text(query: exp.Expr) -> str:
    """The SQL text."""
    return ex.pg(query)
