"""What the engine's own thread works with: two connections, what it knows of the catalog, and its workers."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from runnel.catalog import claim
from runnel.catalog import requests as calls
from runnel.catalog.lost import first_line, is_lost
from runnel.catalog.sessions import pinned
from runnel.engine.agenda import Turn
from runnel.engine.around import Around
from runnel.engine.clocks import Clocks
from runnel.engine.housekeeping import Housekeeping
from runnel.engine.job import Job
from runnel.engine.registry import Registry
from runnel.engine.reservations import Reservations
from runnel.engine.workers import House, Pool, Task
from runnel.errors import RunnelError
from runnel.refresh.maintained import Outcome
from runnel.sinks.known import Known
from runnel.sinks.leftovers import Leftovers

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

log = logging.getLogger(__name__)

BRIEF_CALLS = ("drop", "resume", "cancel")
"""What is over soon by itself."""


class Desk:
    """Lives as long as the engine; connections and workers come and go."""

    listen: psycopg.Connection[Any]
    """Holds the claim on the database, and hears."""
    control: psycopg.Connection[Any]
    """Takes requests and keeps house."""
    role: str
    """The engine's own."""
    sessions: Sessions

    def __init__(self, dsn: str, workers: int, on_event: Callable[[str], None]) -> None:
        self.dsn, self.workers, self.on_event = dsn, workers, on_event
        self.stopping = threading.Event()
        self.connections: list[psycopg.Connection[Any]] = []
        self.around = Around()
        self.registry = Registry(plans=self.around.plans)
        self.clocks = Clocks()
        self.house = Housekeeping()
        self.turns: dict[int, tuple[Turn, float]] = {}
        """The refreshes that are under way, by the number of their job."""
        self.reopened: queue.SimpleQueue[int] = queue.SimpleQueue()
        """Stream tables that were defined, changed or resumed."""
        self.refreshed: queue.SimpleQueue[Sequence[Outcome]] = queue.SimpleQueue()
        """What refreshes of all kinds have come to, one transaction after the other."""
        self.wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._pool: Pool | None = None

    def wake(self) -> None:
        """Let the thread look around; safe from other threads and from signal handlers."""
        try:
            os.write(self._wake_write, b"x")
        except (BlockingIOError, OSError):
            log.debug("already awake")

    # -- what it knows -----------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Read the catalog anew."""
        changes = self.around.defining.changes
        self.registry.reload(self.control)
        self.registry.changes = changes
        self.around.plans.retain(self.registry.rows)

    def forget(self) -> None:
        """Nothing that is known may be true any more; all stream tables may have changes waiting."""
        self.registry.forget_all()
        self.around.defining.changed()
        self.clocks.mark_all_dirty()

    def named(self, members: Sequence[int]) -> str:
        """The names of stream tables, for people."""
        rows = [self.registry.rows[n] for n in members]
        return ", ".join(f"{row.pgt_schema}.{row.pgt_name}" for row in rows)

    # -- workers -----------------------------------------------------------------------------------------------

    def hire(self, sessions: Sessions) -> None:
        """Let there be workers; the first one is there from the start."""
        self.sessions = sessions
        self._leftovers = Leftovers(pinned(self.dsn))
        house = House(
            self.dsn,
            sessions,
            self.role,
            self.around,
            self._leftovers,
            Known(),
            self.on_event,
            self.refreshed.put,
            self._reopen,
            lambda name: calls.cancel_sessions(self.control, name),
        )
        # What a worker that never came back holds, it holds for ever.
        self.around.reservations = Reservations()
        self.around.tidy_others = self._tidy_others
        self.around.stop_work_on = self._stop_work_on
        self.around.stir = self.wake
        self.around.jobs = lambda: [job for _, job in self.pool.running()]
        self._pool = Pool(house, self.workers, lambda pids: claim.register_writers(self.control, pids), self.wake)

    def dismiss(self, why: str) -> None:
        """No more workers; what they were at is undone."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(why)
            self._leftovers.close()
        self.turns.clear()

    @property
    def pool(self) -> Pool:
        """The workers."""
        assert self._pool is not None, "call start() first"
        return self._pool

    @property
    def has_workers(self) -> bool:
        """Whether there are any."""
        return self._pool is not None

    @property
    def is_busy(self) -> bool:
        """Whether a worker is at something."""
        return self._pool is not None and bool(self._pool.running())

    def start(self, job: Job, task: Task, tables: Collection[int] = ()) -> bool:
        """Let a worker begin; False if there is none and the server has no room for another session."""
        try:
            self.pool.start(job, task, tables)
        except (psycopg.Error, RunnelError) as error:
            if is_lost(*self.connections):
                raise
            log.warning("no worker could be hired: %s", first_line(error))
            self.around.reservations.release(job)
            return False
        return True

    # Workers call these.

    def _reopen(self, pgt_id: int) -> None:
        self.reopened.put(pgt_id)
        self.wake()

    def _tidy_others(self, redefined: int | None) -> None:
        if self._pool is not None:
            self._pool.tidy(redefined)

    def _stop_work_on(self, pgt_id: int, why: str) -> None:
        holder = self.around.reservations.holder(pgt_id)
        if holder is not None and holder.what not in BRIEF_CALLS:
            holder.stop(why, ending=True)
            self.wake()
