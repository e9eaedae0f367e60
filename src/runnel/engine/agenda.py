"""What is done next: of the units that are due, those that have waited longest, upstream before downstream.

Who is due first goes first, so a table that is always busy never keeps another one waiting: its next turn is due after
theirs. When there is more to do than the machine can, everybody's turn comes later, and nobody's is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runnel.engine.clocks import Clocks
from runnel.engine.registry import Registry
from runnel.schedule.dag import ancestors

RUNNABLE = ("ACTIVE", "INITIALIZING")


@dataclass(frozen=True, slots=True)
class Turn:
    """A unit that is due."""

    members: Sequence[int]
    """Those that may be refreshed, upstream first."""
    planned: Mapping[int, float | None]
    """When each was due."""
    due: float
    heavy: bool
    """Whether it is known to take long: something is built, or recomputed."""
    together: bool = False
    """Whether these are several units that share a transaction only because they are small."""


def is_runnable(registry: Registry, clocks: Clocks, node: int) -> bool:
    """Whether a stream table takes part at all; one whose definition is to be compiled anew waits for that."""
    row = registry.rows.get(node)
    return node in clocks and row is not None and row.status in RUNNABLE and row.drift is None


def turns(
    registry: Registry, clocks: Clocks, now: float, busy: Collection[int], is_held: Callable[[int], bool]
) -> Iterator[Turn]:
    """The units that are due, the latest first; none before what it reads.

    `busy`: stream tables that are being refreshed. One that `is_held` while it is filled for the first time does not
    keep the others of its unit waiting: nobody can read it yet.
    """
    found = []
    for unit in registry.units():
        members = [
            n for n in unit if is_runnable(registry, clocks, n) and (registry.rows[n].is_populated or not is_held(n))
        ]
        planned = {n: clocks.due(n, registry.graph) for n in members}
        late = [at for at in planned.values() if at is not None and at <= now]
        if late:
            heavy = any(_is_heavy(registry, n) for n in members)
            found.append(Turn(members, planned, min(late), heavy))
    found.sort(key=lambda turn: turn.due)
    waited_for = set(busy)
    for turn in found:
        above = {a for n in turn.members for a in ancestors(registry.graph, n)}
        if waited_for.isdisjoint(above):
            yield turn
        waited_for.update(turn.members)


def _is_heavy(registry: Registry, node: int) -> bool:
    row = registry.rows[node]
    return not row.is_populated or row.needs_reinit or row.effective_mode == "FULL"


def until_due(registry: Registry, clocks: Clocks, looked: float, longest: float) -> float:
    """Seconds until another stream table is due; those that were when we `looked` have begun, or wait for others."""
    nodes = [n for n in registry.rows if is_runnable(registry, clocks, n)]
    upcoming = [at for n in nodes if (at := clocks.due(n, registry.graph)) is not None and at > looked]
    return max(0.0, min(upcoming, default=time.time() + longest) - time.time())
