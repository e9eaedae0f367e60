"""Calls of SQL functions that wait for the engine: claim them, answer them. Never commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from runnel.catalog.rows import Json, Request
from runnel.errors import RunnelError

Connection = psycopg.Connection[Any]

NAME_NO_SOURCE = frozenset({"refresh"})
"""Requests about what is known already: what a refresh reads elsewhere it looks at itself."""

# A request does not outlive the call that waits for it, so nobody need wait until it has reached the disk.
_NOT_FOR_GOOD = "set_config('synchronous_commit', 'off', true) IS NOT NULL"
TAKE_REQUESTS = f"""
WITH taken AS (
    UPDATE pgtrickle.pgt_requests SET status = 'RUNNING'
    WHERE request_id IN (SELECT request_id FROM pgtrickle.pgt_requests WHERE status = 'PENDING'
                         AND (kind = 'cancel' OR NOT %s) ORDER BY request_id LIMIT %s FOR UPDATE SKIP LOCKED)
        AND {_NOT_FOR_GOOD}
    RETURNING request_id, kind, args, role, caller_pid, settings, created_at)
SELECT * FROM taken ORDER BY request_id
"""  # noqa: S608  (made of constants)
FORGET_ARGUMENTS = "UPDATE pgtrickle.pgt_requests SET args = '{}' WHERE request_id = %s"
FINISH_REQUEST = f"""
UPDATE pgtrickle.pgt_requests SET status = %s, result = %s, error = %s, finished_at = clock_timestamp()
WHERE request_id = %s AND status IN ('PENDING', 'RUNNING') AND {_NOT_FOR_GOOD}
"""  # noqa: S608  (made of constants)
PRUNE_REQUESTS = """
DELETE FROM pgtrickle.pgt_requests
WHERE coalesce(finished_at, created_at) < now() - interval '1 hour' AND status IN ('DONE', 'FAILED', 'CANCELLED')
"""
# A request that came with its caller's COMMIT is nobody's session's (0): it is done also when that session has ended.
ABANDONED = """
SELECT r.request_id FROM pgtrickle.pgt_requests r
WHERE r.request_id = ANY(%s) AND (r.status = 'CANCELLED' OR r.status = 'RUNNING' AND r.caller_pid <> 0 AND NOT EXISTS (
    SELECT FROM pg_stat_activity a WHERE a.pid = r.caller_pid
    AND (a.backend_start IS NULL OR a.backend_start < r.created_at)))
"""
CANCEL_SESSIONS = """
SELECT pg_cancel_backend(pid) FROM pg_stat_activity
WHERE application_name = %s AND datname = current_database() AND usename = current_user
"""
ABANDON_REQUESTS = """
UPDATE pgtrickle.pgt_requests SET status = 'CANCELLED', finished_at = clock_timestamp()
WHERE status IN ('PENDING', 'RUNNING')
"""


def take_requests(conn: Connection, most: int = 100, *, stopping: bool = False) -> list[Request]:
    """Claim waiting requests, oldest first; with `stopping` only those that cancel something."""
    with conn.cursor(row_factory=class_row(Request)) as cur:
        return cur.execute(TAKE_REQUESTS, (stopping, most)).fetchall()


def abandoned(conn: Connection, requests: Sequence[int]) -> list[int]:
    """Those of these requests that nobody waits for any more: taken back, or their callers' sessions are gone."""
    if not requests:
        return []
    return [int(row[0]) for row in conn.execute(ABANDONED, (list(requests),))]


def cancel_sessions(conn: Connection, name: str) -> None:
    """Cancel what the engine's sessions of that name are at."""
    conn.execute(CANCEL_SESSIONS, (name,))


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


def prune_requests(conn: Connection) -> int:
    """Remove what was answered long ago."""
    return conn.execute(PRUNE_REQUESTS).rowcount


def _jsonb(value: object) -> Jsonb | None:
    return None if value is None else Jsonb(value)
