"""Wait for the engine of a database to end, in order to take its place.

The claim on a database ends with the session that made it (`runnel.catalog.claim`), so nothing has to be agreed upon:
one looks twice a second whether anybody is there. Of several that wait, the first to make the claim has it; the others
go on waiting.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import psycopg

from runnel.catalog import claim
from runnel.catalog.lost import first_line
from runnel.catalog.sessions import connect

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
FIRST_OF_ALL = "SELECT to_regclass('pgtrickle.pgt_engine') IS NULL"
ALIVE = "SELECT pgtrickle._engine_alive()"


def await_turn(dsn: str, stopping: threading.Event) -> bool:
    """Return True when no engine works on the database, False when this one is to stop."""
    told = ""
    while not stopping.is_set():
        try:
            with connect(dsn, "runnel standby") as conn:
                while not stopping.is_set():
                    if not _is_taken(conn):
                        return True
                    told = _tell(told, f"{_who(conn)} works on this database")
                    stopping.wait(LOOK_SECONDS)
        except psycopg.OperationalError as error:
            if not told:
                raise
            # The server is away, and its engine with it. Nothing can be taken over before it is back.
            told = _tell(told, first_line(error))
            stopping.wait(LOOK_SECONDS)
    return False


def _tell(told: str, news: str) -> str:
    if news != told:
        log.info("standing by: %s", news)
    return news


def _is_taken(conn: psycopg.Connection[Any]) -> bool:
    (unknown,) = conn.execute(FIRST_OF_ALL).fetchone() or (True,)
    if unknown:
        return False
    (alive,) = conn.execute(ALIVE).fetchone() or (False,)
    return bool(alive)


def _who(conn: psycopg.Connection[Any]) -> str:
    holder = claim.holder(conn)
    return f"process {holder['os_pid']} on {holder['host']}" if holder else "another engine"
