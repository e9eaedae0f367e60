"""How far the decoder is, for those who wait for it: shared by the decoder's thread and the workers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from runnel.errors import Outdated, TransientError
from runnel.model import progress

_LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 20.0
"""How long a refresh waits for a decoder that does not run."""


class NotDecoded(TransientError):
    """Changes are in the WAL, but not in the buffers, and nobody brings them at the moment."""


@dataclass
class Progress:
    """One per engine."""

    changed: Callable[[], None] = lambda: None
    """Called when sources have new rows."""
    _state: threading.Condition = field(default_factory=threading.Condition)
    _generation: int | None = None
    """Of the decoder that runs; None: none does."""
    _trouble: str = "it has not started yet"
    _over: bool = False
    """Whether it ended because nothing is left to decode."""
    _done: int = 0
    _wanted: int = 0
    _writers: dict[int, int] = field(default_factory=dict)
    """Per source the transaction of the decoder that last wrote rows of it."""
    _first: int = 0
    """The decoder's first transaction: all of former decoders are older."""
    _sources: set[int] = field(default_factory=set)
    _moved: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self.wake_read, False)

    def wake(self) -> None:
        """Let the decoder's thread look up; from any thread."""
        try:
            os.write(self._wake_write, b"x")
        except (BlockingIOError, OSError):
            return

    # -- which tables --------------------------------------------------------------------------------------------

    def concerns(self, source: int) -> bool:
        """Whether changes of a table may have to come from the WAL; asked without a round trip, so rather too often."""
        return source in self._sources

    def expect(self, sources: Collection[int]) -> None:
        """Before they are switched: some more. None is taken away: an old snapshot may still show it as it was."""
        with self._state:
            self._sources |= set(sources)

    def moved(self) -> set[int]:
        """Tables that have new rows since this was last asked."""
        with self._state:
            found, self._moved = self._moved, set()
        return found

    # -- the decoder ---------------------------------------------------------------------------------------------

    def begin(self, generation: int, done: int, first: int) -> None:
        """A decoder runs."""
        with self._state:
            self._generation, self._done, self._first = generation, done, first
            self._over = False
            self._writers.clear()
            self._state.notify_all()

    def end(self, why: str, *, over: bool = False) -> None:
        """It has stopped; `over`: for good."""
        with self._state:
            self._generation, self._trouble, self._over = None, why, over
            self._state.notify_all()

    def committed(self, done: int, written: Mapping[int, int]) -> None:
        """All that others have committed before this place is in the buffers; `written`: see `_writers`."""
        with self._state:
            self._done = max(self._done, done)
            self._writers.update(written)
            self._moved |= written.keys()
            self._state.notify_all()
        if written:
            self.changed()

    @property
    def wanted(self) -> int | None:
        """The farthest place that somebody waits for, if it is not reached."""
        with self._state:
            return self._wanted if self._wanted > self._done else None

    # -- those who wait ------------------------------------------------------------------------------------------

    def wait(self, place: int, generation: int) -> None:
        """Until all before this place is in the buffers, and no change was lost since the caller's snapshot."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._state:
            self._wanted = max(self._wanted, place)
        self.wake()
        while True:
            with self._state:
                if self._generation is not None:
                    deadline = time.monotonic() + PATIENCE_SECONDS
                    if self._generation != generation:
                        raise Outdated("changes in the WAL were lost after this refresh began")
                    if self._done >= place:
                        return
                elif self._over:
                    raise Outdated("the table is captured by triggers again since this refresh began")
                elif time.monotonic() > deadline:
                    raise NotDecoded(
                        f"changes are to come from the WAL, but the decoder does not run: {self._trouble}",
                        hint="SELECT * FROM pgtrickle.check_cdc_health() says more; "
                        "cdc_mode => 'trigger' does without the WAL.",
                    )
                self._state.wait(_LOOK_SECONDS)
            # Somebody may want the refresh to stop.
            progress.advance(0)

    def last_writer(self, source: int) -> int:
        """The decoder's transaction after which no row of this table came, up to a place that was waited for."""
        with self._state:
            return self._writers.get(source, self._first)
