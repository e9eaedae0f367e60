"""A few sessions for the requests of the HTTP server, apart from the engine's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from runnel.catalog.sessions import connect

Connection = psycopg.Connection[Any]

AT_ONCE = 8
KEPT = 2


class Connections:
    """Sessions of the engine's role; no more than `AT_ONCE` at a time, and a few are kept for the next request."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._closed = False

    @contextmanager
    def borrow(self) -> Iterator[Connection]:
        """A session in autocommit; one that broke is not given to anybody again."""
        with self._places:
            conn = self._take() or connect(self._dsn, "runnel http", timeout=10)
            try:
                yield conn
            finally:
                self._put_back(conn)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()

    def _take(self) -> Connection | None:
        with self._lock:
            while self._idle:
                conn = self._idle.pop()
                if _is_alive(conn):
                    return conn
                conn.close()
        return None

    def _put_back(self, conn: Connection) -> None:
        idle = conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if idle and not conn.closed and not self._closed and len(self._idle) < KEPT:
                self._idle.append(conn)
                return
        conn.close()


def _is_alive(conn: Connection) -> bool:
    """Whether the server is still there: it may have been started anew since the last request."""
    try:
        conn.execute("SELECT")
    except psycopg.Error:
        return False
    return True
