"""Calls of SQL functions that wait for the engine: claim them, answer them. Never commits."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from runnel.catalog.rows import Json, Request
from runnel.errors import RunnelError

Connection = psycopg.Connection[Any]

TAKE_REQUESTS = """
WITH taken AS (
    UPDATE pgtrickle.pgt_requests SET status = 'RUNNING'
    WHERE request_id IN (SELECT request_id FROM pgtrickle.pgt_requests WHERE status = 'PENDING'
                         ORDER BY request_id FOR UPDATE SKIP LOCKED)
    RETURNING request_id, kind, args, role, caller_pid, settings, created_at)
SELECT * FROM taken ORDER BY request_id
"""
FORGET_ARGUMENTS = "UPDATE pgtrickle.pgt_requests SET args = '{}' WHERE request_id = %s"
FINISH_REQUEST = """
UPDATE pgtrickle.pgt_requests SET status = %s, result = %s, error = %s, finished_at = clock_timestamp()
WHERE request_id = %s AND status IN ('PENDING', 'RUNNING')
"""
ABANDON_REQUESTS = """
UPDATE pgtrickle.pgt_requests SET status = 'CANCELLED', finished_at = clock_timestamp()
WHERE status IN ('PENDING', 'RUNNING')
"""


def take_requests(conn: Connection) -> list[Request]:
    """Claim all waiting requests, oldest first."""
    with conn.cursor(row_factory=class_row(Request)) as cur:
        return cur.execute(TAKE_REQUESTS).fetchall()


def finish_request(
    conn: Connection, request_id: int, result: object = None, error: RunnelError | Json | None = None
) -> None:
    """Answer a request; the SQL function that waits for it returns or raises."""
    failure = error.as_json() if isinstance(error, RunnelError) else error
    status = "DONE" if failure is None else "FAILED"
    conn.execute(FINISH_REQUEST, (status, _jsonb(result), _jsonb(failure), request_id))


def forget_arguments(conn: Connection, request_id: int) -> None:
    """Keep what was asked for, not the credentials that came with it."""
    conn.execute(FORGET_ARGUMENTS, (request_id,))


def abandon_requests(conn: Connection) -> int:
    """At the start of an engine: requests of a former one that nobody will answer, or waits for, any more."""
    return conn.execute(ABANDON_REQUESTS).rowcount


def _jsonb(value: object) -> Jsonb | None:
    return None if value is None else Jsonb(value)
