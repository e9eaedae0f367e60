"""Tables of PostgreSQL as a kind of source: whatever no other kind claims, captured by triggers or from the WAL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from psycopg import sql as psql

from runnel.plan.stage import Origin
from runnel.ports.source import Connection, Kind, Reading, Source, Used
from runnel.sources.postgres.tables import Captured, CapturedTable, Looked
from runnel.sources.postgres.wal.progress import Progress
from runnel.sources.postgres.wal.waiting import Waiting
from runnel.sources.slices import WholeTables


class CapturedTables(Kind):
    """Ordinary and partitioned tables."""

    name = "TABLE"

    def __init__(self, decoding: Progress | None = None) -> None:
        """`decoding`: of the engine's decoder, if it has one."""
        self._looked = Looked()
        self._decoding = decoding
        self._decoded = None if decoding is None else Waiting(decoding)

    def origin(self, found: Any) -> Origin:  # noqa: ARG002
        """Nothing is special about a table."""
        return Origin()

    def capture(self, conn: Connection, used: Sequence[Used], role: str) -> None:
        """Install triggers and buffers for the columns that the query uses."""
        for each in used:
            oid, columns = each.relation.oid, list(each.columns)
            conn.execute("SELECT pgtrickle._capture_install(%s::oid, %s::text[])", (oid, columns))
            grant_buffer(conn, oid, columns, role)

    def open(self, reading: Reading, used: Sequence[Used]) -> Mapping[int, Source]:
        """The captured tables of a stream table."""
        captured = Captured(reading, used, WholeTables(reading), self._looked, self._decoded)
        return {u.relation.oid: CapturedTable(captured, u.relation) for u in used}

    def told(self) -> set[int]:
        """Tables of which the decoder has brought changes."""
        return set() if self._decoding is None else self._decoding.moved()

    def finish(self) -> None:
        """What was seen holds for one snapshot."""
        self._looked = Looked()
        if self._decoded is not None:
            self._decoded.finish()

    def tidy(self, conn: Connection, living: Collection[int], relations: Collection[int]) -> None:  # noqa: ARG002
        """Drop what was copied of tables that nobody reads any more."""
        if self._decoded is not None:
            self._decoded.tidy(conn, relations)

    def forget(self) -> None:
        """What was copied is gone."""
        if self._decoded is not None:
            self._decoded.forget()

    def close(self) -> None:
        """Let go of the session beside the refresh's."""
        if self._decoded is not None:
            self._decoded.close()


def grant_buffer(conn: Connection, oid: int, columns: Sequence[str], role: str) -> None:
    """Let the owner read just the captured columns its query uses."""
    row = conn.execute("SELECT columns FROM pgtrickle.pgt_change_tracking WHERE source_relid = %s", (oid,)).fetchone()
    assert row is not None
    numbers = [f"c{c['attnum']}" for c in row[0] if c["name"] in columns]
    # Tasks read slices by ctid.
    names = ", ".join(["ctid", "pgt_xid", "pgt_w", *numbers])
    conn.execute(
        psql.SQL("GRANT SELECT ({}) ON pgtrickle_changes.{} TO {}").format(
            psql.SQL(names),
            psql.Identifier(f"changes_{oid}"),
            psql.Identifier(role),
        )
    )
