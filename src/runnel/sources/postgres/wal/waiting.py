"""What a refresh does about tables that are captured from the WAL, before it reads their buffers.

Rows of a transaction that the refresh's snapshot shows may be written to the buffer later, by the decoder. So it waits
until the decoder has passed the place in the WAL at which the snapshot lies, which is no later than the end of the WAL
a moment after it was taken. Then the rows are there, but perhaps not for this snapshot: if the decoder's last
transaction with rows of the table is not in it, they are read by another session and copied to a temporary table.

Rows may also be there too early: of a transaction whose end is in the WAL, while the snapshot still shows it running.
So whatever is read is filtered by the snapshot, too: `pg_visible_in_snapshot(pgt_xid, snapshot)`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql as psql

from runnel.catalog.temporary import drop_temporary
from runnel.errors import Outdated
from runnel.model.frontier import Version
from runnel.ports.source import Reading
from runnel.sources.postgres.wal.messages import read_lsn
from runnel.sources.postgres.wal.progress import NotDecoded, Progress

Connection = psycopg.Connection[Any]

_MODES = """
SELECT t.source_relid::int8, w.generation, pg_current_wal_insert_lsn()::text, w.lost, w.lost_xid::text::int8,
       t.capture = 'leaving' AND pgtrickle._wal_column_obstacle(t.source_relid, t.columns) IS NOT NULL,
       ARRAY(SELECT a.attname::text || ' ' || a.atttypid || ' ' || a.atttypmod FROM pg_attribute a
             WHERE a.attrelid = to_regclass('pgtrickle_changes.' || t.buffer) AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum)
FROM pgtrickle.pgt_change_tracking t LEFT JOIN pgtrickle.pgt_wal w ON true
WHERE t.capture <> 'trigger' AND t.source_relid = ANY(%s)
"""
_NAME = re.compile(r"pgt_decoded_(\d+)$")


def shows(snapshot: str, xid: int) -> bool:
    """Whether a snapshot shows a transaction that has committed; like pg_visible_in_snapshot.

    >>> [shows("7:10:8", xid) for xid in (6, 7, 8, 9, 10)]
    [True, True, False, True, False]
    """
    least, most, running = snapshot.split(":")
    return xid < int(least) or (xid < int(most) and str(xid) not in running.split(","))


@dataclass
class Place:
    """Where the changes of one table are to be read in one refresh transaction."""

    buffer: str
    """A table with the columns of a change buffer."""
    copied: list[Version] | None = None
    """None: the buffer itself. Else the snapshots since which rows were copied."""
    shape: tuple[str, ...] = ()
    readers: set[str] = field(default_factory=set)
    """Owners of stream tables that may read what was copied."""


@dataclass
class Waiting:
    """For the refreshes of one worker."""

    progress: Progress
    _places: dict[int, Place | None] = field(default_factory=dict)
    """In this transaction; None: captured by triggers."""
    _made: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Temporary tables of the session: who may read them, and their columns."""
    _lost: tuple[str, int] | None = None
    """What was lost the last time, and the transaction that recorded it."""
    _beside: Connection | None = None

    def arrive(self, reading: Reading, sources: Collection[int]) -> None:
        """Wait until the buffers have all that the refresh's snapshot shows of these tables."""
        new = [oid for oid in sources if oid not in self._places]
        asked = [oid for oid in new if self.progress.concerns(oid)]
        self._places |= dict.fromkeys(new)
        if not asked:
            return
        found = reading.conn.execute(_MODES, (asked,)).fetchall()
        for _, generation, end, lost, lost_xid, _, _ in found[:1]:
            self._lost = None if lost is None else (lost, lost_xid)
            if generation is None:
                raise NotDecoded("changes are to come from the WAL, but nobody knows how far it is decoded")
            with reading.step("wal"):
                self.progress.wait(read_lsn(end), generation)
        for oid, *_, refused, shape in found:
            place = Place(f"pgtrickle_changes.changes_{oid}", shape=tuple(shape))
            if not shows(reading.snapshot, self.progress.last_writer(oid)):
                if refused:
                    raise Outdated("the table is captured by triggers again since this refresh began")
                place.copied = []
                place.buffer = f"pg_temp.pgt_decoded_{oid}"
            self._places[oid] = place

    def place(self, source: int) -> Place | None:
        """Where to read a table's changes; None: in its buffer, as it is."""
        return self._places.get(source)

    def lost(self, since: Version) -> str | None:
        """Which loss of changes lies behind a snapshot, if any."""
        return None if self._lost is None or shows(str(since), self._lost[1]) else self._lost[0]

    def fill(self, reading: Reading, source: int, since: Version) -> None:
        """Let the rows that came since a snapshot be where they are to be read."""
        place = self._places[source]
        if place is None or place.copied is None or since in place.copied:
            return
        if not place.copied:
            self._empty(reading, source, place)
        before = [str(v) for v in place.copied]
        place.copied.append(since)
        rows = psql.SQL("COPY (SELECT * FROM pgtrickle_changes.{} AS r WHERE {}) TO STDOUT (FORMAT binary)").format(
            psql.Identifier(f"changes_{source}"), _condition(reading.snapshot, str(since), before)
        )
        into = psql.SQL("COPY pg_temp.{} FROM STDIN (FORMAT binary)").format(psql.Identifier(_table(source)))
        with (
            self._other(reading).cursor() as there,
            there.copy(rows) as arriving,
            reading.conn.cursor() as here,
            here.copy(into) as taken,
        ):
            for data in arriving:
                taken.write(data)

    def admit(self, reading: Reading, source: int) -> None:
        """Let the owner of a stream table read what was copied, for whomever it was."""
        place = self._places.get(source)
        if place is None or place.copied is None or reading.role in place.readers:
            return
        place.readers.add(reading.role)
        name = psql.Identifier("pg_temp", _table(source))
        reading.conn.execute(psql.SQL("GRANT SELECT ON {} TO {}").format(name, psql.Identifier(reading.role)))

    def _empty(self, reading: Reading, source: int, place: Place) -> None:
        """An empty table of the buffer's shape."""
        name = psql.Identifier("pg_temp", _table(source))
        conn = reading.conn
        if self._made.get(source) != place.shape:
            conn.execute(psql.SQL("DROP TABLE IF EXISTS {}").format(name))
            like = psql.Identifier("pgtrickle_changes", f"changes_{source}")
            conn.execute(psql.SQL("CREATE TEMP TABLE {} (LIKE {})").format(psql.Identifier(_table(source)), like))
            self._made[source] = place.shape
        else:
            conn.execute(psql.SQL("TRUNCATE {}").format(name))

    def _other(self, reading: Reading) -> Connection:
        """A session that sees what was committed after the refresh's snapshot; under its tasks' name, as they are."""
        if self._beside is None or self._beside.closed or self._beside.broken:
            self._beside = psycopg.connect(reading.dsn, autocommit=True)
        return self._beside

    def finish(self) -> None:
        """The transaction is over."""
        self._places.clear()

    def forget(self) -> None:
        """Its temporary tables may be gone with it."""
        self._made.clear()

    def tidy(self, conn: Connection, relations: Collection[int]) -> None:
        """Drop the temporary tables of other relations."""
        for name in drop_temporary(conn, _NAME, relations.__contains__):
            found = _NAME.match(name)
            assert found is not None
            self._made.pop(int(found[1]), None)

    def close(self) -> None:
        """Let go of the other session."""
        if self._beside is not None:
            self._beside.close()


def _table(source: int) -> str:
    return f"pgt_decoded_{source}"


def _condition(snapshot: str, since: str, copied: Sequence[str]) -> psql.Composed:
    """Rows that a snapshot shows, that an older one does not, and that were not copied for others already."""
    shown = "pg_visible_in_snapshot(r.pgt_xid, {}::pg_snapshot)"
    parts = [psql.SQL(shown).format(psql.Literal(snapshot)), psql.SQL(f"NOT {shown}").format(psql.Literal(since))]
    parts += [psql.SQL(shown).format(psql.Literal(each)) for each in copied]
    return psql.SQL(" AND ").join(parts)
