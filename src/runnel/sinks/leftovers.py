"""Files that nobody will publish: looked for, beside the engine's work, until none can come any more.

An upload that its client has given up may still reach the store, seconds or minutes later, and after a first attempt to
remove it has found nothing. So it stays in `pgt_lake_uploads` and is looked for again and again: every second at
first, then less often, until the store has answered for `LATE_SECONDS` since it was given up. One thread does this, on
connections of its own, because a store in trouble makes whoever asks it wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

import psycopg

from runnel.errors import RunnelError
from runnel.lake.attached import load_lakes
from runnel.lake.format.model import Lake
from runnel.lake.store.storage import StoreError
from runnel.sinks import catalog as sinks
from runnel.sinks.catalog import Upload
from runnel.sinks.session import Connections
from runnel.sinks.uploads import is_published, store_of

log = logging.getLogger(__name__)

LATE_SECONDS = 300.0
"""How long after it was given up an upload may still reach a store that answers."""
SHORTEST_WAIT, LONGEST_WAIT = 1.0, 5.0
SETTLED_SECONDS = 1.0
"""Between seeing a file and removing it. A client that gets no answer sends a file twice, and what a deletion between
the two leaves is not the same in every store: some show no file and keep its bytes."""
SECONDS_TO_STOP = 5.0

HASTY = {"timeout": "10", "connect_timeout": "5", "max_retries": "0"}
"""A store that does not answer is asked again at the next look."""


class Leftovers:
    """The thread; it sleeps while nothing is on its way."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something may be left behind: look for it."""
        self._woken.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="lake leftovers", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop; what is still looked for is known to the next engine."""
        self._stopping.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(SECONDS_TO_STOP)

    def _work(self) -> None:
        with closing(Connections(self._dsn)) as connections:
            search = Search(connections, self._stopping)
            while not self._stopping.is_set():
                self._woken.clear()
                try:
                    pause = search.look()
                except Exception as error:
                    # A lost server ends the engine's connections too, and it says so.
                    log.info("files that may be left behind are looked for later: %s", error)
                    pause = LONGEST_WAIT
                self._woken.wait(pause)


@dataclass
class Sought:
    """What is remembered of a file between two looks."""

    next_look: float = 0.0
    seen: float | None = None
    """When it was first seen in the store, since it was last removed."""

    def may_go(self, *, there: bool) -> bool:
        """Whether a file has been in the store for so long that nobody is writing it."""
        now = time.monotonic()
        settled = there and self.seen is not None and now - self.seen >= SETTLED_SECONDS
        if settled or not there:
            self.seen = None
        elif self.seen is None:
            self.seen, self.next_look = now, now + SETTLED_SECONDS
        return settled


@dataclass
class Search:
    """Looks for all files that were given up."""

    connections: Connections
    stopping: threading.Event
    sought: dict[int, Sought] = field(default_factory=dict)

    def look(self) -> float | None:
        """Remove what has arrived; seconds until the next look, or None when there is nothing to look for."""
        observer = self.connections.observer()
        uploads = sinks.given_up_uploads(observer)
        self.sought = {upload.id: self.sought.get(upload.id, Sought()) for upload in uploads}
        if not uploads:
            return None
        lakes = load_lakes(observer)
        over: list[int] = []
        unanswered: list[int] = []
        silent: set[tuple[str | None, str]] = set()
        for upload in uploads:
            sought = self.sought[upload.id]
            if self.stopping.is_set() or time.monotonic() < sought.next_look:
                continue
            sought.next_look = time.monotonic() + min(max(upload.age / 10, SHORTEST_WAIT), LONGEST_WAIT)
            try:
                if self._is_over(upload, sought, lakes, silent):
                    over.append(upload.id)
            except (RunnelError, psycopg.Error) as error:
                log.info("could not look for %s: %s", upload.path, error)
                sought.next_look = time.monotonic() + LONGEST_WAIT
                unanswered.append(upload.id)
        if unanswered:
            sinks.store_failed(observer, unanswered)
        if over:
            sinks.end_uploads(observer, over)
        return max(0.0, min(each.next_look for each in self.sought.values()) - time.monotonic())

    def _is_over(
        self, upload: Upload, sought: Sought, lakes: Mapping[str, Lake], silent: set[tuple[str | None, str]]
    ) -> bool:
        """Look for one file; whether it need not be looked for again. Stores that keep us waiting become `silent`."""
        store = store_of(upload, lakes)
        if store is None:
            return True
        place = (upload.lake, store.root)
        if place in silent:
            raise StoreError(f"the store {store.root} does not answer")
        began = time.monotonic()
        try:
            hasty = replace(store, options={**store.options, **HASTY})
            there = hasty.exists(upload.path)
            if there and is_published(upload, self.connections, lakes):
                return True
            if sought.may_go(there=there) or store.is_local:
                # In a folder this also finds a file that was written in part.
                hasty.discard([upload.path])
        except RunnelError:
            if time.monotonic() - began > SHORTEST_WAIT:
                silent.add(place)
            raise
        return not there and upload.age >= LATE_SECONDS
