"""The mutable drafts from which a branch of a stage is built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sqlglot import exp

from runnel.model.names import quote
from runnel.model.types import Column
from runnel.plan import expr as ex
from runnel.plan.stage import Source, TableFunction
from runnel.sql import registry
from runnel.sql.registry import Entry

_SYSTEM_COLUMNS = ("ctid", "xmin", "xmax", "cmin", "cmax", "tableoid")


class NotDifferentiable(Exception):
    """The query is valid, but cannot be maintained by deltas; says which construct."""

    def __init__(
        self,
        entry: Entry,
        shown: str | None = None,
        *,
        call: str | None = None,
        table: str | None = None,
        words: tuple[str, ...] = (),
    ) -> None:
        super().__init__(shown or entry.construct)
        self.entry = entry
        self.call = call
        """The function that is the reason, by name."""
        self.table = table
        """The table that is the reason, by name."""
        self.words = words
        """How the construct looks in the query's text, if the entry does not say."""


class OuterCondition(NotDifferentiable):
    """An outer join's condition that Spark cannot evaluate; simpler inputs may help."""


def stand_in(columns: Sequence[Column], alias: str) -> str:
    """A typed, empty FROM item with these columns, enough for PostgreSQL to infer types from."""
    items = ", ".join(
        f"NULL::{c.type.sql}{f' COLLATE {c.collation}' if c.collation else ''} AS {quote(c.name)}" for c in columns
    )
    return f"(SELECT {items}) AS {alias}"


@dataclass
class LeafDraft:
    """A leaf while its filters and derived columns are still being collected."""

    id: int
    source: Source
    alias: str = ""
    filters: list[exp.Expr] = field(default_factory=list)
    clock: list[exp.Expr] = field(default_factory=list)
    derived: dict[str, exp.Expr] = field(default_factory=dict)
    """Columns of an inlined subquery, as expressions over the source: evaluated before any padding."""

    functions: list[TableFunction] = field(default_factory=list)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The source's columns and those of the functions expanded with it."""
        return self.source.columns + tuple(c for f in self.functions for c in f.columns)

    def expand(self, expression: exp.Expr) -> exp.Expr:
        """Write derived columns out, so that PostgreSQL can evaluate the expression over the source."""

        def change(node: exp.Expr) -> exp.Expr | None:
            if isinstance(node, exp.Column) and node.name in self.derived:
                return ex.group(self.expand(self.derived[node.name]))
            return None

        return ex.rewrite(expression, change)


@dataclass
class DLeaf:
    """A leaf in the draft tree."""

    leaf: int


@dataclass
class DInner:
    """Inner join of several inputs, or a filter over one."""

    children: list[DTree]
    conditions: list[exp.Expr] = field(default_factory=list)


@dataclass
class DOuter:
    """LEFT or FULL join."""

    kind: Literal["left", "full"]
    left: DTree
    right: DTree
    conditions: list[exp.Expr] = field(default_factory=list)


DTree = DLeaf | DInner | DOuter


def leaves(tree: DTree) -> Iterator[int]:
    """The leaves below a draft node."""
    match tree:
        case DLeaf(leaf):
            yield leaf
        case DInner(children=children):
            for child in children:
                yield from leaves(child)
        case DOuter(left=left, right=right):
            yield from leaves(left)
            yield from leaves(right)


def padded(tree: DTree) -> frozenset[int]:
    """The leaves whose columns an outer join inside the tree may replace by NULL."""
    match tree:
        case DLeaf():
            return frozenset()
        case DInner(children=children):
            return frozenset().union(*(padded(c) for c in children))
        case DOuter(kind=kind, left=left, right=right):
            nullable = padded(left) | frozenset(leaves(right))
            return nullable | frozenset(leaves(left)) if kind == "full" else nullable


@dataclass
class Scope:
    """What the names of a FROM clause stand for: per alias, each column as an expression over leaves."""

    tables: dict[str, dict[str, exp.Expr]] = field(default_factory=dict)
    merged: dict[str, exp.Expr] = field(default_factory=dict)
    """Columns of USING and NATURAL joins, which belong to no table."""

    def add(self, alias: str, columns: dict[str, exp.Expr]) -> None:
        """Make a table visible."""
        self.tables[alias] = columns

    def absorb(self, other: Scope) -> None:
        """Make all of another scope visible."""
        self.tables.update(other.tables)
        self.merged.update(other.merged)

    def find(self, column: exp.Column) -> exp.Expr:
        """Resolve one column."""
        if column.table:
            table = self.tables.get(column.table)
            if table is None or column.name not in table:
                if column.name in _SYSTEM_COLUMNS:
                    raise NotDifferentiable(registry.SYSTEM_COLUMN, f"the system column {column.name}")
                raise NotDifferentiable(
                    registry.UNRULED, f"a reference to {ex.pg(column)} outside of its own FROM clause"
                )
            return table[column.name]
        if column.name in self.merged:
            return self.merged[column.name]
        found = [t[column.name] for t in self.tables.values() if column.name in t]
        if len(found) != 1:
            raise NotDifferentiable(registry.UNRULED, f"the unqualified column {column.name!r}")
        return found[0]

    def resolve(self, expression: exp.Expr) -> exp.Expr:
        """Replace every column by its expression over leaves."""

        def change(node: exp.Expr) -> exp.Expr | None:
            if isinstance(node, exp.Column):
                if isinstance(node.this, exp.Star):
                    raise NotDifferentiable(registry.WHOLE_ROW, "a whole row used as a value")
                return ex.group(self.find(node))
            return None

        return ex.rewrite(expression, change)
