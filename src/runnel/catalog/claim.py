"""The claim on a database: which session is its engine.

A row says so, in a table that only the engine's role can write, or lock against writing. It holds as long as the
session lives: `pgtrickle._engine_alive()` looks for the row's process, role and moment of start among the sessions. So
a killed engine leaves nothing to clean up, and no other role can claim a database or keep an engine from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from runnel.catalog.rows import Json

Connection = psycopg.Connection[Any]

LOCK_TIMEOUT = "10s"

# Readers do not stand in the way, and other roles may do no more than read.
LOCK = "LOCK TABLE pgtrickle.pgt_engine IN SHARE ROW EXCLUSIVE MODE"
TAKEN = """
SELECT pgtrickle._engine_alive() AND EXISTS (SELECT FROM pgtrickle.pgt_engine WHERE pid <> pg_backend_pid())
"""
CLAIM = """
INSERT INTO pgtrickle.pgt_engine (pid, backend_start, role, host, os_pid, version, started_at, spark_master)
SELECT a.pid, a.backend_start, a.usesysid, %s, %s, %s, clock_timestamp(), %s
FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()
ON CONFLICT (singleton) DO UPDATE SET pid = excluded.pid, backend_start = excluded.backend_start, role = excluded.role,
    host = excluded.host, os_pid = excluded.os_pid, version = excluded.version, started_at = excluded.started_at,
    spark_master = excluded.spark_master, writers = '{}'
"""
REGISTER_WRITERS = "UPDATE pgtrickle.pgt_engine SET writers = %s"
RELEASE = "DELETE FROM pgtrickle.pgt_engine WHERE pid = pg_backend_pid()"
HOLDER = "SELECT pid, host, os_pid, version, started_at, spark_master FROM pgtrickle.pgt_engine"


def claim(conn: Connection, *, host: str, os_pid: int, version: str, spark_master: str | None) -> bool:
    """Become the engine of this database for as long as this session lives; False when another session is."""
    with conn.transaction():
        conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
        conn.execute(LOCK)
        row = conn.execute(TAKEN).fetchone()
        if row is not None and row[0]:
            return False
        conn.execute(CLAIM, (host, os_pid, version, spark_master))
    return True


def register_writers(conn: Connection, pids: Sequence[int]) -> None:
    """Say which sessions of the engine write to stream tables: their guard lets them."""
    conn.execute(REGISTER_WRITERS, (list(pids),))


def release(conn: Connection) -> None:
    """Let another engine take over at once."""
    conn.execute(RELEASE)


def holder(conn: Connection) -> Json | None:
    """Who claimed the database last, alive or not."""
    with conn.cursor(row_factory=dict_row) as cur:
        return cur.execute(HOLDER).fetchone()
