"""Spark as an engine has it: started and warmed up beside everything else, stopped with the engine.

A JVM takes seconds to start, and its first refreshes are slow. So Spark of the engine's own starts in a thread: the
engine has its database already and takes calls, and those wait for Spark. Then it is warmed up, in moments in which
nobody works: whoever comes meanwhile need not wait for the end of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runnel.spark.session import Sessions, SparkSession

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.1
SECONDS_TO_STOP = 10.0


@dataclass
class Application:
    """The Spark application of one engine."""

    given: SparkSession | None
    """Somebody else's, used as it is."""
    master: str
    tasks_above: int | None
    joins_in_spark: bool
    package: str | None
    on_event: Callable[[str], None]
    sessions: Sessions | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _starting: threading.Thread | None = None
    _failure: Exception | None = None
    _warming: threading.Thread | None = None

    @property
    def starts_by_itself(self) -> bool:
        """Whether nobody need wait for it: nothing can be wrong with it but the machine."""
        from runnel.spark.master import is_cluster  # noqa: PLC0415

        return self.given is None and not is_cluster(self.master)

    def begin(self) -> None:
        """Let Spark start in a thread."""
        if self._starting is None:
            self._starting = threading.Thread(target=self._begin, name="Spark's start", daemon=True)
            self._starting.start()

    def wait(self, stopping: threading.Event) -> Sessions | None:
        """Spark when it is there, or None if there is no need for it any more; raises what kept it from starting."""
        while self._starting is not None and self._starting.is_alive() and not stopping.is_set():
            self._starting.join(PAUSE_SECONDS)
        if self._failure is not None:
            raise self._failure
        return self.sessions

    def _begin(self) -> None:
        try:
            self.start()
        except Exception as error:
            self._failure = error

    def start(self) -> Sessions:
        """Start Spark, or take the one that was given."""
        from runnel.spark import session  # noqa: PLC0415  (Spark is imported only when it is used)
        from runnel.spark.master import is_cluster  # noqa: PLC0415

        began = time.monotonic()
        rows = session.SMALL_ROWS if self.tasks_above is None else self.tasks_above
        if self.given is not None:
            sessions = session.adopt(self.given, small_rows=rows)
        else:
            if is_cluster(self.master):
                # A cluster that is full, or has no workers, keeps everybody waiting without a word.
                self.on_event(f"Spark on {self.master}: waiting for executors ...")
            sessions = session.build_sessions(self.master, rows, self.package)
            self.on_event(f"Spark started ({time.monotonic() - began:.1f} s)")
        self.sessions = replace(sessions, joins_in_spark=self.joins_in_spark)
        return self.sessions

    def warm_up(self, is_busy: Callable[[], bool]) -> None:
        """Let Spark of our own run itself warm, in a thread and while nobody works."""
        if self.given is None and self._warming is None:
            self._warming = threading.Thread(target=self._warm, args=(is_busy,), name="warm-up", daemon=True)
            self._warming.start()

    def stop(self) -> None:
        """Let go of it."""
        self._stopping.set()
        for thread in (self._starting, self._warming):
            if thread is not None:
                thread.join(SECONDS_TO_STOP)
        if self.sessions is not None:
            self.sessions.stop()
            self.sessions = None

    def _warm(self, is_busy: Callable[[], bool]) -> None:
        from runnel.spark import warm  # noqa: PLC0415

        def may_go_on() -> bool:
            while is_busy() and not self._stopping.wait(PAUSE_SECONDS):
                pass
            return not self._stopping.is_set()

        began = time.monotonic()
        assert self.sessions is not None
        try:
            warm.warm_up(self.sessions, may_go_on)
        except Exception as error:
            # Nothing depends on it. If Spark is gone, whoever works next says so.
            log.debug("Spark could not be warmed up: %s", error)
        else:
            if not self._stopping.is_set():
                self.on_event(f"Spark is warm ({time.monotonic() - began:.1f} s)")
