"""One piece of work of an engine: what it is, how far it has come, and how to stop it.

A job is done by one worker. Others may look at it, and may ask it to stop: its statement is cancelled, its Spark jobs
are, and at its next step it ends by itself. What it cleans up afterwards is not disturbed.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import psycopg

from runnel.catalog.lost import insist, is_lost
from runnel.errors import Cancelled
from runnel.refresh.unit import RefreshFailed

Class = Literal["refresh", "heavy", "call"]
"""What a job counts as: a refresh by schedule; a rebuild or a check by schedule; something a caller waits for."""

Subject = int | str
"""What a job may hold: a stream table, or a name that is to become one."""

_numbers = itertools.count(1)


@dataclass
class Job:
    """Work that a worker does."""

    kind: Class
    what: str
    """For people: refresh, create, verify, ..."""
    subject: str = ""
    """The stream table that it is about, as far as it is known."""
    request_id: int | None = None
    caller_pid: int | None = None
    role: str | None = None
    """Who asked for it."""
    number: int = field(default_factory=lambda: next(_numbers))
    began: float = field(default_factory=time.time)
    at: str = "starting"
    """The phase that it is in."""
    since: float = field(default_factory=time.time)
    """When the phase began."""
    done: int = 0
    expected: int | None = None
    held: frozenset[Subject] = frozenset()
    """What nobody else works on."""
    ending: bool = False
    """Whether it was stopped because the engine ends, or a table that it is about."""
    meant: int | None = None
    """The stream table for whose sake it was stopped."""
    _why: str | None = None
    _open: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- progress ------------------------------------------------------------------------------------------------

    def phase(self, name: str) -> None:
        """What is done from now on."""
        self.check()
        if name != self.at:
            self.at, self.since, self.done, self.expected = name, time.time(), 0, None

    def expect(self, rows: int) -> None:
        """About so many rows are to come in this phase."""
        self.expected = (self.expected or 0) + rows

    def advance(self, rows: int) -> None:
        """So many rows more are done."""
        self.check()
        self.done += rows

    # -- stopping ------------------------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._why is not None

    def stop(self, why: str, *, ending: bool = False) -> None:
        """Ask it to stop; `interrupt` makes that felt. `ending`: the engine or the table does, so this is no news."""
        self._why, self.ending = self._why or why, self.ending or ending

    def check(self) -> None:
        """Raise if it is to stop."""
        if self._why is not None and self._open:
            raise Cancelled(self._why)

    @contextmanager
    def interruptible(self, conn: psycopg.Connection) -> Iterator[None]:
        """Put this around work that may be stopped at any point; what it raises then says so."""
        inside, self._open = self._open, True
        try:
            self.check()
            yield
            self.check()
        except Exception as error:
            if self._why is None or isinstance(error, Cancelled):
                raise
            stopped = Cancelled(self._why)
            if isinstance(error, RefreshFailed):
                raise RefreshFailed(error.table, stopped) from error
            raise stopped from error
        finally:
            if not inside:
                with self._lock:
                    self._open = False
                if self._why is not None and not is_lost(conn):
                    _let_pass(conn)

    def interrupt(self, conn: psycopg.Connection, spark: Callable[[], None]) -> None:
        """Stop what it waits for, if it is where it may be stopped. Called by another thread, until it has ended."""
        with self._lock:
            if self._why is not None and self._open and not conn.closed:
                conn.cancel_safe(timeout=2.0)
                spark()


def _let_pass(conn: psycopg.Connection) -> None:
    """A cancellation that is still on its way hits this statement, and not the next."""
    insist(conn, lambda: conn.execute("SELECT 1"))
