"""Stream tables that somebody looks at just now, and the rows that their last refresh changed.

Rows of a change are gone when it is committed, unless another stream table or an outbox needs them. For people who
watch a table they are kept a little longer: in memory, some of them, and only while somebody looks. Nobody else pays
for it, and nothing is written.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

SECONDS = 300.0
"""How long a look lasts."""
MOST_TABLES = 100
"""That are looked at; one more makes the one forgotten that nobody has looked at for longest."""
MOST_ROWS = 50
"""Of one change."""

Row = tuple[int, *tuple[str | None, ...]]
"""A weight, and the values as text."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a refresh changed, or the beginning of it."""

    version: int
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass
class _Look:
    until: float
    seen: Seen | None = None


@dataclass
class Looks:
    """Of one engine; used by its workers, and by whoever shows what they do."""

    _looks: dict[int, _Look] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, table: int) -> Seen | None:
        """Somebody looks at a stream table: its last change, if it had one while it was looked at."""
        with self._lock:
            now = time.monotonic()
            self._looks = {number: each for number, each in self._looks.items() if each.until > now}
            look = self._looks.pop(table, None) or _Look(0.0)
            look.until = now + SECONDS
            if len(self._looks) >= MOST_TABLES:
                del self._looks[next(iter(self._looks))]
            # The one looked at last stands last.
            self._looks[table] = look
            return look.seen

    def wants(self, table: int) -> bool:
        """Whether somebody looks at it; asked in every refresh."""
        look = self._looks.get(table)
        return look is not None and look.until > time.monotonic()

    def keep(self, table: int, seen: Seen) -> None:
        """These rows were changed, and that is committed."""
        with self._lock:
            if table in self._looks:
                self._looks[table].seen = seen
