"""Definitions on their way: one at a time touches what all share, and nothing is swept from under the others.

Capture is installed and committed before the definition that needs it is: between the two nobody seems to need it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

from runnel.engine.definitions import release_captures, release_sources
from runnel.engine.job import Job

_LOOK_SECONDS = 0.05


@dataclass
class Defining:
    """Who changes definitions in this engine."""

    _turn: threading.RLock = field(default_factory=threading.RLock)
    _under_way: int = 0
    changes: int = 0
    """Rises with every change of a definition."""

    @contextmanager
    def alone(self, job: Job) -> Iterator[None]:
        """For what is short: capture, rows of the catalog, DDL on tables of Runnel's."""
        while not self._turn.acquire(timeout=_LOOK_SECONDS):
            job.check()
        try:
            yield
        finally:
            self.changed()
            self._turn.release()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """From the capture of sources to the COMMIT of the definition that needs them, however long."""
        with self._turn:
            self._under_way += 1
        try:
            yield
        finally:
            with self._turn:
                self._under_way -= 1
                self.changed()

    def changed(self) -> None:
        """Whoever knows definitions by heart must read them anew."""
        self.changes += 1

    def release_sources(self, conn: psycopg.Connection) -> None:
        """Remove what nobody needs, unless somebody may be about to: then the next turn does it."""
        if not self._turn.acquire(timeout=0):
            return
        try:
            if self._under_way == 0:
                release_captures(conn)
                with conn.transaction():
                    conn.execute("SET LOCAL lock_timeout = '2s'")
                    release_sources(conn)
        finally:
            self._turn.release()
