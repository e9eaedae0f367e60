"""Waiting longer and longer: between two tries to reach a server, or to do what keeps failing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Patience:
    """Seconds to wait, doubled with every failure in a row.

    >>> waits = Patience(first=0.5, longest=30.0)
    >>> [waits.next() for _ in range(8)]
    [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    """

    first: float
    longest: float
    failures: int = 0

    def next(self) -> float:
        """After a failure: how long to wait now."""
        self.failures += 1
        return float(min(self.first * 2 ** min(self.failures - 1, 32), self.longest))

    def reset(self) -> None:
        """It worked."""
        self.failures = 0
