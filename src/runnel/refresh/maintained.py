"""A stream table as the engine holds it: its catalog row, its plan, and what a refresh needs to know of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from runnel.apply.tables import StageTables, stage_tables
from runnel.model.frontier import Frontier
from runnel.model.names import Name
from runnel.model.types import Column
from runnel.model.work import WorkDone
from runnel.plan.stage import Branch, Plan, RowsHead, Stage
from runnel.ports.sink import Published
from runnel.ports.source import Used

Mode = Literal["AUTO", "FULL", "DIFFERENTIAL"]
Action = Literal["DIFFERENTIAL", "FULL", "INITIAL", "REINITIALIZE"]


@dataclass(frozen=True)
class Maintained:
    """Everything fixed about a stream table between two changes of its definition."""

    id: int
    name: Name
    relid: int
    owner: str
    query: str
    """PostgreSQL's canonical print of the defining query."""
    columns: tuple[Column, ...]
    settings: Mapping[str, str]
    mode: Mode
    plan: Plan | None
    reason: str | None
    sources: tuple[Used, ...] = ()
    """The relations it reads, with the columns used."""
    polled: bool = False
    """Without a plan, and its result may change although no captured table does."""
    scales: Mapping[str, int] = field(default_factory=dict)
    """Digits after the point, of numeric columns whose type does not say."""
    logged: bool = False
    """Whether another stream table reads this one's change log."""
    over_lent: str | None = None
    """The query over rows that its sources lend to PostgreSQL; None when PostgreSQL reads all of them by name."""
    forgotten: str = "fallback"
    """What to do when a source no longer knows what changed since the frontier: 'fallback' recomputes, or 'error'."""

    @cached_property
    def fingerprint(self) -> str:
        """Tells plans apart whose state is not interchangeable."""
        if self.plan is None:
            return "none"
        parts = [
            (
                s.index,
                s.head,
                s.columns,
                [(b.tree, b.carried, b.sums, b.inputs, b.late, _leaves(b)) for b in s.branches],
            )
            for s in self.plan.stages
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def recomputes(self) -> bool:
        """Whether every refresh computes it from nothing."""
        return self.plan is None or self.mode == "FULL"

    @property
    def moves_by_itself(self) -> bool:
        """Whether its result may change although no source does."""
        return self.polled or (self.plan is not None and self.plan.uses_clock)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The plan's stages; without a plan one that only knows the result's columns."""
        if self.plan is not None:
            return self.plan.stages
        return (Stage(0, (), RowsHead(tuple(c.type for c in self.columns)), self.columns),)

    def tables(self, stage: Stage) -> StageTables:
        """Where a stage keeps its rows."""
        return stage_tables(self.id, stage, is_last=self.is_last(stage), result=self.name)

    def tables_at(self, index: int) -> StageTables:
        """Where the stage of that number keeps its rows."""
        return self.tables(self.stages[index])

    def is_last(self, stage: Stage) -> bool:
        """Whether the stage is the stream table itself."""
        return stage.index == len(self.stages) - 1


def _leaves(branch: Branch) -> list[tuple[object, ...]]:
    """What is read of each leaf; not the source's size or indexes, which may change freely."""
    return [(leaf.id, leaf.filters, leaf.clock_filters, leaf.computed, leaf.functions) for leaf in branch.leaves]


@dataclass(frozen=True, slots=True)
class Position:
    """What a refresh starts from: the catalog's moving part of a stream table."""

    frontier: Frontier
    version: int
    populated: bool
    reinit: str | None = None
    """Why the table must be rebuilt whatever changed, or None."""


@dataclass
class Outcome:
    """What one refresh of one stream table did."""

    table: Maintained
    action: Action
    changed: bool
    frontier: Frontier
    version: int
    data_timestamp: str
    settled: bool = False
    """Nothing was new, so nothing was done."""
    reason: str | None = None
    changes_read: int = 0
    rows_inserted: int = 0
    rows_deleted: int = 0
    work: WorkDone | None = None
    """By whom it was evaluated; None: nothing was."""
    rows_read: Mapping[str, int | None] = field(default_factory=dict)
    effort: Mapping[str, int] | None = None
    """What was read of sources outside of PostgreSQL."""
    timings: dict[str, float] = field(default_factory=dict)
    refresh_id: int | None = None
    """Its number in the history, if somebody needed it before the history was written."""
    published: Published | None = None
    deferred: bool = False
    """Too large to be published in the same transaction: it is next."""
