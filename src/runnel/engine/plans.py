"""Compiled definitions, kept for all workers of an engine.

A worker compiles in its own snapshot, which may be older than what another one has just made of the same definition. So
a plan is only kept if nobody has forgotten that stream table since the worker read the catalog.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from runnel.refresh.maintained import Maintained

Key = tuple[int, str]
"""A definition's version, and what else the plan was made for."""


@dataclass
class Plans:
    """By stream table: its plan, and the definition that it was made for."""

    _kept: dict[int, tuple[Key, Maintained]] = field(default_factory=dict)
    _forgotten: dict[int, int] = field(default_factory=dict)
    """When a stream table was last forgotten, by the clock below."""
    _clock: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def clock(self) -> int:
        """Rises whenever something is forgotten; read it before the catalog."""
        return self._clock

    def find(self, pgt_id: int, key: Key) -> Maintained | None:
        """The plan of that very definition."""
        found = self._kept.get(pgt_id)
        return found[1] if found is not None and found[0] == key else None

    def keep(self, pgt_id: int, key: Key, plan: Maintained, read_at: int) -> None:
        """Keep a plan that was made from what the catalog said at `read_at`."""
        with self._lock:
            if self._forgotten.get(pgt_id, 0) <= read_at:
                self._kept[pgt_id] = key, plan

    def forget(self, tables: Iterable[int]) -> int:
        """Compile these anew at their next use; the clock from then on."""
        with self._lock:
            self._clock += 1
            for pgt_id in tables:
                self._kept.pop(pgt_id, None)
                self._forgotten[pgt_id] = self._clock
            return self._clock

    def forget_all(self) -> None:
        """Compile everything anew: the server may be another one than before."""
        self.forget(list(self._kept))

    def retain(self, living: Container[int]) -> None:
        """Forget stream tables that are gone."""
        with self._lock:
            for kept in (self._kept, self._forgotten):
                for pgt_id in [i for i in kept if i not in living]:
                    del kept[pgt_id]
