"""A limit on how long one step may take, so that one query does not keep the others from their turn."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg

from runnel.errors import RunnelError

GRACE_SECONDS = 120.0
"""From the moment a step is cut off until the process gives up: Spark's work ends only with its job."""

TRY_AGAIN = 75
"""The exit code of a run that gave up on a step (EX_TEMPFAIL): started again, it goes on without that query."""

_END_REFRESH = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'runnel refresh'"


@dataclass(frozen=True, slots=True)
class Watch:
    """Ends the engine's refresh when a step takes too long; its caller then gets an error."""

    dsn: str
    seconds: float
    stop: Callable[[], object]
    """Called before the process gives up."""
    grace: float = GRACE_SECONDS

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        late = threading.Event()
        first = threading.Timer(self.seconds, self._cut_off, (late,))
        last = threading.Timer(self.seconds + self.grace, self._give_up)
        for timer in (first, last):
            timer.daemon = True
            timer.start()
        try:
            yield
        except (RunnelError, psycopg.Error) as error:
            if late.is_set():
                raise RunnelError(f"ended after {self.seconds / 60:g} minutes") from error
            raise
        finally:
            first.cancel()
            last.cancel()

    def _cut_off(self, late: threading.Event) -> None:
        late.set()
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(_END_REFRESH)

    def _give_up(self) -> None:
        sys.stderr.write(
            "\nA step does not end. Run the same command again (with --home) to go on without that query.\n"
        )
        sys.stderr.flush()
        with contextlib.suppress(Exception):
            self.stop()
        os._exit(TRY_AGAIN)
