"""Where the time of a refresh goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from runnel.model import progress
from runnel.model.spans import span


class Steps:
    """Milliseconds per step; a step may be entered several times, and one inside another counts for the inner."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self._inner = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        progress.phase(name)
        outer, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            with span(name):
                yield
        finally:
            spent = (time.perf_counter() - start) * 1000
            self.times[name] = round(self.times.get(name, 0.0) + spent - self._inner, 3)
            self._inner = outer + spent
