"""Capture from the WAL as a service of the engine: it has a decoder while there is something to decode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from runnel.ports.service import Answer, Connection, Service
from runnel.sources.postgres.wal import slot
from runnel.sources.postgres.wal.decoder import Decoder
from runnel.sources.postgres.wal.progress import Progress
from runnel.sources.postgres.wal.switching import decoded_sources, is_wished


class WalCapture(Service):
    """The decoder of one engine."""

    requests: Mapping[str, Answer] = {}
    required: Mapping[str, tuple[str, tuple[str, ...]]] = {}
    secret: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()

    def __init__(self, dsn: str, on_event: Callable[[str], None], changed: Callable[[], None]) -> None:
        """For the engine of `dsn`; `changed` is called when buffers have new rows."""
        self._dsn, self._on_event = dsn, on_event
        self.progress = Progress(changed)
        self._decoder: Decoder | None = None
        self._closed = False
        self._lock = threading.Lock()

    def connected(self, conn: Connection) -> None:
        """Know which tables are decoded, before the first refresh."""
        self.progress.expect(decoded_sources(conn))
        self.look(conn)

    def prepare(self, conn: Connection) -> None:
        """Nothing: see `connected`."""

    def restored(self, conn: Connection) -> None:
        """Forget the slot of the other database, and the publication that came with its tables."""
        slot.forget(conn)

    def take(self, conn: Connection, request_id: int, args: Mapping[str, Any], role: str) -> None:
        """There are no slow requests."""

    def look(self, conn: Connection) -> None:
        """Let there be a decoder if one is needed, and let it look around."""
        if not is_wished(conn):
            return
        with self._lock:
            if self._closed:
                return
            if self._decoder is None or not self._decoder.runs:
                self._decoder = Decoder(self._dsn, self.progress, self._on_event)
            else:
                self._decoder.stir()

    def close(self) -> None:
        """Stop the decoder."""
        with self._lock:
            self._closed = True
        if self._decoder is not None:
            self._decoder.stop()
