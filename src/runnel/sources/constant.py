"""Rows that the query itself spells out: VALUES, or a function of constants. Only the clock can move them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runnel.model.frontier import POSTGRES, Version
from runnel.plan.stage import Constant, Leaf
from runnel.ports.rows import Query, Restriction, Rows
from runnel.ports.source import Pending, Reading, Source
from runnel.sources.selects import select_delta, select_rows
from runnel.sources.statements import no_changes


@dataclass(frozen=True, slots=True)
class ConstantRows(Source):
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
        """What the clock moved; nothing else ever changes."""
        if not leaf.clock_filters:
            return None
        buffer = no_changes(self._relation)
        return _anywhere(lambda: select_delta(self.reading, leaf, buffer, self._relation))

    def read(self, leaf: Leaf, restriction: Restriction | None, keys: Sequence[int] | None = None) -> Rows:
        """The rows."""
        return _anywhere(lambda: select_rows(self.reading, leaf, self._relation, restriction, keys))

    @property
    def _relation(self) -> str:
        return f"({self.constant.sql})"

    def cost(self, leaf: Leaf, sql: str, keys: int) -> float:  # noqa: ARG002
        """Next to nothing."""
        return 1.0


def _anywhere(select: Callable[[], Query]) -> Rows:
    """Rows that every session has: they are in the statement."""
    return Rows(0, select=select, slices=lambda most: [select()])  # noqa: ARG005
