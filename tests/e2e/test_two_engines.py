"""Two engines on one database: one works, the other says who has it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import psycopg
import pytest

import runnel
from tests.conftest import running_engine
from tests.e2e.helpers import eventually, rows, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_second_engine_says_who_has_the_database(own_database: str, spark: SparkSession) -> None:
    with psycopg.connect(own_database, autocommit=True) as db:
        db.execute("CREATE TABLE t (v int)")
        with running_engine(own_database, spark):
            second = runnel.Engine(own_database, spark=spark)
            with pytest.raises(runnel.RunnelError, match="another Runnel engine works on this database") as refused:
                second.start()
            second.close()
            assert f"process {os.getpid()} on {socket.gethostname()}" in refused.value.message
            assert "runnel down" in str(refused.value.hint)
            db.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT v FROM t', '1s')")
            assert value(db, "SELECT count(*) FROM pgtrickle.pgt_engine") == 1
        with running_engine(own_database, spark):
            db.execute("INSERT INTO t VALUES (1)")
            db.execute("SELECT pgtrickle.refresh_stream_table('s')")
            assert rows(db, "SELECT v FROM s") == [(1,)]


def test_work_done_while_no_engine_ran_is_caught_up(own_database: str, spark: SparkSession) -> None:
    with psycopg.connect(own_database, autocommit=True) as db:
        db.execute("CREATE TABLE t (v int)")
        with running_engine(own_database, spark):
            db.execute(
                "SELECT pgtrickle.create_stream_table('s', 'SELECT v, count(*) AS n FROM t GROUP BY v', '@yearly')"
            )
        db.execute("INSERT INTO t VALUES (1), (1), (2)")
        db.execute("DELETE FROM t WHERE v = 2")
        with running_engine(own_database, spark):
            assert value(db, "SELECT pgtrickle.verify_stream_table('s') ->> 'ok'") == "true"
            assert rows(db, "SELECT v, n FROM s") == [(1, 2)]
            assert value(db, "SELECT action FROM pgtrickle.get_refresh_history('s', 1)") == "DIFFERENTIAL"


def test_an_engine_survives_the_loss_of_its_connections(own_database: str, spark: SparkSession) -> None:
    with psycopg.connect(own_database, autocommit=True) as db, running_engine(own_database, spark):
        db.execute("CREATE TABLE t (v int)")
        db.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT count(*) AS n FROM t', '1s')")
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name LIKE 'runnel%'"
        )
        db.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: value(db, "SELECT n FROM s") == 1, 20, what="the engine did not come back")
        eventually(lambda: value(db, "SELECT pgtrickle._engine_alive()"))
        assert value(db, "SELECT pgtrickle.verify_stream_table('s') ->> 'ok'") == "true"
