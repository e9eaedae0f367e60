"""The FROM clause of a recursive member: which relations it joins, and what can be left to their own stages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sqlglot import exp

from runnel.model.types import Column
from runnel.plan import expr as ex
from runnel.sql import refuse
from runnel.sql.ctes import Ctes, mentions, standalone
from runnel.sql.draft import NotDifferentiable

Describe = Callable[[str], tuple[Column, ...]]

RECURSION = -1
"""The number of R among the inputs."""


@dataclass
class Item:
    """One relation in the FROM clause of the recursive member."""

    hole: int
    node: exp.Expr
    """The relation as the member wrote it, without what is joined to it."""
    alias: str
    columns: tuple[Column, ...]
    filters: list[exp.Expr] = field(default_factory=list)


def unused(select: exp.Select) -> str:
    """A prefix that no identifier or literal of the member contains."""
    prefix = "pgt_item"
    while prefix in ex.pg(select):
        prefix += "_"
    return prefix


@dataclass
class Items:
    """The relations of the recursive member; in its tree each is replaced by a hole with a number."""

    name: str
    own: tuple[Column, ...]
    ctes: Ctes
    describe: Describe
    prefix: str
    items: list[Item] = field(default_factory=list)
    references: list[Item] = field(default_factory=list)

    def collect(self, select: exp.Select) -> None:
        source = select.args.get("from_")
        if source is not None:
            self._item(source.this)
        self._joins(select)

    def recursion(self) -> Item:
        """The one place where the member reads R."""
        if len(self.references) != 1:
            raise NotDifferentiable("a recursive member that does not read the recursive query exactly once")
        return self.references[0]

    def _joins(self, node: exp.Expr) -> None:
        for join in node.args.get("joins") or []:
            if (join.args.get("method") or "").upper() == "NATURAL":
                raise NotDifferentiable("NATURAL JOIN in a recursive member")
            self._item(join.this)

    def _item(self, item: exp.Expr) -> None:
        if isinstance(item, exp.Subquery) and isinstance(item.this, (exp.Table, exp.Subquery)) and not item.alias:
            self._item(item.this)
        elif isinstance(item, exp.Table) and isinstance(item.this, exp.Identifier):
            if item.args.get("sample"):
                raise NotDifferentiable("TABLESAMPLE")
            item = self._reference(item) if not item.db and item.name == self.name else self._input(item)
        elif isinstance(item, exp.Subquery) and item.alias:
            if mentions(alone(item), self.name):
                raise NotDifferentiable("the recursive reference inside a subquery")
            item = self._input(item)
        elif alone(item).find(exp.Table, exp.Select):
            raise NotDifferentiable(f"{refuse.name_of(item)} in a recursive member")
        # Anything else is a function over the row: PostgreSQL evaluates it where it stands.
        self._joins(item)

    def _reference(self, item: exp.Table) -> exp.Expr:
        alias = item.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            raise NotDifferentiable("new column names for the recursive reference")
        self.references.append(Item(RECURSION, alone(item), item.alias_or_name, self.own))
        return self._hole(item, RECURSION)

    def _input(self, item: exp.Expr) -> exp.Expr:
        node = alone(item)
        whole = exp.Select(expressions=[exp.Star()], from_=exp.From(this=node.copy()))
        columns = self.describe(ex.pg(standalone(whole, self.ctes)))
        number = len(self.items)
        self.items.append(Item(number, node, item.alias_or_name, columns))
        return self._hole(item, number)

    def _hole(self, item: exp.Expr, number: int) -> exp.Expr:
        hole = exp.Table(this=exp.to_identifier(f"{self.prefix}{number + 1}x"))
        hole.set("joins", item.args.get("joins"))
        item.replace(hole)
        return hole

    def in_hole(self, hole: exp.Expr) -> Item | None:
        """The input whose hole a FROM item is."""
        return next((item for item in self.items if hole.name == f"{self.prefix}{item.hole + 1}x"), None)

    def template(self, select: exp.Select) -> tuple[str | int, ...]:
        """The FROM clause as text, with the relations' numbers in their holes."""
        clause = exp.Select(expressions=[exp.Literal.number(0)])
        clause.set("from_", select.args["from_"].copy())
        clause.set("joins", [j.copy() for j in select.args.get("joins") or []])
        printed = ex.pg(clause).partition(" FROM ")[2]
        parts = re.split(rf"{self.prefix}(\d+)x", printed)
        numbers = {RECURSION: RECURSION} | {item.hole: number for number, item in enumerate(self.items)}
        return tuple(numbers[int(part) - 1] if i % 2 else part for i, part in enumerate(parts))


def alone(item: exp.Expr) -> exp.Expr:
    copy = item.copy()
    copy.set("joins", None)
    return copy


def fold_outer_joins(select: exp.Select, found: Items) -> None:
    """`r JOIN e ON .. LEFT JOIN q ON p(e, q)` -> `r JOIN (e LEFT JOIN q ON p(e, q)) ON ..`: one input, and linear."""
    joins: list[exp.Join] = select.args.get("joins") or []
    if any((join.side or "").upper() in ("RIGHT", "FULL") for join in select.find_all(exp.Join)):
        return
    for join in list(joins):
        padded = found.in_hole(join.this)
        if not join.side or padded is None or join.args.get("on") is None or join.this.args.get("joins"):
            continue
        others = {c.table for c in join.args["on"].find_all(exp.Column)} - {padded.alias}
        kept = next((i for i in found.items if {i.alias} == others), None)
        if kept is None or any(j.side and found.in_hole(j.this) is kept for j in joins):
            continue
        joins.remove(join)
        select.set("joins", joins)
        _join_inputs(select, join, kept, padded)
        found.items.remove(padded)


def _join_inputs(select: exp.Select, join: exp.Join, kept: Item, padded: Item) -> None:
    """Make `kept LEFT JOIN padded` one input under the name of `kept`."""
    renamed = {c.name: f"{padded.alias}.{c.name}" for c in padded.columns}
    items = [exp.alias_(column_of(c.name, kept.alias), c.name, quoted=True) for c in kept.columns]
    items += [exp.alias_(column_of(old, padded.alias), new, quoted=True) for old, new in renamed.items()]
    inner = exp.Select(
        expressions=items,
        from_=exp.From(this=kept.node),
        joins=[exp.Join(this=padded.node, side="LEFT", on=join.args["on"].copy())],
    )
    kept.node = exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(kept.alias, quoted=True)))
    kept.columns += tuple(replace(c, name=renamed[c.name]) for c in padded.columns)
    for column in select.find_all(exp.Column):
        if column.table == padded.alias:
            column.replace(column_of(renamed[column.name], kept.alias))


def push_filters(select: exp.Select, found: Items) -> None:
    """Move conditions over one input alone into that input's stage, where also the clock may be compared with."""
    by_alias = {item.alias: item for item in found.items}

    def keep(condition: exp.Expr) -> bool:
        aliases = {c.table for c in condition.find_all(exp.Column)}
        item = by_alias.get(next(iter(aliases))) if len(aliases) == 1 else None
        if item is None or (ex.may_raise(condition) and not ex.mentions_clock(condition)):
            return True
        item.filters.append(condition.copy())
        return False

    for join in list(select.find_all(exp.Join)):
        if join.args.get("on") is not None:
            kept = [c.copy() for c in ex.conjuncts(join.args["on"]) if keep(c)]
            join.set("on", all_of(kept) or exp.Boolean(this=True))
    where = select.args.get("where")
    if where is not None:
        condition = all_of([c.copy() for c in ex.conjuncts(where.this) if keep(c)])
        select.set("where", exp.Where(this=condition) if condition is not None else None)


def all_of(conditions: list[exp.Expr]) -> exp.Expr | None:
    return exp.and_(*(exp.paren(c, copy=False) for c in conditions), copy=False) if conditions else None


def column_of(name: str, table: str) -> exp.Column:
    return exp.Column(this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(table, quoted=True))
