"""Functions in FROM -> what PostgreSQL expands while it reads a leaf, or rows that never change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from runnel.model.names import quote
from runnel.model.types import Column
from runnel.plan import expr as ex
from runnel.plan.stage import TableFunction
from runnel.sql.draft import LeafDraft, stand_in

Describe = Callable[[str], tuple[Column, ...]]


@dataclass(frozen=True, slots=True)
class Call:
    """A function call in FROM, taken apart."""

    call: exp.Expr
    ordinality: bool
    alias: exp.TableAlias

    @property
    def names(self) -> list[str]:
        """The column names that the query gives."""
        return [i.name for i in self.alias.args.get("columns") or []]

    def definitions(self, names: list[str]) -> str:
        """The alias's column list under other names, with the types that a function of records needs."""
        given = self.alias.args.get("columns") or []
        kinds = [f" {ex.pg(i.args['kind'])}" if isinstance(i, exp.ColumnDef) else "" for i in given]
        kinds += [""] * (len(names) - len(kinds))
        return ", ".join(quote(n) + k for n, k in zip(names, kinds, strict=True))


def parse(item: exp.Expr) -> Call | None:
    """The call, or None when the FROM item is something else."""
    alias = item.args.get("alias") or exp.TableAlias(this=exp.to_identifier("f"))
    if item.args.get("rows_from"):
        calls = [t.this if isinstance(t, exp.Table) else t for t in item.args["rows_from"]]
        together = exp.Anonymous(this="ROWS FROM", expressions=[_plain(c) for c in calls])
        return Call(together, bool(item.args.get("ordinality")), alias)
    inner = item.this if isinstance(item, (exp.Lateral, exp.Table)) else item
    ordinality = bool(item.args.get("ordinality"))
    if isinstance(inner, exp.Unnest):
        offset = inner.args.get("offset")
        if isinstance(offset, exp.Identifier) and offset.name not in [c.name for c in alias.args.get("columns") or []]:
            alias = alias.copy()
            alias.append("columns", offset.copy())
        return Call(_plain(inner), ordinality or bool(offset), alias)
    if isinstance(inner, exp.Func):
        return Call(inner.copy(), ordinality, alias)
    return None


def _plain(call: exp.Expr) -> exp.Expr:
    if isinstance(call, exp.Unnest):
        return exp.Anonymous(this="unnest", expressions=[e.copy() for e in call.expressions])
    return call.copy()


def constant_rows(call: Call, describe: Describe) -> tuple[str, tuple[Column, ...]]:
    """A call over constants: its SQL and its columns."""
    tail = " WITH ORDINALITY" if call.ordinality else ""
    names = f"({call.definitions(call.names)})" if call.names else ""
    text = f"SELECT * FROM {ex.pg(call.call)}{tail} AS {quote(call.alias.name)}{names}"
    return text, describe(text)


def expansion(
    call: Call, resolved: exp.Expr, leaf: LeafDraft, describe: Describe, *, optional: bool
) -> tuple[TableFunction, list[str]]:
    """A call over one leaf's columns as an expansion of that leaf, and the names its columns have in the query.

    `optional` keeps rows for which the function returns nothing (LEFT JOIN).
    """
    number = len(leaf.functions)
    tail = " WITH ORDINALITY" if call.ordinality else ""
    text = ex.pg(_over_row(leaf.expand(resolved), leaf))
    bare = f"({call.definitions(call.names)})" if call.names else ""
    rows = stand_in(leaf.source.columns, "r") + "".join(f" {f.sql}" for f in leaf.functions)
    described = describe(f"SELECT f.* FROM {rows} CROSS JOIN LATERAL {text}{tail} AS f{bare}")
    visible = [c.name for c in described]
    inner = [f"#f{number}.{n}" for n in visible]
    columns = tuple(Column(n, c.type, collation=c.collation) for n, c in zip(inner, described, strict=True))
    join, on = ("LEFT JOIN", " ON true") if optional else ("CROSS JOIN", "")
    # The function keeps its own column names: to a function of records they may mean something.
    items = ", ".join(f"f.{quote(v)} AS {quote(n)}" for v, n in zip(visible, inner, strict=True))
    sql = f"{join} LATERAL (SELECT {items} FROM {text}{tail} AS f{bare}) AS f{number}{on}"
    return TableFunction(sql, columns), visible


def _over_row(expression: exp.Expr, leaf: LeafDraft) -> exp.Expr:
    """Columns of the leaf as columns of its row `r`, or of an earlier function."""

    def change(node: exp.Expr) -> exp.Expr | None:
        if isinstance(node, exp.Column) and node.table == f"l{leaf.id}":
            owner = node.name.partition(".")[0][1:] if node.name.startswith("#f") else "r"
            return exp.column(exp.to_identifier(node.name, quoted=True), table=owner)
        return None

    return ex.rewrite(expression, change)
