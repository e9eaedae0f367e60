"""The claim on a database: nobody else can take it, and it ends with its session."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

import runnel
from runnel.catalog.claim import claim, holder
from runnel.catalog.migrate import migrate
from runnel.server.embedded import EmbeddedServer
from tests.conftest import running_engine
from tests.e2e.helpers import eventually, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ME = {"host": "here", "os_pid": 1, "version": "1", "spark_master": None}


def test_no_stranger_can_hold_what_the_engine_needs(
    dsn: str, stranger: psycopg.Connection, db: psycopg.Connection, spark: SparkSession
) -> None:
    """Every advisory lock that there was, and every lock that a reader of the catalog may take."""
    stranger.execute("SELECT pg_advisory_lock(1920298606, n) FROM generate_series(1, 3) n")
    stranger.execute("SELECT pg_advisory_lock(hashtextextended('runnel lake maintenance ducklake', 0))")
    assert value(stranger, "SELECT pgtrickle._engine_alive()") is False
    with stranger.transaction():
        stranger.execute("LOCK TABLE pgtrickle.pgt_engine, pgtrickle.pgt_migrations IN ACCESS SHARE MODE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), stranger.transaction():
            stranger.execute("LOCK TABLE pgtrickle.pgt_engine IN ROW EXCLUSIVE MODE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), stranger.transaction():
            stranger.execute("SELECT FROM pgtrickle.pgt_engine FOR UPDATE")
        assert migrate(dsn) == []
        with running_engine(dsn, spark):
            assert value(db, "SELECT pgtrickle._engine_alive()")
    assert value(stranger, "SELECT severity FROM pgtrickle.health_check() WHERE check_name = 'scheduler_running'") == (
        "ERROR"
    )


def test_strangers_see_whether_an_engine_lives(engine: runnel.Engine, stranger: psycopg.Connection) -> None:
    assert value(stranger, "SELECT pgtrickle._engine_alive()")


def test_the_claim_ends_with_its_session(dsn: str, db: psycopg.Connection) -> None:
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as two:
        assert claim(one, **ME)
        assert claim(one, **ME), "its own claim is no obstacle"
        assert not claim(two, **ME)
        with db.transaction():
            assert value(db, "SELECT pgtrickle._engine_alive()")
            db.execute("SELECT pg_terminate_backend(%s, 5000)", (one.info.backend_pid,))
            assert value(db, "SELECT pgtrickle._engine_alive()") is False, "a transaction sees it as it is now"
        assert claim(two, **ME)
        found = holder(db)
        assert found is not None and found["pid"] == two.info.backend_pid


def test_a_restored_row_names_nobody(dsn: str, db: psycopg.Connection) -> None:
    """The same process id, in another life of the server or on another one."""
    with psycopg.connect(dsn, autocommit=True) as one:
        assert claim(one, **ME)
        db.execute("UPDATE pgtrickle.pgt_engine SET backend_start = backend_start - interval '1 microsecond'")
        assert value(db, "SELECT pgtrickle._engine_alive()") is False
        db.execute("UPDATE pgtrickle.pgt_engine SET backend_start = backend_start + interval '1 microsecond'")
        assert value(db, "SELECT pgtrickle._engine_alive()")


def test_only_one_of_many_at_once_gets_it(dsn: str) -> None:
    connections = [psycopg.connect(dsn, autocommit=True) for _ in range(8)]
    won: list[bool] = []
    threads = [threading.Thread(target=lambda c=c: won.append(claim(c, **ME))) for c in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for conn in connections:
        conn.close()
    assert sorted(won) == [False] * 7 + [True]


def test_a_second_engine_says_who_has_the_database(engine: runnel.Engine, dsn: str, spark: SparkSession) -> None:
    with pytest.raises(runnel.RunnelError, match="another Runnel engine works on this database: process"):
        runnel.Engine(dsn, spark=spark).start()


def test_engines_that_migrate_at_once_do_not_collide(server: EmbeddedServer) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS at_once WITH (FORCE)")
        admin.execute("CREATE DATABASE at_once")
        try:
            dsn = psycopg.conninfo.make_conninfo(server.dsn, dbname="at_once")
            applied: list[list[int]] = []
            threads = [threading.Thread(target=lambda: applied.append(migrate(dsn))) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            steps = [step for each in applied for step in each]
            assert len(applied) == 3
            assert sorted(steps) == sorted(set(steps)), "a step was taken twice"
            with psycopg.connect(dsn) as conn:
                assert value(conn, "SELECT count(*) FROM pgtrickle.pgt_migrations") == len(steps) > 0
        finally:
            admin.execute("DROP DATABASE at_once WITH (FORCE)")


def test_a_lost_server_is_found_again(
    engine: runnel.Engine, db: psycopg.Connection, client: runnel.Client, events: list[str]
) -> None:
    db.execute("CREATE TABLE t (x int)")
    client.create_stream_table("st", "SELECT x FROM t", "200ms")
    for name in ("runnel engine", "runnel requests", "runnel refresh"):
        before = len([e for e in events if e == "connected again"])
        end = f"SELECT bool_or(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name = '{name}'"
        eventually(lambda end=end: value(db, end), what=f"there is no session {name}")
        db.execute("INSERT INTO t VALUES (1)")

        def again(before: int = before) -> bool:
            return len([e for e in events if e == "connected again"]) > before

        eventually(again, 20, what=f"the engine did not come back after the loss of {name}")
    eventually(lambda: value(db, "SELECT count(*) FROM st") == 3)
    assert any(e.startswith("lost the database") for e in events)
    time.sleep(0.1)
    assert value(db, "SELECT pgtrickle._engine_alive()")
    eventually(
        lambda: value(db, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'runnel refresh'") == 1
    )
