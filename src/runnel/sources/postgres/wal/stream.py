"""The replication connection: what the server decodes comes in, how far we are goes out.

psycopg has no copy in both directions, so this is libpq's own.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from psycopg import pq
from psycopg.conninfo import make_conninfo

from runnel.catalog.sessions import pinned
from runnel.model.names import quote
from runnel.sources.postgres.wal.messages import lsn_text
from runnel.sources.postgres.wal.slot import PUBLICATION

_DATA, _ALIVE = ord("w"), ord("k")
_HEADER = 25
"""What stands before a message: its kind, two places in the WAL, and a time."""
_alive = struct.Struct(">QqB").unpack_from
_feedback = struct.Struct(">cQQQqB").pack
_EPOCH = 946_684_800
"""PostgreSQL counts microseconds since 2000."""
MOST_BYTES = 16 * 1024 * 1024
MOST_MESSAGES = 200_000
"""Read at once; the rest waits."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """What came at once."""

    messages: list[bytes]
    more: bool
    """Whether to read again before waiting."""
    idle_at: int | None = None
    """Behind the messages, the server has nothing more before this place in the WAL."""
    asked: bool = False
    """Whether it wants to hear from us."""


class StreamBroken(Exception):
    """The server has ended the stream; `state` is the SQLSTATE if it said one."""

    def __init__(self, text: str, state: str | None = None) -> None:
        super().__init__(text)
        self.state = state


class Stream:
    """Logical decoding from a slot, from a place on. Not for several threads."""

    def __init__(self, dsn: str, slot: str, start: int) -> None:
        conninfo = make_conninfo(pinned(dsn), replication="database", application_name="runnel decoder")
        self._conn = pq.PGconn.connect(conninfo.encode())
        if self._conn.status != pq.ConnStatus.OK:
            raise self._broken()
        options = f"proto_version '1', publication_names '{PUBLICATION}', binary 'true', messages 'true'"
        command = f"START_REPLICATION SLOT {quote(slot)} LOGICAL {lsn_text(start)} ({options})"
        result = self._conn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            state = result.error_field(pq.DiagnosticField.SQLSTATE)
            error = StreamBroken(result.get_error_message(), state.decode() if state else None)
            self.close()
            raise error
        self._conn.nonblocking = 0

    def fileno(self) -> int:
        """For select."""
        return self._conn.socket

    def read(self) -> Arrived:
        """What is there, up to a word that the server is alive."""
        self._conn.consume_input()
        messages: list[bytes] = []
        size = 0
        get = self._conn.get_copy_data
        while size < MOST_BYTES and len(messages) < MOST_MESSAGES:
            length, data = get(1)
            if length <= 0:
                if length < 0:
                    raise self._broken()
                return Arrived(messages, more=False)
            kind = data[0]
            if kind == _DATA:
                messages.append(bytes(data[_HEADER:]))
                size += length
            elif kind == _ALIVE:
                place, _, asked = _alive(data, 1)
                return Arrived(messages, more=True, idle_at=place, asked=bool(asked))
        return Arrived(messages, more=True)

    def tell(self, flushed: int) -> None:
        """Say up to where everything is safe here: the server may forget what is older."""
        now = int((time.time() - _EPOCH) * 1_000_000)
        self._conn.put_copy_data(_feedback(b"r", flushed, flushed, flushed, now, 0))
        self._conn.flush()

    def close(self) -> None:
        """Let go of slot and connection."""
        self._conn.finish()

    def _broken(self) -> StreamBroken:
        state = None
        if self._conn.status == pq.ConnStatus.OK:
            result = self._conn.get_result()
            if result is not None:
                told = result.error_field(pq.DiagnosticField.SQLSTATE)
                state = told.decode() if told else None
                text = result.get_error_message()
                return StreamBroken(text.strip() or "the server has ended the stream", state)
        return StreamBroken(self._conn.get_error_message().strip() or "the connection is gone", state)
