"""The decoder: a thread with a replication connection and an ordinary one, as long as there is something to decode."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from runnel.catalog.lost import first_line
from runnel.catalog.sessions import connect
from runnel.sources.postgres.wal import slot
from runnel.sources.postgres.wal.messages import read_lsn
from runnel.sources.postgres.wal.progress import Progress
from runnel.sources.postgres.wal.stream import Stream, StreamBroken
from runnel.sources.postgres.wal.switching import Switching, decoded_sources
from runnel.sources.postgres.wal.writing import Overtaken, Writer

log = logging.getLogger(__name__)

TELL_SECONDS = 1.0
RETRY_SECONDS = 0.5
LONGEST_RETRY = 10.0
STOP_SECONDS = 0.05
SESSION = "runnel wal"
# A lost COMMIT of the decoder's is decoded again: the server is told of no place before it is on disk.
SETTINGS = {"synchronous_commit": "off"}
UNDEFINED = "42704"
"""What pgoutput says when the publication was not there at the moment that it decodes."""

_CLAIM = "SELECT pid, backend_start::text FROM pgtrickle.pgt_engine"
# Its COMMIT is written to disk, and with it all before: walsenders read no farther than that.
_NUDGE = """
SELECT set_config('synchronous_commit', 'local', true), pg_logical_emit_message(true, 'runnel', '')::text
"""
_PLACES = "SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text"


class Decoder:
    """One run of the thread; when it ends by itself, nobody needs it or another engine has the database."""

    def __init__(self, dsn: str, progress: Progress, on_event: Callable[[str], None]) -> None:
        self._dsn, self._progress, self._on_event = dsn, progress, on_event
        self._stopping = threading.Event()
        self._look = threading.Event()
        self._conn: psycopg.Connection[Any] | None = None
        # Before the first table is switched: whoever reads it waits.
        progress.end("it has not started yet")
        self._thread = threading.Thread(target=self._run, name="wal decoder", daemon=True)
        self._thread.start()

    @property
    def runs(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def stir(self) -> None:
        """Wishes may have changed."""
        self._look.set()
        self._progress.wake()

    def stop(self) -> None:
        """End it; what it waits for on the server is cancelled."""
        self._stopping.set()
        while self._thread.is_alive():
            self._progress.wake()
            conn = self._conn
            if conn is not None:
                with suppress(psycopg.Error):
                    conn.cancel()
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        pause, told = RETRY_SECONDS, ""
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if not self._session():
                    self._progress.end("there is nothing to decode", over=True)
                    return
                pause = RETRY_SECONDS
            except (psycopg.Error, StreamBroken, Overtaken, OSError) as error:
                text = first_line(error)
                self._progress.end(text)
                if self._stopping.is_set():
                    return
                if text != told:
                    log.warning("decoding the WAL is tried again: %s", text)
                told = text
                pause = RETRY_SECONDS if time.monotonic() - began > LONGEST_RETRY else min(2 * pause, LONGEST_RETRY)
                self._stopping.wait(pause)
            except Exception as error:
                self._progress.end(first_line(error))
                log.exception("the WAL decoder stumbled")
                self._stopping.wait(LONGEST_RETRY)
        self._progress.end("the engine stops")

    def _session(self) -> bool:
        """Work on one pair of connections; False when there is nothing left to do."""
        with connect(self._dsn, SESSION, SETTINGS) as conn:
            self._conn = conn
            try:
                return self._work(conn)
            finally:
                self._conn = None

    def _work(self, conn: psycopg.Connection[Any]) -> bool:
        claim = conn.execute(_CLAIM).fetchone()
        switching = Switching(conn, self._progress)
        while not self._stopping.is_set():
            self._look.clear()
            if conn.execute(_CLAIM).fetchone() != claim:
                return False
            state = switching.turn()
            if state is None:
                unused = slot.look(conn)
                if unused is not None:
                    slot.drop(conn, unused)
                return False
            if state.lost is not None:
                trouble = slot.obstacle(conn)
                if trouble is not None:
                    log.error("%s, and %s: tables are captured by triggers again, and read anew", state.lost, trouble)
                    slot.give_up(conn, state, decoded_sources(conn))
                    return False
                self._replace(conn, state)
                continue
            try:
                self._decode(conn, state, switching)
            except StreamBroken as error:
                if error.state != UNDEFINED:
                    raise
                gone = f"publication {slot.PUBLICATION} was dropped"
                self._replace(conn, slot.State(state.slot, state.generation, state.decoded, gone))
        return True

    def _replace(self, conn: psycopg.Connection[Any], state: slot.State) -> None:
        self._progress.end(str(state.lost))
        log.error(
            "changes were lost: %s; what reads tables that are captured from the WAL is computed anew", state.lost
        )
        self._on_event(f"changes in the WAL were lost: {state.lost}")
        slot.replace(conn, state)

    def _decode(self, conn: psycopg.Connection[Any], state: slot.State, switching: Switching) -> None:
        """Read the stream until somebody asks to look around between two transactions, and beyond."""
        writer = Writer(conn, self._progress, state.generation)
        stream = Stream(self._dsn, state.slot, writer.done)
        try:
            _Pump(conn, self._progress, writer, stream, switching).run(self._stopping, self._look)
        finally:
            stream.close()
            self._progress.end("it starts anew")


class _Pump:
    """From the stream to the buffers, and word back to the server."""

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        progress: Progress,
        writer: Writer,
        stream: Stream,
        switching: Switching,
    ) -> None:
        self._conn, self._progress, self._writer = conn, progress, writer
        self._stream, self._switching = stream, switching
        self._nudged = 0
        self._told = 0.0
        self._safe = writer.stored
        """Up to where the server may forget."""
        self._written: tuple[int, int] | None = None
        """A place that is recorded, and the place in the WAL by which its record is on disk."""

    def run(self, stopping: threading.Event, look: threading.Event) -> None:
        """Until it is time to stop, or there is nothing to decode any more."""
        more = False
        while not stopping.is_set():
            if not more:
                self._wait()
            arrived = self._stream.read()
            more = arrived.more
            if arrived.messages:
                self._writer.feed(arrived.messages)
            if arrived.idle_at is not None:
                self._writer.idle(arrived.idle_at)
            if arrived.asked:
                self._stream.tell(self._safe)
            if self._writer.between:
                self._between(look)
                if look.is_set():
                    look.clear()
                    state = self._switching.turn()
                    if state is None or state.lost is not None:
                        return

    def _wait(self) -> None:
        wake = self._progress.wake_read
        readable, _, _ = select.select([self._stream.fileno(), wake], [], [], TELL_SECONDS)
        if wake in readable:
            with suppress(BlockingIOError):
                os.read(wake, 4096)

    def _between(self, look: threading.Event) -> None:
        """No transaction is half read: move on those who wait, and tell the server."""
        writer, leaving = self._writer, self._switching.waits_for
        if leaving is not None and writer.done >= leaving:
            self._switching.passed(writer.done)
            look.set()
        wanted = max((place for place in (self._progress.wanted, self._switching.waits_for) if place), default=0)
        if wanted > max(writer.done, self._nudged):
            row = self._conn.execute(_NUDGE).fetchone()
            assert row is not None
            self._nudged = read_lsn(row[1])
        if time.monotonic() - self._told >= TELL_SECONDS:
            self._told = time.monotonic()
            self._tell()

    def _tell(self) -> None:
        if self._safe < self._writer.stored:
            row = self._conn.execute(_PLACES).fetchone()
            assert row is not None
            if self._written is not None and read_lsn(row[1]) >= self._written[1]:
                self._safe, self._written = self._written[0], None
            if self._written is None and self._safe < self._writer.stored:
                self._written = self._writer.stored, read_lsn(row[0])
        self._stream.tell(self._safe)
