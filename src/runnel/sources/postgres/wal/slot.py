"""The replication slot and the publication of a database: made, dropped, and found to be lost.

The publication is made before the slot and dropped after it: pgoutput looks for it as of the moment that it decodes.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.model.versions import version_of
from runnel.sources.postgres.wal.messages import read_lsn

Connection = psycopg.Connection[Any]
PUBLICATION = "runnel"

_STATE = f"""
SELECT w.slot, w.generation, w.decoded_lsn::text, s.confirmed_flush_lsn::text, s.wal_status, s.plugin,
       s.database = current_database(), EXISTS (SELECT FROM pg_publication WHERE pubname = '{PUBLICATION}')
FROM pgtrickle.pgt_wal w LEFT JOIN pg_replication_slots s ON s.slot_name = w.slot
"""  # noqa: S608  (a constant)
_NAME = "SELECT 'runnel_' || oid FROM pg_database WHERE datname = current_database()"
_CREATE = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
# A dump that was restored beside its origin names a slot of another database.
_FIND = "SELECT active FROM pg_replication_slots WHERE slot_name = %s AND database = current_database()"
_DROP = "SELECT pg_drop_replication_slot(%s)"
_PATIENCE_SECONDS = 10.0
_DECODED = "SELECT EXISTS (SELECT FROM pgtrickle.pgt_change_tracking WHERE capture <> 'trigger')"
_LEFT = "UPDATE pgtrickle.pgt_change_tracking SET capture = 'trigger' WHERE source_relid = %s"
_OURS = "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s"
_PUBLISHED = "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = %s)"


@dataclass(frozen=True, slots=True)
class State:
    """What the catalog knows of the slot, and what the server does."""

    slot: str
    generation: int
    decoded: int
    """What was committed before this place is in the buffers."""
    lost: str | None
    """Why the slot cannot go on from there."""


def look(conn: Connection) -> State | None:
    """The slot in use, or None."""
    row = conn.execute(_STATE).fetchone()
    if row is None:
        return None
    slot, generation, decoded, confirmed, status, plugin, here, published = row
    lost = None
    if not here:
        lost = f"replication slot {slot} is gone"
    elif plugin != "pgoutput":
        lost = f"replication slot {slot} belongs to somebody else"
    elif status == "lost":
        lost = f"replication slot {slot} was invalidated: the server has removed WAL that was not decoded yet"
    elif read_lsn(confirmed) > read_lsn(decoded):
        lost = f"replication slot {slot} was moved past changes that were not decoded yet"
    elif not published:
        lost = f"publication {PUBLICATION} is gone"
    return State(str(slot), int(generation), read_lsn(decoded), lost)


def make(conn: Connection) -> None:
    """Publication, slot and their row. Waits for the end of all transactions that have written something."""
    _publish(conn)
    slot, start = _new_slot(conn)
    with conn.transaction():
        conn.execute("INSERT INTO pgtrickle.pgt_wal (slot, decoded_lsn) VALUES (%s, %s)", (slot, start))
        # Tables that were decoded before, and nobody knows how far.
        row = conn.execute(_DECODED).fetchone()
        if row and row[0]:
            conn.execute("SELECT pgtrickle._wal_lost('its record was gone', %s, %s)", (slot, start))


def replace(conn: Connection, state: State) -> None:
    """Another slot for one that is lost. Whoever reads its tables computes anew, in a snapshot behind its beginning."""
    _drop_slot(conn, state.slot)
    _publish(conn)
    slot, start = _new_slot(conn)
    conn.execute("SELECT pgtrickle._wal_lost(%s, %s, %s)", (state.lost, slot, start))


def obstacle(conn: Connection) -> str | None:
    """Why this server cannot be decoded, if so."""
    row = conn.execute("SELECT obstacle FROM pgtrickle._wal_server_obstacle()").fetchone()
    return None if row is None else str(row[0])


def give_up(conn: Connection, state: State, sources: Collection[int]) -> None:
    """Triggers for all tables; what was written meanwhile is unknown, so whoever reads them computes anew."""
    for oid in sources:
        with conn.transaction():
            conn.execute("SELECT pgtrickle._capture_to_triggers(%s::oid)", (oid,))
            conn.execute("SELECT pgtrickle._capture_marker(%s::oid)", (oid,))
            conn.execute(_LEFT, (oid,))
    drop(conn, state)


def drop(conn: Connection, state: State) -> None:
    """Nobody needs it any more."""
    _drop_slot(conn, state.slot)
    with conn.transaction():
        conn.execute("DELETE FROM pgtrickle.pgt_wal")
        conn.execute(f"DROP PUBLICATION IF EXISTS {PUBLICATION}".encode())


def forget(conn: Connection) -> None:
    """A row and a publication that came with a dump; the slot is on another server, or another database's."""
    conn.execute("DELETE FROM pgtrickle.pgt_wal")
    row = conn.execute(_OURS, (PUBLICATION,)).fetchone()
    if row and row[0]:
        conn.execute(f"DROP PUBLICATION {PUBLICATION}".encode())


def _publish(conn: Connection) -> None:
    """Before there is a slot: it begins when all transactions of now have ended, so these need no lock."""
    row = conn.execute(_PUBLISHED, (PUBLICATION,)).fetchone()
    said = version_of(conn.info.server_version).published_with
    if not (row and row[0]):
        conn.execute(f"CREATE PUBLICATION {PUBLICATION} {f'WITH ({said})' if said else ''}".encode())
    elif said and (ours := conn.execute(_OURS, (PUBLICATION,)).fetchone()) and ours[0]:
        # It may be from before an upgrade of the server.
        conn.execute(f"ALTER PUBLICATION {PUBLICATION} SET ({said})".encode())
    conn.execute("SELECT pgtrickle._wal_publish()")


def _new_slot(conn: Connection) -> tuple[str, str]:
    row = conn.execute(_NAME).fetchone()
    assert row is not None
    # One that a former engine made and could not record.
    _drop_slot(conn, row[0])
    made = conn.execute(_CREATE, (row[0],)).fetchone()
    assert made is not None
    return str(row[0]), str(made[0])


def _drop_slot(conn: Connection, name: str) -> None:
    """Drop a slot of this database, if it is there; a walsender takes a moment to find that nobody listens."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (found := conn.execute(_FIND, (name,)).fetchone()) is not None:
        if not found[0] or time.monotonic() > deadline:
            conn.execute(_DROP, (name,))
        time.sleep(0.02)
