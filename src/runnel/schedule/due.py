"""Who is due, and when to look again.

A duration is the least time between two refreshes: a stream table with changes waiting is due once that time has
passed since its last refresh, so the first change after a quiet time is refreshed at once. Cron fires at its
times. `calculated` follows the shortest schedule of what reads the table. Tables that follow the clock are due
every period.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runnel.schedule.dag import Graph, descendants
from runnel.schedule.spec import Schedule

DEFAULT_SECONDS = 1.0
"""The period of a `calculated` table that nobody reads."""


@dataclass
class Clocked:
    """What the scheduler remembers of one stream table."""

    schedule: Schedule
    uses_clock: bool
    last_start: float = 0.0
    retry_at: float = 0.0
    dirty: bool = True
    """Changes may be waiting."""


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
        due = table.last_start + period(node, tables, graph)
    else:
        return None
    return max(due, table.retry_at)
