"""Hear of changes without making writers pay for it.

NOTIFY makes concurrent commits queue. So writers notify only while the engine sleeps: as long as changes keep coming
the gate is open, writers stay silent, and the engine looks by itself, ten times a second or more, with one query over
all buffers: as often as it costs a twentieth of a core. When it has been quiet for a while the gate closes again, and
an idle system costs nothing.

A writer that saw the gate open may still be running when it closes; the engine goes on looking until every
such transaction has ended.

Anybody can notify. So a notification is only a reason to look, and what has changed is read off the buffers.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.catalog import store

LOOK_SECONDS = 0.1
LOOK_LEAST_SECONDS = 0.03
LOOK_SHARE = 20
"""A look pauses for so many times as long as it took, within these bounds."""
SETTLE_SECONDS = 0.5
QUIET_SECONDS = 3.0


@dataclass
class WakeGate:
    """Whether writers notify, and what has been seen of them."""

    conn: psycopg.Connection[Any]
    _seen: str | None = None
    """The snapshot of the last look; None before the first."""
    _looking: bool = False
    """Whether we look by ourselves; if not, writers notify."""
    _closing: str | None = None
    _quiet_since: float = 0.0
    _next_look: float = 0.0

    def open(self) -> None:
        """Changes are coming: look for more by ourselves."""
        self._quiet_since = time.time()
        self._closing = None
        if self._seen is None:
            # The snapshot comes first: whoever stays silent because of the gate commits after it.
            self._seen = self._snapshot()
        if not self._looking:
            self._looking = True
            self._next_look = 0.0
        store.stay_awake(self.conn)

    def hint(self) -> None:
        """Somebody says that there are changes; the next look finds all since the last one."""
        if not self._looking or self._closing is not None:
            self.open()
            self._next_look = 0.0

    def wait(self) -> float | None:
        """Seconds until the next look, or None while writers notify."""
        return None if not self._looking else max(0.0, self._next_look - time.time())

    def look(self, sources: Collection[int]) -> list[int]:
        """The captured tables that changed since the last look, if one is due."""
        if not self._looking or time.time() < self._next_look:
            return []
        began = time.time()
        settled = self._closing is not None and store.settled(self.conn, self._closing)
        try:
            changed = self._look(sources)
        except psycopg.errors.UndefinedTable:
            # A source was dropped a moment ago, its buffer with it: whoever reads it will know, the others go on.
            changed = self._look(self._present(sources))
        except psycopg.errors.LockNotAvailable:
            changed = self._look_past_locks(sources)
        if changed:
            self.open()
        elif settled:
            self._looking, self._closing = False, None
        elif self._closing is None and time.time() - self._quiet_since > QUIET_SECONDS:
            self._closing = store.doze(self.conn)
        now = time.time()
        pause = min(LOOK_SECONDS, max(LOOK_LEAST_SECONDS, LOOK_SHARE * (now - began)))
        self._next_look = now + (pause if self._closing is None else SETTLE_SECONDS)
        return changed

    def _look(self, sources: Collection[int]) -> list[int]:
        tests = [
            f"SELECT {oid} AS oid WHERE EXISTS (SELECT FROM pgtrickle_changes.changes_{oid} "
            "WHERE NOT pg_visible_in_snapshot(pgt_xid, %(seen)s::pg_snapshot))"
            for oid in sorted(sources)
        ]
        found = "NULL::int8[]" if not tests else f"ARRAY({' UNION ALL '.join(tests)})::int8[]"
        row = self.conn.execute(
            f"SELECT pg_current_snapshot()::text, {found}".encode(), {"seen": self._seen}
        ).fetchone()
        assert row is not None
        self._seen = row[0]
        return list(row[1] or ())

    def _look_past_locks(self, sources: Collection[int]) -> list[int]:
        """DDL on a source keeps its buffer locked: it counts as changed, and the others are looked at."""
        rows = self.conn.execute(
            "SELECT o FROM unnest(%s::int8[]) o JOIN pg_locks l ON l.relation = "
            "to_regclass('pgtrickle_changes.changes_' || o) AND l.mode = 'AccessExclusiveLock'",
            (sorted(sources),),
        )
        locked = {int(row[0]) for row in rows}
        return [*locked, *self._look(set(self._present(sources)) - locked)]

    def _present(self, sources: Collection[int]) -> list[int]:
        rows = self.conn.execute(
            "SELECT o FROM unnest(%s::int8[]) o WHERE to_regclass('pgtrickle_changes.changes_' || o) IS NOT NULL",
            (sorted(sources),),
        )
        return [int(row[0]) for row in rows]

    def _snapshot(self) -> str:
        row = self.conn.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        return str(row[0])
