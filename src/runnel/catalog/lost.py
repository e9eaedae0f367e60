"""Has the connection gone, or did a statement fail?

psycopg raises OperationalError for both: it maps whole classes of SQLSTATE to it (08, 38, 53, 54, 55, 57, 58), among
them an index row that is too large, a foreign server that is away, a cancelled statement, and whatever a function
chooses to raise. So the type says nothing. The connection does, and the severity: the server ends a session with FATAL
or PANIC, which no statement can raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

ENDED = ("FATAL", "PANIC")
TRANSIENT = ("08", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE that speak of the moment, not of the statement."""
TRIES = 100
"""Against cancellations, which come every 50 ms."""


def is_lost(*connections: psycopg.Connection[Any]) -> bool:
    """Whether one of these connections can no longer be used."""
    return any(conn.closed or conn.broken for conn in connections)


def ended(error: BaseException) -> bool:
    """Whether an error says that its session is over, whichever it was."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.diag.severity_nonlocalized in ENDED:
        return True
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and error.sqlstate is None


def is_about_the_moment(error: psycopg.Error) -> bool:
    """Whether the same statement may well succeed later: a lost connection, a lock, a cancellation, a full disk."""
    return ended(error) or (error.sqlstate or "")[:2] in TRANSIENT


def insist(conn: psycopg.Connection[Any], work: Callable[[], object]) -> None:
    """Do what must be done after a transaction, though somebody cancels whatever the session is at.

    A cancellation may hit the ROLLBACK itself, which psycopg passes over: then the transaction is still open.
    """
    for left in reversed(range(TRIES)):
        try:
            if conn.info.transaction_status != TransactionStatus.IDLE:
                conn.rollback()
            work()
        except psycopg.errors.QueryCanceled:
            if not left:
                raise
        else:
            return


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
