"""What the parts of the generator hand to each other: the choices, the sources, and how much may still be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

from hypothesis import strategies as st

from tests.oracle.values import Col, chance, pick, several

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """Something that can stand in FROM, with the names of its columns."""

    sql: str
    columns: Sequence[Col]
    unique: tuple[str, ...] | None = None
    """Columns that tell any two of its rows apart, where that is known."""
    key: str | None = None
    """Its primary key, if it is a table with one."""


@dataclass(frozen=True)
class Query:
    """The text of a query and its columns."""

    sql: str
    columns: Sequence[Col]
    unique: tuple[str, ...] | None = None

    def source(self) -> Source:
        """The query as an item of FROM."""
        return Source(f"({self.sql})", self.columns, self.unique)


@dataclass
class Budget:
    """Shared by everything in one query. Each nested SELECT costs one, so that no query grows beyond reading."""

    left: int
    ties: bool = False
    """Whether orders that do not decide everything may be written."""
    tied: bool = False
    """Whether one was: then only Runnel's completed query says what the result is."""
    names: count[int] = field(default_factory=count)


@dataclass(frozen=True)
class Context:
    """One block under construction."""

    draw: st.DrawFn
    sources: Sequence[Source]
    budget: Budget
    level: int = 0
    """How many blocks around this one are visible from inside; it decides the aliases."""

    def pick(self, options: Sequence[T]) -> T:
        """One of several; the first is the simplest."""
        return pick(self.draw, options)

    def several(self, options: Sequence[T], least: int, most: int) -> list[T]:
        """Some of them, none twice."""
        return several(self.draw, options, least, most)

    def chance(self, percent: int) -> bool:
        """True so often; False is simpler."""
        return chance(self.draw, percent)

    def number(self, least: int, most: int) -> int:
        """An integer; the least is the simplest."""
        return self.draw(st.integers(least, most))

    def spend(self, percent: int) -> bool:
        """Like chance, for what adds a SELECT."""
        if self.budget.left <= 0 or not self.chance(percent):
            return False
        self.budget.left -= 1
        return True

    def inside(self) -> Context:
        """For a block that sees the columns of this one."""
        return replace(self, level=self.level + 1)

    def knowing(self, *sources: Source) -> Context:
        """With sources that are likely to be picked."""
        return replace(self, sources=[*sources, *self.sources])

    def alias(self, number: int) -> str:
        """The name of a FROM item: another letter for each level."""
        return f"{'abcdefghij'[min(self.level, 9)]}{number}"

    def name(self, prefix: str) -> str:
        """A name that nothing else in the query has."""
        return f"{prefix}{next(self.budget.names)}"


def firm(columns: Sequence[Col]) -> list[Col]:
    """Columns that can be compared: certain to the last digit, of a type with an equality."""
    return [c for c in columns if not c.rough and c.kind != "json"]


def named(items: Sequence[Col]) -> tuple[str, list[Col]]:
    """A select list, and its columns under their new names."""
    text = ", ".join(f"{c.sql} AS c{i}" for i, c in enumerate(items))
    return text, [replace(c, sql=f"c{i}") for i, c in enumerate(items)]


def shown(items: Sequence[Col], unique: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names under which unique columns are shown, if all of them are."""
    if unique is None:
        return None
    names = {c.sql: f"c{i}" for i, c in enumerate(items)}
    return tuple(names[u] for u in unique) if all(u in names for u in unique) else None
