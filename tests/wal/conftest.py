"""A server whose WAL can be decoded."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runnel.catalog.migrate import migrate
from runnel.server.embedded import EmbeddedServer
from tests.conftest import TEMPLATE

SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "wal_level": "logical",
    "max_prepared_transactions": "10",
    # Large transactions are spilled to disk; here all but the smallest.
    "logical_decoding_work_mem": "64kB",
}


@pytest.fixture(scope="package")
def server() -> Iterator[EmbeddedServer]:
    """One server for the tests of this folder."""
    with tempfile.TemporaryDirectory(prefix="runnel-wal-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)
        embedded = EmbeddedServer(Path(directory) / "home")
        embedded.start()
        try:
            with psycopg.connect(embedded.dsn, autocommit=True) as conn:
                for name, value in SETTINGS.items():
                    conn.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
                conn.execute(f"CREATE DATABASE {TEMPLATE}")
            migrate(make_conninfo(embedded.dsn, dbname=TEMPLATE))
            embedded.stop("fast")
            embedded.start()
            yield embedded
        finally:
            embedded.stop("immediate")


@pytest.fixture
def dsn(server: EmbeddedServer) -> Iterator[str]:
    """A fresh database with Runnel's schemas installed; its slot goes with it."""
    name = f"w{time.monotonic_ns()}"
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}".encode())
    yield make_conninfo(server.dsn, dbname=name)
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        drop_slots(conn, name)
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def drop_slots(conn: psycopg.Connection, database: str) -> None:
    """Drop the slots of a database; whoever reads them is thrown out."""
    slots = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s"
    while found := conn.execute(slots, (database,)).fetchall():
        for slot, pid in found:
            conn.execute("SELECT pg_terminate_backend(%s)", (pid,))
            with contextlib.suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


Captured = Callable[..., None]


@pytest.fixture
def captured(db: psycopg.Connection) -> Captured:
    """Wait until tables are captured in a mode."""

    def wait(mode: str, *tables: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = db.execute(
                "SELECT t.source_relid::regclass::text, capture, capture_reason FROM pgtrickle.pgt_change_tracking t"
            ).fetchall()
            if {name for name, capture, _ in found if capture == mode} >= set(tables):
                return
            time.sleep(0.05)
        raise AssertionError(f"not captured by {mode}: {found}")

    return wait


@pytest.fixture
def only_deltas(db: psycopg.Connection) -> Callable[..., None]:
    """Assert that stream tables were never computed anew since they were filled: a mistake may not be mended unseen."""

    def look(*names: str) -> None:
        found = db.execute(
            "SELECT s.pgt_name, h.action, h.status, h.reason FROM pgtrickle.pgt_refresh_history h "
            "JOIN pgtrickle.pgt_stream_tables s USING (pgt_id) WHERE s.pgt_name = ANY(%s) "
            "AND (h.action NOT IN ('INITIAL', 'DIFFERENTIAL') OR h.status <> 'COMPLETED')",
            (list(names),),
        ).fetchall()
        assert found == []

    return look
