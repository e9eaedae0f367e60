"""What sinks share in the catalog: the files on their way, and the rows of `pgt_sinks`.

A stream table has one row there for all of its sinks. Each reads and writes columns of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

DELETE_UNUSED = """
DELETE FROM pgtrickle.pgt_sinks WHERE pgt_id = %s AND sink = 'none' AND delta_export_path IS NULL
"""
IS_ABANDONED = "NOT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables t WHERE t.pgt_id = pgt_sinks.pgt_id)"
"""Whether the stream table of a row was dropped behind the engine's back."""
START_UPLOADS = """
INSERT INTO pgtrickle.pgt_lake_uploads (lake, path, xid) SELECT %s, p, %s::xid8 FROM unnest(%s::text[]) p
RETURNING upload_id
"""
END_UPLOADS = "DELETE FROM pgtrickle.pgt_lake_uploads WHERE upload_id = ANY(%s)"
# The server may still be finishing the transaction of an engine that is gone: its files are left alone until it has.
GIVE_UP_UPLOADS = """
UPDATE pgtrickle.pgt_lake_uploads SET given_up_at = clock_timestamp()
WHERE given_up_at IS NULL AND pg_xact_status(xid) IS DISTINCT FROM 'in progress'
"""
GIVEN_UP_UPLOADS = """
SELECT upload_id, lake, path, pg_xact_status(xid), extract(epoch FROM clock_timestamp() - given_up_at)::float8
FROM pgtrickle.pgt_lake_uploads WHERE given_up_at IS NOT NULL ORDER BY upload_id
"""
STORE_FAILED = "UPDATE pgtrickle.pgt_lake_uploads SET given_up_at = clock_timestamp() WHERE upload_id = ANY(%s)"


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a transaction that has ended: it may have been written, and may still be."""

    id: int
    lake: str | None
    path: str
    status: str | None
    """committed, aborted, or None when the transaction is too old to tell."""
    age: float
    """Seconds since it was given up."""


def delete_unused(conn: Connection, pgt_id: int) -> None:
    """Delete a stream table's row when its last sink is gone."""
    conn.execute(DELETE_UNUSED, (pgt_id,))


def start_uploads(conn: Connection, lake: str | None, xid: str, paths: Sequence[str]) -> list[int]:
    """Remember, committed, the files that are about to be written for a transaction."""
    return [row[0] for row in conn.execute(START_UPLOADS, (lake, xid, list(paths)))]


def end_uploads(conn: Connection, ids: Sequence[int]) -> None:
    """The files are published, or gone."""
    conn.execute(END_UPLOADS, (list(ids),))


def given_up_uploads(conn: Connection) -> list[Upload]:
    """Files of transactions that are over and were not accounted for."""
    conn.execute(GIVE_UP_UPLOADS)
    return [Upload(*row) for row in conn.execute(GIVEN_UP_UPLOADS)]


def store_failed(conn: Connection, ids: Sequence[int]) -> None:
    """The store did not answer: what was on its way may arrive when it does, so the time of waiting begins anew."""
    conn.execute(STORE_FAILED, (list(ids),))
