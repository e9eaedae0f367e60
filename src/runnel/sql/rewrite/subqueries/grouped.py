"""Subqueries in HAVING or in the select list of a grouped block: the groups become a derived table first.

SELECT t.g, sum(t.x) FROM t GROUP BY t.g HAVING sum(t.x) > (SELECT ..)
->  SELECT d.c0, d.c1 FROM (SELECT t.g AS c0, sum(t.x) AS c1 FROM t GROUP BY t.g) d WHERE d.c1 > (SELECT ..)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context
from runnel.sql.rewrite.subqueries import build, queries
from runnel.sql.rewrite.subqueries.scopes import Names, defined_by, has_query, name_of


def split(select: exp.Select, ctx: Context) -> None:
    """Split a grouped block, in place, if subqueries work on its groups."""
    having = select.args.get("having")
    clauses = [having, select.args.get("order"), select.args.get("distinct"), *(select.args.get("windows") or [])]
    parts = [p for p in (*select.expressions, *clauses) if p is not None]
    calls = queries.own_aggregates(select, parts, ctx)
    group = select.args.get("group")
    if not (group or having or calls):
        return
    keys = [build.bare(k) for k in group.expressions] if group is not None else []
    collector = _Collector(ctx.fresh("g"), keys, {id(c) for c in calls}, defined_by(select))
    if not any(collector.concerns(p) for p in parts):
        return
    conditions = list(ex.conjuncts(having.this)) if having is not None else []
    own_having = [c for c in conditions if not has_query(c)]
    inner = exp.Select(expressions=[], from_=select.args.get("from_"), joins=select.args.get("joins") or [])
    for clause in ("where", "group"):
        inner.set(clause, select.args.get(clause))
    kept = build.every(own_having)
    if kept is not None:
        inner.set("having", exp.Having(this=kept))
    # Order matters: aggregates are recognised as nodes of the tree, so nothing is copied before it is visited.
    where = [collector.visit(c) for c in conditions if has_query(c)]
    items = [
        exp.Alias(this=collector.visit(e.unalias()), alias=tr.identifier(e.alias_or_name)) for e in select.expressions
    ]
    for clause in ("order", "distinct"):
        if select.args.get(clause):
            collector.visit(select.args[clause])
    for window in select.args.get("windows") or []:
        collector.visit(window)
    outputs = collector.outputs or [build.count_rows()]
    inner.set("expressions", [build.named(o, f"pgt_c{i}") for i, o in enumerate(outputs)])
    select.set("expressions", items)
    select.set("from_", exp.From(this=build.derived(inner, collector.alias)))
    for clause in ("joins", "where", "group", "having"):
        select.set(clause, None)
    build.set_where(select, where)


@dataclass
class _Collector:
    """Replaces group keys and aggregates by columns of the derived table."""

    alias: str
    keys: list[exp.Expr]
    calls: set[int]
    local: Names
    outputs: list[exp.Expr] = field(default_factory=list)

    def is_part(self, node: exp.Expr) -> bool:
        """Whether a node is computed with the groups."""
        if id(node) in self.calls or any(node == k for k in self.keys):
            return True
        return isinstance(node, exp.Column) and name_of(node) in self.local

    def concerns(self, node: exp.Expr) -> bool:
        """Whether a subquery is used outside of what is computed with the groups."""
        if self.is_part(node):
            return False
        if tr.is_query(node) or isinstance(node, exp.Values):
            return True
        return any(self.concerns(c) for c in node.iter_expressions())

    def visit(self, node: exp.Expr) -> exp.Expr:
        """Replace below a node; returns the node or what replaced it."""
        if self.is_part(node):
            if node not in self.outputs:
                self.outputs.append(node.copy())
            column = build.column(f"pgt_c{self.outputs.index(node)}", self.alias)
            if node.parent is not None:
                node.replace(column)
            return column
        for child in list(node.iter_expressions()):
            self.visit(child)
        return node
