"""Which way a refresh goes, from one cheap look at its sources, before any Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from runnel.ports.source import Pending
from runnel.refresh.maintained import Action, Maintained, Position

WhyFull = Callable[[int], str | None]
"""Why to recompute a table for which this many changed rows wait, or None."""


@dataclass(frozen=True, slots=True)
class Way:
    """What a refresh is going to do."""

    action: Action
    reason: str | None = None
    settled: bool = False
    """Nothing is new, so there is nothing to do."""


def choose(table: Maintained, position: Position, waiting: Iterable[Pending], why_full: WhyFull) -> Way:
    """Nothing, the delta, or everything."""
    if not position.populated:
        return Way("INITIAL")
    if position.reinit:
        return Way("REINITIALIZE", position.reinit)
    waiting = list(waiting)
    forced = why_full(sum(p.rows for p in waiting))
    idle = not forced and not any(p.any for p in waiting) and not table.moves_by_itself
    if table.recomputes:
        return Way("FULL", None if idle else forced or table.reason or "refresh_mode is FULL", settled=idle)
    reason = forced or next((p.recompute for p in waiting if p.recompute), None)
    return Way("FULL", reason) if reason else Way("DIFFERENTIAL", settled=idle)
