"""A server and an engine that a test kills again and again."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.server.embedded import EmbeddedServer
from tests.robustness.processes import Process, engine_process

OPEN_REFRESH = """
SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8 FROM pg_stat_activity
WHERE application_name = 'runnel refresh' AND xact_start IS NOT NULL AND datname = current_database()
"""


@dataclass
class Stack:
    """A server, the engine that works on it, and what has happened to them."""

    server: EmbeddedServer
    processes: list[Process]
    chance: random.Random
    engine: Process = field(init=False)
    hits: Counter[str] = field(default_factory=Counter)
    env: Mapping[str, str] = field(default_factory=dict)

    def start_engine(self, *, wait: bool = True) -> None:
        self.engine = engine_process(self.server.dsn, env=self.env)
        self.processes.append(self.engine)
        if wait:
            self.engine.wait_for("^ready")

    def kill_engine(self) -> None:
        """SIGKILL, for the whole group or for the driver alone: then its JVM must go by itself."""
        self.engine.kill(group=self.chance.random() < 0.7)
        left = self.engine.leftovers()
        assert not left, f"left behind by a killed engine: {left}"

    def crash_server(self) -> None:
        self.server.stop("immediate")
        self.server.start()

    def await_refresh(self, conn: psycopg.Connection[Any], seconds: float = 20.0) -> None:
        """Until a refresh transaction is open, then a random while longer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and conn.execute(OPEN_REFRESH).fetchone() is None:
            time.sleep(0.01)
        time.sleep(self.chance.choice((0.0, 0.02, 0.1, 0.3, 0.6, 1.0, 2.0)) * self.chance.random())

    def note(self, conn: psycopg.Connection[Any], what: str) -> None:
        """Remember whether a refresh is open right now."""
        within = conn.execute(OPEN_REFRESH).fetchone() is not None
        self.hits[f"{what} {'within' if within else 'between'} refreshes"] += 1
