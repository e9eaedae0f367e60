"""Connections of a Python worker to PostgreSQL, kept for a moment: a worker that has read a slice mostly reads another.

Making one takes 50 ms, most of it for the driver's look at the catalog of types: as much as a short slice. What is kept
is clean: its transaction has ended, and DISCARD ALL has undone whatever the last SELECT left in the session. A
connection that nobody asked for within a second is closed, so that none outlives its refresh by more.

What runs inside tasks is kept free of other imports: executors need pyarrow and the ADBC driver of PostgreSQL.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SECONDS_KEPT = 1.0

_kept: dict[str, tuple[Any, threading.Timer]] = {}
"""By connection string: the connection, and what will close it."""
_lock = threading.Lock()


@contextmanager
def connection(dsn: str) -> Iterator[Any]:
    """An ADBC connection in autocommit; it is kept if the block ends well."""
    conn = _take(dsn)
    if conn is None:
        from adbc_driver_postgresql import dbapi  # noqa: PLC0415  (imported where the task runs)

        conn = dbapi.connect(dsn, autocommit=True)
    try:
        yield conn
        with conn.cursor() as cursor:
            cursor.execute("ROLLBACK")
            cursor.execute("DISCARD ALL")
    except BaseException:
        conn.close()
        raise
    _keep(dsn, conn)


def _take(dsn: str) -> Any:
    with _lock:
        conn, timer = _kept.pop(dsn, (None, None))
    if timer is not None:
        timer.cancel()
    return conn


def _keep(dsn: str, conn: Any) -> None:
    timer = threading.Timer(_SECONDS_KEPT, _close, (dsn, conn))
    timer.daemon = True
    with _lock:
        before, _ = _kept.pop(dsn, (None, None))
        _kept[dsn] = conn, timer
    timer.start()
    if before is not None:
        before.close()


def _close(dsn: str, conn: Any) -> None:
    """Nobody wanted it."""
    with _lock:
        kept, _ = _kept.get(dsn, (None, None))
        if kept is not conn:
            return
        del _kept[dsn]
    kept.close()
