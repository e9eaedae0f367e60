"""When to look at sources that no trigger of this database speaks for.

Some of them tell that they moved, by a notification. Anybody can send one, so it is followed at most ten times a
second. Those that cannot tell are looked at every second while somebody reads them.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from runnel.sources.registry import Kinds

LOOK_SECONDS = 0.1
POLL_SECONDS = 1.0
IDLE_SECONDS = 30.0


class Watch:
    """Looks at the sources of all kinds."""

    def __init__(self, kinds: Kinds) -> None:
        """Nothing has been looked at yet."""
        self._kinds = kinds
        self._told = False
        self._looked = 0.0
        self.polled: set[int] = set()
        """Relations that cannot tell of changes."""

    def tell(self) -> None:
        """There is a hint that something moved."""
        self._told = True

    def is_due(self, *, awake: bool) -> bool:
        """Whether to look now; `awake`: changes are coming in."""
        pause = LOOK_SECONDS if awake or self._told else POLL_SECONDS if self.polled else IDLE_SECONDS
        return time.time() - self._looked >= pause

    def wait(self) -> float:
        """Seconds until a hint is followed that came too soon after the last one."""
        return max(0.0, self._looked + LOOK_SECONDS - time.time()) if self._told else IDLE_SECONDS

    def follow(self, conn: psycopg.Connection[Any]) -> None:
        """Look, and bring what stands for sources elsewhere in step with them."""
        self._told, self._looked = False, time.time()
        for kind in self._kinds:
            kind.follow(conn)
        self.polled = {oid for kind in self._kinds for oid in kind.polled(conn)}

    def moved(self, conn: psycopg.Connection[Any]) -> set[int]:
        """Relations that have moved since this was last asked."""
        return {oid for kind in self._kinds for oid in kind.moved(conn)}
