"""A thread that lets a story happen at a rate, and remembers when each addition was committed."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import psycopg

from runnel.demo.story import Story


@dataclass(slots=True)
class Tally:
    """What happened so far; written by the traffic's thread, read by others."""

    added: int = 0
    other: int = 0
    commits: deque[tuple[int, float]] = field(default_factory=deque)
    """(id, moment of the commit) of additions that nobody has seen in the lake yet, oldest first."""


class Traffic:
    """Runs until told to stop."""

    def __init__(self, story: Story, dsn: str, rate: float) -> None:
        self.tally = Tally()
        self.error: Exception | None = None
        self._story = story
        self._dsn = dsn
        self._rate = rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="demo-traffic", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=30)

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.error = error

    def _run(self) -> None:
        chance = random.Random(7)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            began = time.monotonic()
            while not self._stopping.is_set():
                due = int((time.monotonic() - began) * self._rate)
                while self.tally.added < due and not self._stopping.is_set():
                    done = self._story.act(connection, chance)
                    self.tally.commits.append((done.newest, time.monotonic()))
                    self.tally.added += 1
                    self.tally.other += done.other
                self._stopping.wait(min(1 / self._rate, 0.5))
