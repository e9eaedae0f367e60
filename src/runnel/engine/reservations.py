"""Who works on which stream tables: never two jobs on the same one.

Snapshots keep refreshes of different stream tables apart, also where one reads the other. What they do not keep apart
are two writers of one table, and a reader of a table that is being redefined: PostgreSQL rewrites it, and an older
snapshot finds it empty. So a refresh holds the tables of its unit, and whatever changes a definition holds the table
with all that read it. A job takes everything at once, so no two wait for each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from runnel.engine.job import Job, Subject
from runnel.errors import TransientError

_LOOK_SECONDS = 0.05
_PATIENCE = 60.0
"""Of a job that holds something already, and could be waited for itself."""


@dataclass
class Reservations:
    """The stream tables that are being worked on, and those that somebody waits for."""

    _held: dict[Subject, Job] = field(default_factory=dict)
    _wanted: list[frozenset[Subject]] = field(default_factory=list)
    """By calls that wait: whoever comes by schedule lets them go first."""
    _logged: list[frozenset[Subject]] = field(default_factory=list)
    """Stream tables that must keep a log, for a reader whose definition is not committed yet."""
    _freed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, job: Job, tables: Collection[Subject]) -> bool:
        """Hold these at once, or nothing; calls that wait for one of them go first."""
        wanted = frozenset(tables)
        with self._freed:
            if not wanted.isdisjoint(self._held) or any(not wanted.isdisjoint(w) for w in self._wanted):
                return False
            self._hold(job, wanted)
            return True

    @contextmanager
    def holding(self, job: Job, tables: Callable[[], Collection[Subject]]) -> Iterator[frozenset[Subject]]:
        """Wait until these are free and hold them. `tables` is asked again when they are: they may be others then."""
        before = job.held
        wanted = frozenset(tables())
        while True:
            self._wait(job, wanted)
            try:
                found = frozenset(tables())
            except BaseException:
                self.release(job, keep=before)
                raise
            if found <= wanted:
                break
            self.release(job, keep=before)
            wanted = found
        try:
            yield wanted
        finally:
            self.release(job, keep=before)

    def add(self, job: Job, table: int) -> None:
        """Hold one that nobody can know yet."""
        with self._freed:
            self._hold(job, frozenset({table}))

    def release(self, job: Job, keep: frozenset[Subject] = frozenset()) -> None:
        """Let go of what a job holds."""
        with self._freed:
            for table in job.held - keep:
                if self._held.get(table) is job:
                    del self._held[table]
            job.held = keep
            self._freed.notify_all()

    def holder(self, table: int) -> Job | None:
        """Who works on a stream table."""
        with self._freed:
            return self._held.get(table)

    @contextmanager
    def logging(self, job: Job, tables: Collection[Subject]) -> Iterator[None]:
        """Let these keep logs from now on: refreshes that began without are over when this begins."""
        wanted = frozenset(tables)
        with self._freed:
            self._logged.append(wanted)
        try:
            for table in wanted - job.held:
                with self.holding(job, partial(_together, job.held, table)):
                    pass
            yield
        finally:
            with self._freed:
                self._logged.remove(wanted)

    def must_log(self, table: int) -> bool:
        """Whether a reader is being made whose definition is not committed yet."""
        with self._freed:
            return any(table in logged for logged in self._logged)

    def _wait(self, job: Job, wanted: frozenset[Subject]) -> None:
        deadline = time.monotonic() + _PATIENCE if job.held else None
        with self._freed:
            self._wanted.append(wanted)
            try:
                while any(self._held.get(table, job) is not job for table in wanted):
                    self._freed.wait(_LOOK_SECONDS)
                    job.check()
                    if deadline is not None and time.monotonic() > deadline:
                        raise TransientError("a stream table that it reads is being worked on", sqlstate="55P03")
                self._hold(job, wanted)
            finally:
                self._wanted.remove(wanted)

    def _hold(self, job: Job, tables: frozenset[Subject]) -> None:
        self._held.update(dict.fromkeys(tables, job))
        job.held |= tables


def _together(held: frozenset[Subject], more: Subject) -> frozenset[Subject]:
    return held | {more}
