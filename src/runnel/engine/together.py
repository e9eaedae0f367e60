"""Small refreshes that are done together when there are fewer hands than work.

A refresh of few rows costs its transaction more than its rows: the catalog is read, changes are counted, a commit waits
for the disk. So of the stream tables that are due, those that read the same captured tables are refreshed in one
transaction, in which all that they share is done once. Nobody is worse off for it:

- as long as a worker is free for each, each has its own;
- only what was short when it was last done joins, and only as much as is over in a moment. Whatever turns out to be
  large is left out (`runnel.refresh.unit`);
- if one of them fails, nothing has happened, and all are refreshed alone, for a while;
- they have one owner, so nobody's code runs in a transaction of others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil

from runnel.engine.agenda import Turn
from runnel.engine.registry import Registry

MOST_SECONDS = 0.4
"""How long those that are refreshed together took alone, in all."""
ALONE_SECONDS = 30.0
"""How long those are left alone that were too large, or that had to be undone."""
CAPTURED = "TABLE"
"""The kind of sources that they may read: what captured tables and nothing else are read from."""


@dataclass
class Together:
    """How long stream tables took, and who may share a transaction."""

    _seconds: dict[int, float] = field(default_factory=dict)
    """Of the last refresh."""
    _alone: dict[int, float] = field(default_factory=dict)
    """Until when some are refreshed alone."""

    def took(self, tables: Collection[int], seconds: float) -> None:
        """These were refreshed in one turn."""
        self._seconds.update(dict.fromkeys(tables, seconds / max(1, len(tables))))

    def alone(self, tables: Collection[int]) -> None:
        """These were not fit for company: they are refreshed alone for a while."""
        self._alone.update(dict.fromkeys(tables, time.monotonic() + ALONE_SECONDS))

    def parties(
        self, due: Sequence[Turn], registry: Registry, hands: int, is_held: Callable[[int], bool]
    ) -> Iterator[list[Turn]]:
        """Who is refreshed with whom, the latest first; as many small ones as there are hands."""
        waiting = list(due)
        small = sum(not turn.heavy for turn in waiting)
        while waiting:
            first = waiting.pop(0)
            party = [first]
            if not first.heavy:
                if hands <= 0:
                    continue
                if small > hands:
                    # Evenly, so that no hand is idle meanwhile.
                    company = self._company(first, waiting, registry, is_held)
                    party += islice(company, ceil(small / hands) - 1)
                    waiting = [turn for turn in waiting if turn not in party]
                hands, small = hands - 1, small - len(party)
            yield party

    def _company(
        self, first: Turn, others: Sequence[Turn], registry: Registry, is_held: Callable[[int], bool]
    ) -> Iterator[Turn]:
        left = MOST_SECONDS - self._cost(first, registry)
        if left <= 0:
            return
        (table,) = first.members
        owner, sources = registry.rows[table].owner, registry.relations_read[table].keys()
        for turn in others:
            cost = self._cost(turn, registry)
            if cost > left or is_held(turn.members[0]):
                continue
            (other,) = turn.members
            if registry.rows[other].owner == owner and not sources.isdisjoint(registry.relations_read[other]):
                left -= cost
                yield turn

    def _cost(self, turn: Turn, registry: Registry) -> float:
        """Seconds; no end of them if a unit does not share its transaction."""
        if turn.heavy or len(turn.members) != 1:
            return float("inf")
        (table,) = turn.members
        if registry.graph[table] or any(kind != CAPTURED for kind in registry.relations_read[table].values()):
            return float("inf")
        if time.monotonic() < self._alone.get(table, 0.0):
            return float("inf")
        return self._seconds.get(table, float("inf"))


def joined(party: Sequence[Turn]) -> Turn:
    """One turn for all."""
    return Turn(
        [n for turn in party for n in turn.members],
        {n: at for turn in party for n, at in turn.planned.items()},
        party[0].due,
        heavy=any(turn.heavy for turn in party),
        together=len(party) > 1,
    )
