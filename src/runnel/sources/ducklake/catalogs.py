"""Where the catalogs of lakes are read: on the caller's own connection, or on one to the server that holds them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.errors import TransientError
from runnel.lake.connection import connect_catalog, unreachable
from runnel.lake.format.model import Lake

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]


@dataclass
class LakeCatalogs:
    """Connections to the catalogs of lakes in other databases, made when they are needed and kept."""

    _open: dict[str, tuple[str, Connection]] = field(default_factory=dict)

    def reading(self, lake: Lake, own: Connection) -> Connection:
        """A connection that reads a lake's catalog in one snapshot until `finish`; `own`, if that is where it is."""
        if lake.dsn is None:
            return own
        conn = self._connected(lake, lake.dsn)
        try:
            if conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        except psycopg.Error as error:
            raise self._lost(lake, error) from None
        return conn

    def finish(self) -> None:
        """Let the snapshots of other databases go."""
        for name, (_, conn) in list(self._open.items()):
            try:
                if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    conn.execute("ROLLBACK")
            except psycopg.Error:
                log.debug("the catalog of lake %s has gone", name, exc_info=True)
                self._drop(name)

    def close(self) -> None:
        for name in list(self._open):
            self._drop(name)

    def _connected(self, lake: Lake, dsn: str) -> Connection:
        known = self._open.get(lake.name)
        if known is not None and (known[0] != dsn or known[1].closed or known[1].broken):
            self._drop(lake.name)
            known = None
        if known is None:
            known = self._open[lake.name] = dsn, connect_catalog(lake)
        return known[1]

    def _drop(self, name: str) -> None:
        _, conn = self._open.pop(name)
        conn.close()

    def _lost(self, lake: Lake, error: psycopg.Error) -> TransientError:
        if lake.name in self._open:
            self._drop(lake.name)
        return unreachable(lake, error)
