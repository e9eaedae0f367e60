"""An engine that is no superuser, with the REPLICATION attribute and without event triggers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.catalog.server_check import Finding, Verdict, look
from tests.conftest import running_engine
from tests.wal.conftest import drop_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from runnel.server.embedded import EmbeddedServer

DATABASE = "wal_plain"


@pytest.fixture
def plain(server: EmbeddedServer) -> Iterator[str]:
    """A database that belongs to an ordinary role, which runs the engine in it; its tables are an application's."""
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("CREATE ROLE wal_engine LOGIN CREATEROLE; CREATE ROLE wal_app LOGIN")
        conn.execute(f"CREATE DATABASE {DATABASE} OWNER wal_engine".encode())
    yield make_conninfo(server.dsn, dbname=DATABASE, user="wal_engine")
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        drop_slots(conn, DATABASE)
        conn.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)".encode())
        conn.execute("DROP ROLE wal_engine; DROP ROLE wal_app")


def _looked_at(dsn: str) -> Finding:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return next(finding for finding in look(conn) if finding.what == "Capture from the WAL")


def test_what_is_missing_is_said_and_then_it_works(plain: str, server: EmbeddedServer, spark: SparkSession) -> None:
    admin = make_conninfo(server.dsn, dbname=DATABASE)
    with psycopg.connect(admin, autocommit=True) as db:
        db.execute("CREATE SCHEMA app AUTHORIZATION wal_app; GRANT USAGE ON SCHEMA app TO wal_engine")
        db.execute("CREATE TABLE app.src (id int PRIMARY KEY, v int)")
        db.execute("ALTER TABLE app.src OWNER TO wal_app; GRANT SELECT, TRIGGER ON app.src TO wal_engine")
        assert _looked_at(plain).statements == ('ALTER ROLE "wal_engine" REPLICATION;',)
        with running_engine(plain, spark), contextlib.closing(runnel.connect(plain)) as client:
            said = []
            for grant in (
                "ALTER ROLE wal_engine REPLICATION",
                "GRANT wal_app TO wal_engine",
            ):
                with pytest.raises(runnel.RunnelError) as refused:
                    client.create_stream_table("public.st", "SELECT sum(v) AS s FROM app.src", cdc_mode="wal")
                said.append(refused.value)
                db.execute(grant.encode())
            assert "may not read the WAL" in said[0].message and "ALTER ROLE wal_engine REPLICATION" in str(
                said[0].hint
            )
            assert "does not own app.src" in said[1].message and "GRANT wal_app TO wal_engine" in str(said[1].hint)
            client.create_stream_table("public.st", "SELECT sum(v) AS s FROM app.src", cdc_mode="wal")
            _captured(db)
            assert _looked_at(plain).verdict is Verdict.YES
            with psycopg.connect(make_conninfo(admin, user="wal_app"), autocommit=True) as app:
                app.execute("INSERT INTO app.src SELECT i, i FROM generate_series(1, 100) i")
                app.execute("UPDATE app.src SET v = v + 1 WHERE id > 50; DELETE FROM app.src WHERE id = 1")
            assert client.verify("public.st").ok
            actions = db.execute("SELECT DISTINCT action FROM pgtrickle.pgt_refresh_history").fetchall()
            assert set(actions) == {("INITIAL",), ("DIFFERENTIAL",)}


def _captured(db: psycopg.Connection, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while (
        row := db.execute("SELECT capture, capture_reason FROM pgtrickle.pgt_change_tracking").fetchone()
    ) is not None:
        if row[0] == "wal":
            return
        assert time.monotonic() < deadline, row
        time.sleep(0.05)
