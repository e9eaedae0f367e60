"""What notifications say, and how often they are listened to.

Every role can notify on the engine's channels, with any payload. So a notification is a hint to look, never a fact,
and a thousand of them are one hint. Who keeps on knocking for nothing is heard ten times a second, no more: requests
and refreshes go on meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg

REQUESTS, CHANGES, DDL = CHANNELS = ("pgtrickle_request", "pgtrickle_wake", "pgtrickle_ddl")
OUTSIDE = "outside"
"""A hint that a source outside of this database has moved."""
PATIENCE = 3
"""Hints in a row that may lead to nothing before we listen less often."""
STEP_SECONDS = 0.01
LONGEST_SECONDS = 0.1


@dataclass
class Ears:
    """Listens on one connection."""

    conn: psycopg.Connection[Any]
    outside: frozenset[str] = frozenset()
    """Payloads on the channel of changes that speak of sources outside of this database."""
    _vain: int = 0
    _heard_at: float = 0.0

    def open(self) -> None:
        """Begin to listen."""
        for channel in CHANNELS:
            self.conn.execute(f"LISTEN {channel}".encode())

    def hear(self) -> set[str]:
        """What there are hints of since the last time."""
        hints = set()
        for note in self.conn.notifies(timeout=0):
            hints.add(OUTSIDE if note.channel == CHANGES and note.payload in self.outside else note.channel)
        self._heard_at = time.monotonic()
        self._vain = self._vain + 1 if hints else 0
        return hints

    def not_in_vain(self) -> None:
        """There was something to do."""
        self._vain = 0

    def deaf_seconds(self) -> float:
        """How long hints are left waiting from now on."""
        if self._vain <= PATIENCE:
            return 0.0
        pause = min(STEP_SECONDS * (self._vain - PATIENCE), LONGEST_SECONDS)
        return max(0.0, self._heard_at + pause - time.monotonic())
