"""Who asks: the role behind a request, by its token or by where it comes from."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.catalog.tokens import digest, role_of
from runnel.http.place import is_loopback

Connection = psycopg.Connection[Any]
Borrow = Callable[[], AbstractContextManager[Connection]]

_KEEP_SECONDS = 1.0
"""So long a token is taken without asking the database again."""
_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Caller:
    """The role that a request speaks for."""

    role: str
    is_engine: bool
    """Whether it speaks for the engine itself, which may do everything."""


class Callers:
    """Tells roles by tokens."""

    def __init__(self, token: str, borrow: Borrow, *, loopback_reads: bool) -> None:
        """`token` is the server's own. `loopback_reads`: whoever is on this machine reads without one."""
        self._own = digest(token)
        self._borrow = borrow
        self._loopback_reads = loopback_reads
        self._known: dict[bytes, tuple[float, str | None]] = {}
        self._lock = threading.Lock()
        self._engine: Caller | None = None

    def by_token(self, token: str) -> Caller | None:
        """The caller with this token, or None for one that is not (or no longer) good."""
        key = digest(token)
        if hmac.compare_digest(key, self._own):
            return self.engine()
        with self._lock:
            moment, role = self._known.get(key, (-_KEEP_SECONDS, None))
        if time.monotonic() - moment >= _KEEP_SECONDS:
            with self._borrow() as conn:
                role = role_of(conn, token)
            with self._lock:
                if len(self._known) >= _KEPT:
                    self._known.clear()
                self._known[key] = time.monotonic(), role
        return None if role is None else Caller(role, is_engine=role == self.engine().role)

    def by_place(self, host: str | None, *, reading: bool) -> Caller | None:
        """The caller without a token: on a server that trusts its machine, whoever reads from there."""
        if self._loopback_reads and reading and host is not None and is_loopback(host):
            return self.engine()
        return None

    def engine(self) -> Caller:
        """The engine's own role."""
        if self._engine is None:
            with self._borrow() as conn:
                row = conn.execute("SELECT current_user").fetchone()
            assert row is not None
            self._engine = Caller(str(row[0]), is_engine=True)
        return self._engine
