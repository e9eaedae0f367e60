"""Which tables are captured from the WAL: those whose stream tables wish it, as far as nothing stands in the way.

A table begins with triggers and is switched when the slot is there. The switch is one transaction under a lock that
keeps writers out of that table (`0034_wal.sql`), tried for a moment and again later, so that nobody queues behind it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.catalog.lost import is_lost
from runnel.sources.postgres.wal import slot
from runnel.sources.postgres.wal.messages import read_lsn
from runnel.sources.postgres.wal.progress import Progress

Connection = psycopg.Connection[Any]
LOCK_TIMEOUT = "500ms"
NO_SLOT_YET = "its replication slot begins when all transactions of the server that have written something have ended"
LINGER_SECONDS = 3.0
"""The slot stays so long when nobody needs it: a refresh with an older snapshot may."""
IN_USE = "the table is in use; it is tried again"

_LOOK = """
SELECT t.source_relid::int8, t.capture, w.wish, t.capture_reason, o.obstacle
FROM pgtrickle.pgt_change_tracking t JOIN pgtrickle._capture_wishes() w USING (source_relid)
LEFT JOIN LATERAL pgtrickle._wal_obstacle(t.source_relid, t.columns) o
       ON w.wish IN ('wal', 'auto') AND t.capture = 'trigger'
WHERE EXISTS (SELECT FROM pg_class c WHERE c.oid = t.source_relid)
"""
_REASON = "UPDATE pgtrickle.pgt_change_tracking SET capture_reason = %s WHERE source_relid = %s"
_DECODED = "SELECT source_relid::int8 FROM pgtrickle.pgt_change_tracking WHERE capture <> 'trigger'"
_LEAVING = "SELECT source_relid::int8 FROM pgtrickle.pgt_change_tracking WHERE capture = 'leaving'"
_LEFT = (
    "UPDATE pgtrickle.pgt_change_tracking SET capture = 'trigger' WHERE source_relid = ANY(%s) AND capture = 'leaving'"
)
_WISHED = """
SELECT EXISTS (SELECT FROM pgtrickle.pgt_wal)
    OR EXISTS (SELECT FROM pgtrickle._capture_wishes() WHERE wish <> 'trigger')
"""


def decoded_sources(conn: Connection) -> set[int]:
    """Tables whose changes may still come from the WAL."""
    return {int(row[0]) for row in conn.execute(_DECODED)}


def is_wished(conn: Connection) -> bool:
    """Whether there is, or should be, something to decode."""
    row = conn.execute(_WISHED).fetchone()
    return bool(row and row[0])


@dataclass
class Switching:
    """Brings the tables of one database to where they are wished."""

    conn: Connection
    progress: Progress
    _until: dict[int, int] = field(default_factory=dict)
    """Tables that have left the WAL, and the place behind their last change in it."""
    _unneeded: float | None = None
    """Since when nothing is decoded."""

    def turn(self) -> slot.State | None:
        """Look once; the slot to read from, or None if there is nothing to decode."""
        found: list[tuple[int, str, str, str | None, str | None]] = self.conn.execute(_LOOK).fetchall()
        coming = [oid for oid, capture, wish, _, obstacle in found if _comes(capture, wish) and obstacle is None]
        going = [oid for oid, capture, wish, _, _ in found if capture == "wal" and wish == "trigger"]
        state = slot.look(self.conn)
        if state is None and (coming or any(capture != "trigger" for _, capture, *_ in found)):
            for oid in coming:
                self.conn.execute(_REASON, (NO_SLOT_YET, oid))
            slot.make(self.conn)
            state = slot.look(self.conn)
        reasons = {oid: obstacle if _comes(capture, wish) else None for oid, capture, wish, _, obstacle in found}
        if state is not None and state.lost is None:
            reasons |= {oid: IN_USE for oid in coming if not self._switch("_capture_to_wal", oid)}
            reasons |= {oid: IN_USE for oid in going if not self._switch("_capture_to_triggers", oid)}
        for oid, _, _, before, _ in found:
            if reasons[oid] != before or oid in coming:
                self.conn.execute(_REASON, (reasons[oid], oid))
        self._watch_leaving()
        decoded = decoded_sources(self.conn)
        self.progress.expect(decoded)
        if decoded or coming:
            self._unneeded = None
        elif state is not None:
            self._unneeded = self._unneeded or time.monotonic()
            if time.monotonic() - self._unneeded > LINGER_SECONDS:
                return None
        return state

    def passed(self, done: int) -> None:
        """The decoder is at this place: what has left the WAL is captured by triggers alone from now on."""
        left = [oid for oid, place in self._until.items() if place <= done]
        if left:
            self.conn.execute(_LEFT, (left,))
            for oid in left:
                del self._until[oid]

    @property
    def waits_for(self) -> int | None:
        """The place that the decoder has to pass for the sake of tables that leave."""
        return max(self._until.values(), default=None)

    def _switch(self, function: str, oid: int) -> bool:
        self.progress.expect({oid})
        try:
            with self.conn.transaction():
                self.conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
                self.conn.execute(f"SELECT pgtrickle.{function}(%s::oid)".encode(), (oid,))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if is_lost(self.conn):
                raise
            return False
        return True

    def _watch_leaving(self) -> None:
        leaving = {int(row[0]) for row in self.conn.execute(_LEAVING)}
        self._until = {oid: place for oid, place in self._until.items() if oid in leaving}
        if leaving - self._until.keys():
            row = self.conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            self._until |= dict.fromkeys(leaving - self._until.keys(), read_lsn(row[0]))


def _comes(capture: str, wish: str) -> bool:
    return capture == "trigger" and wish in ("wal", "auto")
