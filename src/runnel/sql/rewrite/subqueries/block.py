"""The SELECT block whose subqueries are being turned into joins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from runnel.errors import UserError
from runnel.model.types import Column
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context
from runnel.sql.rewrite.subqueries import build, flat
from runnel.sql.rewrite.subqueries.scopes import Names, defined_by

if TYPE_CHECKING:
    from runnel.sql.rewrite.subqueries.unequal import Groups


@dataclass
class Block:
    """A block with a flat FROM clause and no columns of any query around it."""

    select: exp.Select
    ctx: Context
    position: int | None = None
    """Before which of its joins new ones go, while the condition of an outer join is being rewritten."""
    known: dict[str, exp.Expr] = field(default_factory=dict)
    """Subqueries that were replaced already, by their text: the same one twice is joined once."""
    groups: list[Groups] = field(default_factory=list)
    """Tables that were joined by their keys, where a question more is a column more."""

    @property
    def names(self) -> Names:
        return defined_by(self.select)

    def cross_join(self, query: exp.Query, alias: str) -> None:
        """Add a derived table that always has exactly one row."""
        if self.select.args.get("from_") is None:
            self.select.set("from_", exp.From(this=build.derived(query, alias)))
        else:
            self._add(exp.Join(this=build.derived(query, alias), kind="CROSS"))

    def inner_join(self, query: exp.Query, alias: str, on: Iterable[exp.Expr]) -> None:
        """Add a derived table that every row has to match."""
        self._add(exp.Join(this=build.derived(query, alias), on=build.every(on)))

    def left_join(self, query: exp.Query, alias: str, on: Iterable[exp.Expr]) -> None:
        """Add a derived table that rows may match, at most once."""
        self._add(exp.Join(this=build.derived(query, alias), side="LEFT", on=build.every(on)))

    def _add(self, join: exp.Join) -> None:
        joins = self.select.args.get("joins") or []
        at = len(joins) if self.position is None else self.position
        self.select.set("joins", [*joins[:at], join, *joins[at:]])
        if self.position is not None:
            self.position += 1

    def prefix(self) -> exp.Select:
        """The FROM clause as far as a new join can see it."""
        joins = self.select.args.get("joins") or []
        at = len(joins) if self.position is None else self.position
        copy = exp.Select(expressions=[], from_=self.select.args["from_"].copy())
        copy.set("joins", [j.copy() for j in joins[:at]])
        return copy

    def types(self, query: exp.Query) -> tuple[Column, ...] | None:
        """The columns of a closed query at this place, or None when PostgreSQL does not accept it alone."""
        at = self.select.args.get("from_") or self.select.expressions[0]
        try:
            return tr.described(query, at, self.ctx)
        except UserError:
            return None

    def never_null(self, expression: exp.Expr) -> bool:
        """Whether an expression over this block is certainly not NULL."""
        return never_null(expression, self.select, self.ctx)


def never_null(expression: exp.Expr, select: exp.Select, ctx: Context) -> bool:
    """Whether an expression over a FROM clause is certainly not NULL: a constant, or part of a table's key."""
    expression = expression.unnest()
    if isinstance(expression, (exp.Literal, exp.Boolean)):
        return True
    if isinstance(expression, exp.Cast) and isinstance(expression.this, exp.Literal):
        return True
    if not isinstance(expression, exp.Column) or expression.table in flat.nullable_names(select):
        return False
    for item in flat.items(select):
        if isinstance(item, exp.Table) and item.alias_or_name == expression.table:
            return any(expression.name in key for key in unique_keys(item, ctx))
    return False


def unique_keys(item: exp.Expr, ctx: Context) -> list[tuple[str, ...]]:
    """The unique keys of a FROM item that is a plain table."""
    alias = item.args.get("alias")
    if not isinstance(item, exp.Table) or not item.db or not isinstance(item.this, exp.Identifier):
        return []
    if alias is not None and alias.args.get("columns"):
        return []
    return ctx.unique_keys(item.db, item.name)
