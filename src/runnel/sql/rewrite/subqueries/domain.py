"""The domain of a correlated subquery: every combination of outer values that it can be asked about.

    EXISTS (SELECT 1 FROM i WHERE i.k < o.a)
    ->  dom = SELECT DISTINCT o.a AS pgt_d0 FROM o WHERE <what o alone must fulfil>
        SELECT DISTINCT dom.pgt_d0 FROM dom JOIN i ON i.k < dom.pgt_d0

The subquery asked for all of the domain at once is not correlated any more; the outer query joins its answers by the
domain's columns. The domain may hold more than is asked, never less: of a table that an outer join may pad with NULL,
the whole FROM clause is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql import registry
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite.subqueries import build, flat
from runnel.sql.rewrite.subqueries.block import Block, unique_keys
from runnel.sql.rewrite.subqueries.scopes import Names, defined_by, free_columns, has_query, item_names, name_of


@dataclass
class Domain:
    """A derived table of outer values; `columns[i]` is its column `pgt_d<i>`."""

    query: exp.Select
    alias: str
    columns: list[exp.Column]

    def item(self) -> exp.Subquery:
        """The domain as a FROM item."""
        return build.derived(self.query, self.alias)

    def own(self, number: int) -> exp.Column:
        """The domain's column for an outer column."""
        return build.column(f"pgt_d{number}", self.alias)

    def substitute(self, node: exp.Expr) -> exp.Expr:
        """Let a tree refer to the domain where it referred to the outer query, in place.

        A domain further down copies tables of the outer query under their own names: what it says of them is its own.
        """
        outside = {id(c) for c in free_columns(node, frozenset(name_of(c) for c in self.columns))}

        def change(found: exp.Column) -> exp.Expr | None:
            if id(found) not in outside:
                return None
            return next((self.own(i) for i, c in enumerate(self.columns) if c == found), None)

        return build.replace_columns(node, change)


def distinct_columns(columns: Sequence[exp.Column]) -> list[exp.Column]:
    """The columns, each once."""
    result: list[exp.Column] = []
    for column in columns:
        if isinstance(column.this, exp.Star):
            raise NotDifferentiable(registry.WHOLE_ROW, "a whole row of an outer query used in a subquery")
        if column not in result:
            result.append(column.copy())
    return result


def domain(block: Block, columns: Sequence[exp.Column], *, duplicates: bool) -> Domain:
    """The domain for some columns of a block; `duplicates` when it does not matter whether a value is there twice."""
    wanted = distinct_columns(columns)
    names = frozenset(name_of(c) for c in wanted)
    padded = flat.nullable_names(block.select)
    whole = bool(names & padded) or any(n.startswith(".") for n in names)
    source = block.prefix() if whole else _needed(block, names)
    query = source.copy()
    inside = defined_by(query)
    entire = whole and block.position is None
    build.set_where(query, (c for c in _conditions(block) if _applies(c, block, inside, padded, entire)))
    query.set("expressions", [build.named(c, f"pgt_d{i}") for i, c in enumerate(wanted)])
    if not duplicates and not _is_unique(query, wanted, block):
        query.set("distinct", exp.Distinct())
    return Domain(query, block.ctx.fresh("d"), wanted)


def _needed(block: Block, names: Names) -> exp.Select:
    """The items that define the names, with those that a function among them reads."""
    found = set(names)
    items = flat.items(block.select)
    for item in reversed(items):
        if item_names(item) & found and isinstance(item, (exp.Lateral, exp.Unnest, exp.Table, exp.Values)):
            found |= {name_of(c) for c in free_columns(item, block.names)}
    kept = [i for i in items if item_names(i) & found]
    query = exp.Select(expressions=[], from_=exp.From(this=kept[0].copy()))
    query.set("joins", [exp.Join(this=i.copy(), kind="CROSS") for i in kept[1:]])
    return query


def _conditions(block: Block) -> list[exp.Expr]:
    found = build.where_of(block.select)
    for join in flat.inner_conditions(block.select):
        found += ex.conjuncts(join.args["on"])
    return found


def _applies(condition: exp.Expr, block: Block, inside: Names, padded: Names, entire: bool) -> bool:
    used = {name_of(c) for c in condition.find_all(exp.Column)}
    if has_query(condition) or not used or not used <= inside:
        return False
    return entire or not used & padded


def _is_unique(query: exp.Select, columns: list[exp.Column], block: Block) -> bool:
    if query.args.get("joins"):
        return False
    names = {c.name for c in columns}
    return any(set(key) <= names for key in unique_keys(query.args["from_"].this, block.ctx))
