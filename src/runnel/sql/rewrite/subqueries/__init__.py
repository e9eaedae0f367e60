"""Subqueries used as values or conditions, and LATERAL subqueries -> joins with derived tables.

Top down: a block's own subqueries become derived tables in its FROM clause first; then the same happens inside the
derived tables. So a block that is looked at never mentions a column of a query around it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql import registry
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context
from runnel.sql.rewrite.subqueries import build, conditions, exists, flat, grouped, lateral, membership, scalar
from runnel.sql.rewrite.subqueries.block import Block
from runnel.sql.rewrite.subqueries.scopes import clauses, has_query


def rewrite(tree: exp.Query, ctx: Context) -> exp.Query:
    """Replace every subquery outside of FROM, and every LATERAL one."""
    tree = tree.copy()
    _unwrap(tree)
    _Rewriter(ctx).query(tree)
    return tree


def _unwrap(tree: exp.Query) -> None:
    """`((SELECT ..))` in an expression -> `(SELECT ..)`, and an alias of one in a select list beside it."""
    for node in list(tree.find_all(exp.Subquery)):
        inner = node.this
        if node.alias and isinstance(node.parent, exp.Select) and node.arg_key == "expressions":
            node.replace(build.named(exp.Subquery(this=inner), node.alias))
        if not isinstance(inner, exp.Subquery) or isinstance(node.parent, (exp.From, exp.Join, exp.Lateral)):
            continue
        if not any(n.alias or n.args.get("joins") for n in (node, inner)):
            node.replace(inner)


@dataclass
class _Rewriter:
    ctx: Context
    done: dict[str, exp.Query] = field(default_factory=dict)
    """Derived tables by their text: equal ones stay equal, and are maintained once."""

    def query(self, query: exp.Expr) -> None:
        """Rewrite a query in place."""
        if isinstance(query, exp.Query):
            self._ctes(query)
        if isinstance(query, exp.SetOperation):
            self.query(query.this)
            self.query(query.expression)
        elif isinstance(query, exp.Subquery):
            self.query(query.this)
        elif isinstance(query, exp.Select):
            self._select(query)

    def _ctes(self, query: exp.Query) -> None:
        clause = query.args.get("with_")
        for cte in clause.expressions if clause is not None else []:
            recursive = clause is not None and clause.args.get("recursive")
            if not (recursive and any(t.name == cte.alias and not t.db for t in cte.this.find_all(exp.Table))):
                self.query(cte.this)

    def _select(self, select: exp.Select) -> None:
        if _concerns(select):
            grouped.split(select, self.ctx)
            flat.flatten(select)
            block = Block(select, self.ctx)
            conditions.clear(block, lambda c: _replace_all(c, block))
            lateral.clear(block)
            # What LATERAL subqueries left behind may be conditions again.
            conditions.clear(block, lambda c: _replace_all(c, block))
            _semi_joins(block)
            for part in list(clauses(select)):
                if isinstance(part, (exp.Limit, exp.Offset, exp.Fetch)) and has_query(part):
                    raise NotDifferentiable(registry.SUBQUERY_PLACE, "a subquery in LIMIT")
                _replace_all(part, block)
        for item in list(tr.leaf_items(select)):
            self._item(item)

    def _item(self, item: exp.Expr) -> None:
        if not isinstance(item, exp.Subquery):
            called = item.this or item if isinstance(item, exp.Table) else item
            if has_query(called) and not isinstance(item, exp.Values):
                raise NotDifferentiable(registry.SUBQUERY_PLACE, "a subquery in an argument of a function in FROM")
            if isinstance(item, exp.Values) and any(has_query(e) for e in item.expressions):
                raise NotDifferentiable(registry.SUBQUERY_PLACE, "a subquery in VALUES")
            return
        text = ex.pg(item.this)
        if text not in self.done:
            self.query(item.this)
            self.done[text] = item.this.copy()
        else:
            item.set("this", self.done[text].copy())


def _concerns(select: exp.Select) -> bool:
    """Whether a block has subqueries of its own."""
    if any(has_query(part) for part in clauses(select)) or any(lateral.is_subquery(i) for i in tr.leaf_items(select)):
        return True
    for node in tr.block_nodes(select, "from_", "joins"):
        if isinstance(node, exp.Join) and node.args.get("on") is not None and has_query(node.args["on"]):
            return True
        if lateral.is_subquery(node):
            return True
    return False


def _semi_joins(block: Block) -> None:
    """EXISTS and IN that every row has to fulfil become inner joins."""
    while True:
        parts = build.where_of(block.select)
        chosen = next((p for p in parts if _is_semi_join(p)), None)
        if chosen is None:
            return
        build.set_where(block.select, (p for p in parts if p is not chosen))
        if isinstance(chosen, exp.In):
            rest = membership.semi_join(chosen, block)
        else:
            rest = exists.semi_join(chosen.this, block)
        build.add_where(block.select, rest)


def _is_semi_join(condition: exp.Expr) -> bool:
    if isinstance(condition, exp.Exists):
        return True
    return (
        isinstance(condition, exp.In) and membership.query_of(condition) is not None and not has_query(condition.this)
    )


def _replace_all(root: exp.Expr, block: Block) -> exp.Expr:
    """Replace the subqueries of an expression, in place; returns it, or what replaced all of it."""
    holder: exp.Expr | None = None
    if root.parent is None:
        holder = exp.Paren(this=root)
    while True:
        top = holder if holder is not None else root
        found = _next(top)
        if found is None:
            return top
        text = ex.pg(found)
        if text not in block.known:
            block.known[text] = _value(found, block)
        replaced = build.wrap(block.known[text].copy())
        if found is root and holder is None:
            root.replace(replaced)
            return replaced
        found.replace(replaced)
        _simplify(replaced)


def _value(found: exp.Expr, block: Block) -> exp.Expr:
    if isinstance(found, exp.Exists):
        return exists.value(found.this, block)
    if _is_array(found):
        return scalar.array(found.expressions[0], block)
    if membership.query_of(found) is not None:
        return membership.value(found, block)
    return scalar.value(found, block)


def _next(node: exp.Expr) -> exp.Expr | None:
    """The first subquery below a node, operands before what they are compared with."""
    if isinstance(node, exp.Exists):
        return node
    if _is_array(node):
        return node
    if membership.query_of(node) is not None:
        return _next(node.this) or node
    if tr.is_query(node):
        return node
    for child in node.iter_expressions():
        found = _next(child)
        if found is not None:
            return found
    return None


def _is_array(node: exp.Expr) -> bool:
    """Whether a node is ARRAY(SELECT ..)."""
    if not isinstance(node, (exp.Anonymous, exp.Array)) or len(node.expressions) != 1:
        return False
    if isinstance(node, exp.Anonymous) and str(node.this).upper() != "ARRAY":
        return False
    # ARRAY[(SELECT ..)] holds a subquery in parentheses, ARRAY(SELECT ..) the query itself.
    return isinstance(node.expressions[0], (exp.Select, exp.SetOperation))


def _simplify(replaced: exp.Expr) -> None:
    """`NOT (x IS NOT NULL)` -> `x IS NULL`."""
    inner = replaced.unnest()
    if not (
        isinstance(inner, exp.Not) and isinstance(inner.this, exp.Is) and isinstance(inner.this.expression, exp.Null)
    ):
        return
    node: exp.Expr | None = replaced
    while node is not None and isinstance(node.parent, exp.Paren):
        node = node.parent
    if node is not None and isinstance(node.parent, exp.Not):
        node.parent.replace(exp.paren(inner.this.copy()))
