"""Every column carries its table's alias, every FROM item has one, and orders that nobody sees are gone.

    SELECT x FROM public.t, public.u ORDER BY x   ->   SELECT t.x FROM public.t AS t CROSS JOIN public.u AS u

PostgreSQL prints the columns of an outermost SELECT over a single FROM item without the item's name, and those of
an inlined view likewise; everything else arrives qualified. What remains without a table afterwards is a column that
a USING join merged. Every identifier is quoted, so that equal names are equal trees. Aliases inside an inlined view
that repeat one of the surrounding query get a new name, so a name means the same wherever it is visible.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context


def rewrite(tree: exp.Query, ctx: Context) -> exp.Query:
    """Qualify a whole query."""
    tree = tree.copy()
    _quote(tree)
    _Qualify(ctx).query(tree, frozenset(), frozenset())
    _drop_orders(tree, ctx)
    return tree


@dataclass
class _Qualify:
    ctx: Context

    def query(self, query: exp.Query, outer: frozenset[str], merged: frozenset[str]) -> None:
        """Qualify a query; `outer` and `merged` are the aliases and merged columns of the surrounding ones."""
        if not isinstance(query, exp.Select):
            for inner in tr.nested_queries(query):
                self.query(inner, outer, merged)
            return
        for cte in query.ctes:
            self.query(cte.this, outer, merged)
        _expand_values(query)
        _cross_joins(query)
        tr.open_left(query)
        renamed = self._aliases(query, outer)
        inside = outer | {_alias(i) for i in tr.leaf_items(query)}
        visible = merged | tr.merged_columns(query)
        for inner in [n for n in tr.block_nodes(query) if isinstance(n, exp.Query) and tr.is_query(n)]:
            self.query(inner, inside, visible)
        self._own_columns(query, merged)
        _rename(query, renamed)
        for item in tr.leaf_items(query):
            if tr.is_join_group(item):
                self._open_join_alias(item, query)
        _positions(query)

    def _aliases(self, select: exp.Select, outer: frozenset[str]) -> dict[str, str]:
        renamed = {}
        for item in tr.leaf_items(select):
            alias = _alias(item)
            if not alias:
                raise NotDifferentiable(f"a FROM item without a name ({tr.text(item)})")
            target = self.ctx.fresh("v") if alias in outer else alias
            if target != alias:
                renamed[alias] = target
            known = item.args.get("alias")
            columns = known.args.get("columns") if known else None
            item.set("alias", exp.TableAlias(this=tr.identifier(target), columns=columns))
        return renamed

    def _own_columns(self, select: exp.Select, merged: frozenset[str]) -> None:
        items = tr.leaf_items(select)
        if len(items) != 1:
            return
        alias = _alias(items[0])
        for node in list(tr.block_nodes(select)):
            if not isinstance(node, exp.Column) or node.table or not _is_name(node.this):
                continue
            # Inside a correlated subquery the name may be a merged column of the surrounding query.
            if node.name not in merged or node.name in self._columns(items[0], select):
                node.set("table", tr.identifier(alias))

    def _columns(self, item: exp.Expr, select: exp.Select) -> list[str]:
        """The names of a FROM item's columns."""
        known = item.args.get("alias")
        listed = [c.name for c in known.args.get("columns") or []] if known else []
        if isinstance(item, exp.Subquery) and isinstance(item.this, exp.Query) and tr.is_query(item.this):
            names = tr.output_names(item.this)
        elif isinstance(item, exp.Table) and item.db:
            bare = exp.Table(this=item.this.copy(), db=item.args["db"].copy())
            names = [c.name for c in self.ctx.describe(f"SELECT * FROM {tr.text(bare)}")]
        elif isinstance(item, exp.Table) and isinstance(item.this, exp.Identifier):
            names = _cte_columns(item.name, select)
        else:
            names = []
        return listed + names[len(listed) :]

    def _open_join_alias(self, item: exp.Expr, select: exp.Select) -> None:
        """`(a JOIN b USING (k)) AS j` -> `(SELECT k, a.x, b.y FROM a JOIN b USING (k)) AS j`."""
        assert isinstance(item, exp.Subquery)
        inner = exp.Select(expressions=[], from_=exp.From(this=exp.Subquery(this=item.this)))
        outputs = self._join_columns(item.this, select)
        for leaf in tr.leaf_items(inner):
            if tr.is_join_group(leaf):
                raise NotDifferentiable("an alias for a join inside a join with an alias")
            leaf.set("alias", exp.TableAlias(this=tr.identifier(_alias(leaf)), columns=_listed(leaf)))
        alias = item.args["alias"]
        names = [c.name for c in alias.args.get("columns") or []]
        names += [c.name for c in outputs[len(names) :]]
        inner.set("expressions", [tr.named(c, n) for c, n in zip(outputs, names, strict=True)])
        _cross_joins(inner)
        opened = tr.derived(inner, alias.name)
        opened.set("joins", item.args.get("joins"))
        item.replace(opened)

    def _join_columns(self, item: exp.Expr, select: exp.Select) -> list[exp.Column]:
        """The columns of a join, as `SELECT *` would give them."""
        if isinstance(item, exp.Subquery) and tr.is_join_group(item) and not item.alias:
            left = self._join_columns(item.this, select)
        else:
            left = [tr.column(n, _alias(item)) for n in self._columns(item, select)]
            if not left:
                raise NotDifferentiable(f"an alias for a join with {tr.text(item)}")
        for join in item.args.get("joins") or []:
            right = self._join_columns(join.this, select)
            using = [i.name for i in join.args.get("using") or []]
            left = [
                *(exp.Column(this=tr.identifier(u)) for u in using),
                *(c for c in left if c.name not in using),
                *(c for c in right if c.name not in using),
            ]
        return left


def _is_name(node: exp.Expr) -> bool:
    """Whether it names something; `USER` and the like are read as columns, but PostgreSQL prints no name like that."""
    return isinstance(node, exp.Identifier) and (node.quoted or node.name == node.name.lower())


def _quote(tree: exp.Query) -> None:
    for node in tree.find_all(exp.Identifier):
        if _is_name(node) and not isinstance(node.parent, exp.DataType):
            node.set("quoted", True)


def _alias(item: exp.Expr) -> str:
    known = item.args.get("alias")
    if known is not None and known.this is not None:
        return str(known.this.name)
    if isinstance(item, exp.Table) and isinstance(item.this, exp.Identifier):
        return item.name
    return ""


def _listed(item: exp.Expr) -> list[exp.Expr] | None:
    known = item.args.get("alias")
    return known.args.get("columns") if known is not None else None


def _cte_columns(name: str, select: exp.Select) -> list[str]:
    scope: exp.Expr | None = select
    while scope is not None:
        for cte in scope.ctes if isinstance(scope, exp.Query) else []:
            if cte.alias == name:
                listed = [c.name for c in cte.args["alias"].args.get("columns") or []]
                return listed + tr.output_names(cte.this)[len(listed) :]
        scope = scope.parent
    return []


def _expand_values(select: exp.Select) -> None:
    """A bare VALUES list, as a member of a set operation, is parsed as `SELECT * FROM (VALUES ..)`."""
    source = select.args.get("from_")
    if source is None or not isinstance(source.this, exp.Values) or not select.is_star:
        return
    width = len(source.this.expressions[0].expressions)
    select.set("expressions", [tr.column(f"column{i + 1}", _alias(source.this)) for i in range(width)])


def _cross_joins(select: exp.Select) -> None:
    for join in tr.joins_of(select):
        if not any(join.args.get(k) for k in ("side", "kind", "on", "using", "method")):
            join.set("kind", "CROSS")


def _rename(select: exp.Select, renamed: dict[str, str]) -> None:
    """Rename aliases in a block and in all that it encloses."""
    if not renamed:
        return

    def visit(query: exp.Query, names: dict[str, str]) -> None:
        for node in tr.block_nodes(query) if isinstance(query, exp.Select) else ():
            if isinstance(node, exp.Column) and node.table in names:
                node.set("table", tr.identifier(names[node.table]))
        for inner in tr.nested_queries(query):
            hidden = {_alias(i) for i in tr.leaf_items(inner)} if isinstance(inner, exp.Select) else set()
            visit(inner, {k: v for k, v in names.items() if k not in hidden})

    visit(select, renamed)


def _positions(select: exp.Select) -> None:
    """`ORDER BY 1` -> `ORDER BY <the first select item>`, and the same for GROUP BY and DISTINCT ON."""
    clauses = [select.args.get("order"), select.args.get("group")]
    distinct = select.args.get("distinct")
    if distinct is not None:
        clauses.append(distinct.args.get("on"))
    for clause in clauses:
        for item in list(clause.expressions) if clause is not None else []:
            place = item.this if isinstance(item, exp.Ordered) else item
            if isinstance(place, exp.Literal) and not place.is_string:
                place.replace(select.expressions[int(place.this) - 1].unalias().copy())


def _drop_orders(tree: exp.Query, ctx: Context) -> None:
    """Remove ORDER BY where neither LIMIT nor OFFSET nor ARRAY (..) makes it matter."""
    for query in list(tree.find_all(exp.Query)):
        order = query.args.get("order")
        if order is None or query.args.get("limit") or query.args.get("offset") or tr.is_array_query(query):
            continue
        distinct = query.args.get("distinct") if isinstance(query, exp.Select) else None
        if isinstance(distinct, exp.Distinct) and distinct.args.get("on"):
            continue
        nodes = list(tr.own_nodes(order))
        if any((name := tr.function_name(n)) and ctx.is_set_returning(name) for n in nodes):
            continue  # it multiplies rows
        if feeds_aggregate(query):
            continue
        # An aggregate makes the block one group, even if only the order mentions it.
        if isinstance(query, exp.Select) and not query.args.get("group") and tr.aggregates(nodes, ctx):
            query.set("having", query.args.get("having") or exp.Having(this=exp.true()))
        query.set("order", None)


ORDER_SENSITIVE = frozenset(
    {
        "array_agg", "string_agg", "json_agg", "json_agg_strict", "jsonb_agg", "jsonb_agg_strict", "json_object_agg",
        "json_object_agg_strict", "json_object_agg_unique", "json_object_agg_unique_strict", "jsonb_object_agg",
        "jsonb_object_agg_strict", "jsonb_object_agg_unique", "jsonb_object_agg_unique_strict", "xmlagg", "any_value",
    }
)  # fmt: skip
"""Built-in aggregates whose result depends on the order of their input."""


def feeds_aggregate(query: exp.Query) -> bool:
    """Whether a sorted derived table is all that an aggregate which depends on its input's order reads.

    `SELECT array_agg(q.x) FROM (SELECT .. ORDER BY y) q`: nothing promises that order, but everyone expects it.
    """
    item = query.parent
    if not isinstance(query, exp.Select) or not isinstance(item, exp.Subquery) or not isinstance(item.parent, exp.From):
        return False
    outer = item.parent.parent
    if not isinstance(outer, exp.Select) or outer.args.get("joins") or item.args.get("joins"):
        return False
    return any(tr.function_name(n) in ORDER_SENSITIVE for n in tr.block_nodes(outer))
