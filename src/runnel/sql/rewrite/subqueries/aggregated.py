"""Aggregates without GROUP BY: always one row, also over nothing.

    (SELECT sum(i.v) + count(*) + o.b FROM i WHERE i.k = o.a)
    ->  LEFT JOIN (SELECT i.k AS pgt_k0, sum(i.v) AS pgt_a0, count(*) AS pgt_a1 FROM i GROUP BY i.k) q ON q.pgt_k0 = o.a
        q.pgt_a0 + COALESCE(q.pgt_a1, 0) + o.b

Only the aggregates are joined; the expression around them moves to the outer query. Where there are no rows, the left
join gives NULL, which is what every aggregate gives for no rows, except for those that count.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.subqueries import build, queries
from runnel.sql.rewrite.subqueries.block import Block
from runnel.sql.rewrite.subqueries.correlation import detach_select
from runnel.sql.rewrite.subqueries.scopes import defined_by, has_query, is_closed

_COUNTS = frozenset({"count", "regr_count"})
_HYPOTHETICAL = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})


@dataclass
class Lifted:
    """The one row of an aggregate, as expressions over the outer block with the aggregates joined to it."""

    items: list[exp.Expr]
    having: exp.Expr | None
    """The row is only there if this holds."""


def lift(select: exp.Expr, block: Block) -> Lifted:
    """Join the aggregates of a subquery without GROUP BY to the block."""
    assert isinstance(select, exp.Select)
    select = select.copy()
    for clause in ("order", "distinct", "limit"):
        select.set(clause, None)
    if queries.windows(select):
        raise NotDifferentiable("a window function over an aggregate without GROUP BY in a subquery")
    having = select.args.get("having")
    condition = having.this if having is not None else None
    select.set("having", None)
    if isinstance(condition, exp.Boolean) and condition.this:
        condition = None
    alias = block.ctx.fresh("q")
    parts = _Parts(select, alias, block)
    items = [parts.item(e.unalias().copy()) for e in select.expressions]
    lifted = Lifted(items, parts.expression(condition.copy()) if condition is not None else None)
    if parts.calls:
        parts.join()
        gate = parts.gate
        if gate:
            lifted.items = [parts.gated(i, gate) for i in lifted.items]
            lifted.having = parts.gated(lifted.having, gate) if lifted.having is not None else None
    return lifted


@dataclass
class _Parts:
    """Collects the aggregates while the expressions around them are taken out."""

    select: exp.Select
    alias: str
    block: Block

    def __post_init__(self) -> None:
        self.calls: list[exp.Expr] = []
        self.gate: list[exp.Expr] = []
        self.correlated = not is_closed(self.select, self.block.names)

    def item(self, expression: exp.Expr) -> exp.Expr:
        """A value of the row: wholly inside where it is the same, else around the aggregates."""
        calls = self._calls(expression)
        if not is_closed(expression, self.block.names, self._local()) or not calls:
            return self.expression(expression)
        if not self.correlated or (self._null_if_empty(expression, calls) and not has_query(expression)):
            return self._output(expression)
        return self.expression(expression)

    def expression(self, expression: exp.Expr) -> exp.Expr:
        """The expression with its aggregates replaced by joined columns."""
        holder = exp.Paren(this=expression)
        for call in self._calls(holder):
            replacement = self._output(call)
            name = _name(call)
            if name in _HYPOTHETICAL:
                raise NotDifferentiable(f"the aggregate {name}() in a correlated subquery")
            if name in _COUNTS and self.correlated:
                replacement = exp.Coalesce(this=replacement, expressions=[exp.Literal.number(0)])
            call.replace(replacement)
        return holder.this if isinstance(holder.this, exp.Column) else holder

    def _calls(self, expression: exp.Expr) -> list[exp.Expr]:
        return queries.own_aggregates(self.select, [expression], self.block.ctx)

    def _local(self) -> frozenset[str]:
        return defined_by(self.select)

    def _null_if_empty(self, expression: exp.Expr, calls: list[exp.Expr]) -> bool:
        """Whether the expression is certainly NULL if its aggregates are."""
        if any(_name(c) in _COUNTS | _HYPOTHETICAL for c in calls):
            return False
        probe = exp.Paren(this=expression.copy())
        for call in self._calls(probe):
            call.replace(exp.column("x"))
        return build.is_strict(probe)

    def _output(self, expression: exp.Expr) -> exp.Expr:
        if expression not in self.calls:
            self.calls.append(expression.copy())
        return build.column(f"pgt_a{self.calls.index(expression)}", self.alias)

    def join(self) -> None:
        """Join the aggregates to the block."""
        names = [f"pgt_a{i}" for i in range(len(self.calls))]
        self.select.set("expressions", [build.named(c, n) for c, n in zip(self.calls, names, strict=True)])
        if not self.correlated:
            self.block.cross_join(self.select, self.alias)
            return
        select = queries.without_ctes(self.select)
        assert isinstance(select, exp.Select)
        found = detach_select(select, names, self.block, grouped=True)
        self.gate = found.gate
        if found.keys:
            self.block.left_join(found.query, self.alias, found.on(self.alias))
        else:
            self.block.cross_join(found.query, self.alias)

    def gated(self, expression: exp.Expr, gate: list[exp.Expr]) -> exp.Expr:
        """The expression in which joined columns count only if the outer row lets the subquery have rows."""
        condition = build.is_true(gate)

        def change(column: exp.Column) -> exp.Expr | None:
            if column.table != self.alias:
                return None
            return exp.paren(build.case([(condition, column)]))

        return build.replace_columns(expression, change)


def _name(call: exp.Expr) -> str:
    for node in call.walk():
        name = tr.function_name(node)
        if name is not None:
            return name
    return ""
