"""What the engine alone changes is kept in memory: which stream tables have an outbox, for one.

A refresh of a table that has none asks the database nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Known(Generic[T]):
    """Something by stream table: one for all workers of an engine, read once, changed by what they commit.

    A worker may read in a snapshot from before another's commit: what was committed here is put on top of what is read.
    """

    _kept: dict[int, T] | None = None
    _committed: dict[int, T | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def all(self, load: Callable[[], Mapping[int, T]]) -> dict[int, T]:
        """By stream table; a copy. It is loaded if nobody knows it yet."""
        with self._lock:
            if self._kept is None:
                found = {**load(), **self._committed}
                self._kept = {pgt_id: value for pgt_id, value in found.items() if value is not None}
            return dict(self._kept)

    def change(self, changes: Mapping[int, T | None]) -> None:
        """What a transaction has committed; None: gone."""
        with self._lock:
            self._committed.update(changes)
            if self._kept is not None:
                for pgt_id, value in changes.items():
                    if value is None:
                        self._kept.pop(pgt_id, None)
                    else:
                        self._kept[pgt_id] = value

    def doubt(self, pgt_ids: Iterable[int]) -> None:
        """Nobody knows whether a change of these was committed: they are read again when somebody asks."""
        with self._lock:
            self._kept = None
            for pgt_id in pgt_ids:
                self._committed.pop(pgt_id, None)
