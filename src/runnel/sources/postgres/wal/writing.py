"""Decoded changes into their buffers, each exactly once.

One transaction of the decoder's holds the rows of whole transactions of others, and the place in the WAL behind the
last of them. A decoder that begins goes on from that place: what was committed is not written again, what was not is.
The row with the place is locked first, so a former decoder whose last COMMIT is still under way comes before.

Which columns are captured is read after the changes have arrived. Whoever captures another column has kept writers out
until it was visible, so it is known for every change that must have it.
"""

from __future__ import annotations

import logging
from typing import Any

import psycopg

from runnel.catalog.lost import first_line, is_lost
from runnel.sources.postgres.wal.messages import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    RELATION,
    TRUNCATE,
    UPDATE,
    Relation,
    full_xid,
    lsn_text,
    read_begin,
    read_commit,
    read_lsn,
    read_relation,
    read_truncate,
)
from runnel.sources.postgres.wal.progress import Progress
from runnel.sources.postgres.wal.rows import HEADER, TRAILER, Buffer, Load, Router, marker

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]
STORE_BYTES = 16 * 1024 * 1024
"""How much WAL without changes may pass before its end is recorded."""

_MISFITS = ("0A", "22", "23", "42")
"""Classes of SQLSTATE that speak of the rows and their table, not of the moment."""

_LOCK = """
SELECT generation, decoded_lsn::text, pg_current_xact_id()::text::int8,
       (SELECT array_agg(xmin::text || ctid::text ORDER BY source_relid) FROM pgtrickle.pgt_change_tracking)
FROM pgtrickle.pgt_wal FOR UPDATE
"""
# A column of another type than the buffer's gets the type 0, which nothing has: its changes become markers.
_BUFFERS = """
SELECT t.source_relid::int8, t.relations::int8[], ARRAY(
    SELECT ARRAY[a.attnum::text, a.attname::text, CASE WHEN b.attnum IS NOT NULL AND NOT a.attisdropped
               AND pgtrickle._buffer_type(a.attrelid, a.attnum) = pgtrickle._buffer_type(b.attrelid, b.attnum)
               THEN a.atttypid::text ELSE '0' END]
    FROM jsonb_to_recordset(t.columns) AS c (attnum smallint)
    JOIN pg_attribute a ON a.attrelid = t.source_relid AND a.attnum = c.attnum
    LEFT JOIN pg_attribute b ON b.attrelid = to_regclass('pgtrickle_changes.' || t.buffer)
                            AND b.attname = 'c' || c.attnum
    ORDER BY a.attnum)
FROM pgtrickle.pgt_change_tracking t WHERE to_regclass('pgtrickle_changes.' || t.buffer) IS NOT NULL
"""


class Overtaken(Exception):
    """Somebody else has moved the place: start over from the catalog."""


class Writer:
    """Writes what one stream brings."""

    def __init__(self, conn: Connection, progress: Progress, generation: int) -> None:
        self._conn, self._progress, self._generation = conn, progress, generation
        self._shapes: dict[int, Relation] = {}
        self._router = Router((), self._shapes)
        self._version: object = None
        self._own = 0
        """The transaction that is open, or 0."""
        self._xid: int | None = None
        """The transaction whose changes are coming."""
        self._carried = False
        """Whether the open transaction began before the messages at hand arrived."""
        row = self._lock()
        self.stored = self.done = read_lsn(row[1])
        """Up to where everything is in the buffers: recorded, and known here."""
        conn.execute("COMMIT")
        progress.begin(generation, self.done, row[2])

    @property
    def between(self) -> bool:
        """Whether no transaction of others is half read."""
        return self._xid is None and not self._own

    def feed(self, messages: list[bytes]) -> None:
        """Write what has arrived; what belongs to a transaction whose end has not is not committed."""
        xid, latest = self._xid, self._own
        for message in messages:
            kind = message[0]
            if kind in (INSERT, UPDATE, DELETE):
                assert xid is not None
                if not latest:
                    latest, xid = self._begin(xid)
                self._router.change(kind, message, xid)
            elif kind == BEGIN:
                xid = read_begin(message)
                if latest:
                    xid = full_xid(xid, latest)
            elif kind == COMMIT:
                self.done, xid = read_commit(message), None
                if self._carried:
                    # What comes next may have to know of columns that are captured since.
                    self._commit()
                    latest = 0
            elif kind == RELATION:
                shape = read_relation(message)
                self._shapes[shape.oid] = shape
                self._router.forget(shape.oid)
            elif kind == TRUNCATE:
                assert xid is not None
                if not latest:
                    latest, xid = self._begin(xid)
                self._router.truncate(read_truncate(message), xid)
        self._xid = xid
        if xid is None:
            self._commit()
        elif self._own:
            self._carried = True
            self._copy()

    def idle(self, place: int) -> None:
        """Nothing more comes before this place."""
        if self.between and place > self.done:
            self.done = place
            self._progress.committed(place, {})
            if place - self.stored > STORE_BYTES:
                self._own = self._lock()[2]
                self._commit()

    def _lock(self) -> tuple[int, str, int, object]:
        self._conn.execute("BEGIN")
        row = self._conn.execute(_LOCK).fetchone()
        if row is None or row[0] != self._generation:
            self._conn.execute("ROLLBACK")
            raise Overtaken("the slot was replaced")
        generation, decoded, own, version = row
        return generation, decoded, own, version

    def _begin(self, xid: int) -> tuple[int, int]:
        """A transaction of our own: its number, and the other's in full."""
        _, stored, self._own, version = self._lock()
        if read_lsn(stored) != self.stored:
            raise Overtaken("another decoder has written")
        if version != self._version:
            self._version = version
            buffers = [
                Buffer(source, frozenset(relations), tuple((int(n), name, int(oid)) for n, name, oid in columns))
                for source, relations, columns in self._conn.execute(_BUFFERS)
            ]
            self._router = Router(buffers, self._shapes)
        return self._own, full_xid(xid, self._own)

    def _copy(self) -> None:
        for load in self._router.loads.values():
            if load.parts:
                self._copy_load(load)

    def _copy_load(self, load: Load) -> None:
        data, xids = load.take()
        if self._try(load, data):
            return
        # What the buffer does not take cannot be told in rows: a type may have changed since.
        width = len(load.buffer.columns)
        load.marked |= xids
        if not self._try(load, b"".join((HEADER, *(marker(xid, width) for xid in xids), TRAILER))):
            raise Overtaken(f"the buffer of table {load.buffer.source} takes no rows")

    def _try(self, load: Load, data: bytes) -> bool:
        try:
            statement = load.buffer.statement.encode()
            with self._conn.transaction(), self._conn.cursor() as cursor, cursor.copy(statement) as to:
                to.write(data)
        except psycopg.Error as error:
            if isinstance(error, psycopg.errors.UndefinedTable) and not is_lost(self._conn):
                return True  # nobody captures it any more
            if is_lost(self._conn) or (error.sqlstate or "")[:2] not in _MISFITS:
                raise
            log.warning("changes of table %s are not taken as rows: %s", load.buffer.source, first_line(error))
            return False
        return True

    def _commit(self) -> None:
        written = {}
        if self._own:
            self._copy()
            self._conn.execute("UPDATE pgtrickle.pgt_wal SET decoded_lsn = %s", (lsn_text(self.done),))
            self._conn.execute("COMMIT")
            self.stored = self.done
            loads = self._router.loads.values()
            written = {load.buffer.source: self._own for load in loads if load.rows}
            for load in loads:
                load.rows = 0
                load.marked.clear()
        self._own, self._carried = 0, False
        self._progress.committed(self.done, written)
