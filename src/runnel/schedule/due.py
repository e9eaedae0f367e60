"""Who is due, and when to look again.

A duration is the least time between two refreshes: a stream table with changes waiting is due once that time has
passed since its last refresh, so the first change after a quiet time is refreshed at once. Where that time is long, a
moment later: whoever changes a table and then asks for a refresh is the one who refreshes it. Cron fires at its times.
`calculated` follows the shortest schedule of what reads the table. Tables that follow the clock are due every period.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runnel.schedule.dag import Graph, descendants
from runnel.schedule.spec import Schedule

DEFAULT_SECONDS = 1.0
"""The period of a `calculated` table that nobody reads."""
LONG_SECONDS = 10.0
"""A period from which on a moment more does not count."""
MOMENT = 0.3


@dataclass
class Clocked:
    """What the scheduler remembers of one stream table."""

    schedule: Schedule
    uses_clock: bool
    last_start: float = 0.0
    retry_at: float = 0.0
    dirty: bool = True
    """Changes may be waiting."""
    dirty_since: float = 0.0
    """When that was heard; long ago, if nobody knows."""
    known_since: float = 0.0
    """Nobody has waited for longer than that."""


def period(node: int, tables: Mapping[int, Clocked], graph: Graph) -> float:
    """The effective period of a table that is not on cron."""
    schedule = tables[node].schedule
    if schedule.kind == "duration":
        return schedule.seconds
    below = [tables[d].schedule for d in descendants(graph, node) if d in tables]
    return min((s.seconds for s in below if s.kind == "duration"), default=DEFAULT_SECONDS)


def due_at(node: int, tables: Mapping[int, Clocked], graph: Graph) -> float | None:
    """When a table is due next, or None while there is nothing to do."""
    table = tables[node]
    if table.schedule.kind == "cron":
        due = table.schedule.next_fire(table.last_start)
    elif table.dirty or table.uses_clock:
        pause = period(node, tables, graph)
        due = max(table.last_start + pause, table.dirty_since + (MOMENT if pause >= LONG_SECONDS else 0.0))
    else:
        return None
    return max(due, table.retry_at)
