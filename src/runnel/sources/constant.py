"""Rows that the query itself spells out: VALUES, or a function of constants. They never change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runnel.model.frontier import POSTGRES, Version
from runnel.plan.stage import Constant, Leaf
from runnel.ports.rows import Restriction, Rows
from runnel.ports.source import Pending, Reading
from runnel.sources.selects import select_rows


@dataclass(frozen=True, slots=True)
class ConstantRows:
    """A `Source` over constant rows; it moves with nothing, so its version does not matter."""

    reading: Reading
    constant: Constant
    name: str = POSTGRES

    def head(self) -> Version:
        """The version that this refresh reads."""
        return self.reading.snapshot

    def pending(self, since: Version | None) -> Pending:  # noqa: ARG002
        """Nothing is ever new."""
        return Pending()

    def delta(self, leaf: Leaf, since: Version | None) -> Rows | None:  # noqa: ARG002
        """Nothing ever changes."""
        return None

    def read(self, leaf: Leaf, restriction: Restriction | None, keys: Sequence[int] | None = None) -> Rows:
        """The rows."""
        relation = f"({self.constant.sql})"
        return Rows(0, select=lambda: select_rows(self.reading, leaf, relation, restriction, keys))

    def cost(self, leaf: Leaf, sql: str, keys: int) -> float:  # noqa: ARG002
        """Next to nothing."""
        return 1.0

    def lend(self) -> None:
        """They are part of the query."""

    @property
    def changes(self) -> int:
        """None."""
        return 0

    def effort(self) -> Mapping[str, int]:
        """None."""
        return {}
