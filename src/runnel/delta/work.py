"""A term with what was read for it: all that an evaluation needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from runnel.delta.parts import Term
from runnel.delta.restrict import Many, Reads
from runnel.plan.stage import Branch

Side = Literal["delta", "after"]
"""What is read of a leaf: what changed, or what it holds now."""


@dataclass(frozen=True, slots=True)
class Work:
    """One term of one branch."""

    number: int
    """Of the branch in its stage."""
    branch: Branch
    term: Term
    reads: Reads
    changed: Mapping[int, pa.Table | Many]
    """The deltas of the leaves that changed; of those that tasks read only that they did."""
    whole: Term
    """The term with all its parts; `term` may be without those that have no rows."""

    def after(self, leaf: int) -> pa.Table:
        """A leaf's rows that were read."""
        rows = self.reads.after[leaf]
        assert isinstance(rows, pa.Table)
        return rows

    def rows_of(self, leaf: int, side: Side) -> pa.Table | None:
        """The rows of a leaf; None: tasks read them."""
        rows = self.changed[leaf] if side == "delta" else self.reads.after.get(leaf)
        return rows if isinstance(rows, pa.Table) else None

    @property
    def rows(self) -> int:
        """All rows that were read, without those that tasks read."""
        tables = [*(self.after(leaf) for leaf in self.reads.after), *self.changed.values()]
        return sum(int(table.num_rows) for table in tables if isinstance(table, pa.Table))

    @property
    def by_tasks(self) -> bool:
        """Whether tasks read some of it."""
        return bool(self.reads.scanned) or any(isinstance(table, Many) for table in self.changed.values())
