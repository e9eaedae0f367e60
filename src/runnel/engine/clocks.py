"""When each stream table is due, with a fence around each: a schedule that cannot be read is its table's failure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from runnel.catalog.rows import StreamTable
from runnel.engine.patience import Patience
from runnel.schedule.dag import Graph
from runnel.schedule.due import Clocked, due_at
from runnel.schedule.spec import Schedule, parse_schedule

SLIP_SECONDS = 0.5
"""A refresh that starts this much late still counts from when it was due."""
FIRST_HOLD = 5.0
LONGEST_HOLD = 300.0


@dataclass
class Clocks:
    """What the scheduler remembers of all stream tables."""

    _clocks: dict[int, Clocked] = field(default_factory=dict)
    _broken: dict[int, Exception] = field(default_factory=dict)
    """Tables whose schedule cannot be followed, and why."""
    _held: dict[int, tuple[float, Patience]] = field(default_factory=dict)
    """Tables left alone until then, because not even their failure could be recorded."""

    def __contains__(self, pgt_id: int) -> bool:
        return pgt_id in self._clocks

    def update(self, rows: Mapping[int, StreamTable]) -> None:
        """Follow the catalog."""
        for pgt_id, row in rows.items():
            known = self._clocks.get(pgt_id)
            if known is None:
                known = self._clocks[pgt_id] = Clocked(self._schedule(row), row.uses_clock, known_since=time.time())
            if known.schedule.kind == "cron" and not known.last_start and row.last_refresh_at:
                # After a restart, or the filling of a new table, cron goes on from there.
                known.last_start = row.last_refresh_at.timestamp()
            if known.schedule.text != row.schedule:
                known.schedule = self._schedule(row)
            known.retry_at = row.retry_at.timestamp() if row.retry_at else 0.0
            if row.retry_at or pgt_id in self._broken:
                known.dirty = True
        for gone in self._clocks.keys() - rows.keys():
            self.forget(gone)

    def forget(self, pgt_id: int) -> None:
        """A stream table was defined, changed, resumed or dropped: it is due as soon as it has changes."""
        for kept in (self._clocks, self._broken, self._held):
            kept.pop(pgt_id, None)

    def due(self, pgt_id: int, graph: Graph) -> float | None:
        """When a table is due next, or None while there is nothing to do."""
        try:
            due = due_at(pgt_id, self._clocks, graph)
        except Exception as error:
            self._broken[pgt_id] = error
            due = self._clocks[pgt_id].retry_at
        held = self._held.get(pgt_id)
        return due if due is None or held is None else max(due, held[0])

    def late(self, pgt_id: int, graph: Graph, now: float) -> float | None:
        """For how long a table has been due, or None if it is not."""
        due = self.due(pgt_id, graph)
        return None if due is None or due >= now else now - max(due, self._clocks[pgt_id].known_since)

    def broken(self, pgt_id: int) -> Exception | None:
        """Why a table's schedule cannot be followed, if so."""
        return self._broken.get(pgt_id)

    def mark_dirty(self, tables: Iterable[int]) -> None:
        """Changes may be waiting for these."""
        for pgt_id in tables:
            clock = self._clocks.get(pgt_id)
            if clock is not None and not clock.dirty:
                clock.dirty, clock.dirty_since = True, time.time()

    def mark_all_dirty(self) -> None:
        """Changes may have been missed."""
        self.mark_dirty(list(self._clocks))

    def begin(self, tables: Iterable[int]) -> None:
        """These are about to be looked at."""
        for pgt_id in tables:
            self._clocks[pgt_id].dirty = False

    def finish(self, pgt_id: int, now: float, planned: float | None, *, worked: bool) -> None:
        """A look that found nothing does not delay the next change; cron and the clock go on in any case."""
        self._held.pop(pgt_id, None)
        clock = self._clocks.get(pgt_id)
        if clock and (worked or clock.uses_clock or clock.schedule.kind == "cron"):
            # Counted from when it was due, so that a steady stream of changes keeps a steady rhythm.
            late = now - (planned or now)
            clock.last_start = now - late if late < SLIP_SECONDS else now

    def hold(self, tables: Iterable[int]) -> None:
        """Leave tables alone for a while, longer each time."""
        for pgt_id in tables:
            _, patience = self._held.get(pgt_id, (0.0, Patience(FIRST_HOLD, LONGEST_HOLD)))
            self._held[pgt_id] = time.time() + patience.next(), patience

    def _schedule(self, row: StreamTable) -> Schedule:
        self._broken.pop(row.pgt_id, None)
        try:
            return parse_schedule(row.schedule)
        except Exception as error:
            self._broken[row.pgt_id] = error
            return Schedule("duration", row.schedule, seconds=FIRST_HOLD)
