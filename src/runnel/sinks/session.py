"""Connections to lakes: the one that writes a snapshot, and the observer that sees what everybody has committed.

A lake in the engine's own database is written by the refresh transaction itself. One on another server has a
transaction of its own, committed just before the refresh's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.catalog.sessions import connect
from runnel.lake.connection import CONNECT_SECONDS, connect_catalog
from runnel.lake.format.model import Lake

Connection = psycopg.Connection[Any]

RELAXED = {"synchronous_commit": "off"}
"""What is written here guards against leftovers only; it need not wait for the disk."""


@dataclass(frozen=True, slots=True)
class LakeSession:
    """A lake that this transaction may write to."""

    lake: Lake
    conn: Connection
    observer: Connection
    remote: bool = False


@dataclass
class Connections:
    """The connections beside the refresh's own; made when first needed, made anew when lost."""

    dsn: str
    _observer: Connection | None = None
    _remote: dict[str, tuple[Lake, Connection, Connection]] = field(default_factory=dict)

    def observer(self) -> Connection:
        """A second view of the engine's database."""
        if self._observer is None or self._observer.closed or self._observer.broken:
            self._observer = connect(self.dsn, "runnel lake", RELAXED, timeout=CONNECT_SECONDS)
        return self._observer

    def session(self, conn: Connection, lake: Lake) -> LakeSession:
        """A lake, with the connection that will write to it."""
        if lake.dsn is None:
            return LakeSession(lake, conn, self.observer())
        known = self._remote.get(lake.name)
        if known is None or known[0] != lake or known[1].closed or known[2].closed:
            writer, observer = connect_catalog(lake, RELAXED), connect_catalog(lake, RELAXED)
            known = self._remote[lake.name] = (lake, writer, observer)
        return LakeSession(lake, known[1], known[2], remote=True)

    def forget(self, name: str) -> None:
        """Close a lake's own connections: a transaction on them failed, or its lake was changed."""
        known = self._remote.pop(name, None)
        for conn in known[1:] if known else ():
            conn.close()

    def close(self) -> None:
        """Let go of everything."""
        for name in list(self._remote):
            self.forget(name)
        if self._observer is not None:
            self._observer.close()
            self._observer = None
