"""Scheduled verification: off unless asked for, and what it finds is told by health_check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

import runnel
from tests.conftest import running_engine
from tests.e2e.helpers import eventually, rows, script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def health(db: psycopg.Connection) -> tuple[str, str]:
    (found,) = rows(db, "SELECT severity, detail FROM pgtrickle.health_check() WHERE check_name = 'verification'")
    return found[0], found[1]


def test_random_tables_are_verified_and_reported(own_database: str, spark: SparkSession) -> None:
    with running_engine(own_database, spark, verify_every=0.2), psycopg.connect(own_database, autocommit=True) as db:
        client = runnel.connect(own_database)
        script(db, "CREATE TABLE t (k int, v int); INSERT INTO t VALUES (1, 1), (2, 2)")
        for name in ("a", "b"):
            client.create_stream_table(name, "SELECT k, sum(v) AS v FROM t GROUP BY k", schedule="@yearly")
        eventually(lambda: health(db) == ("OK", "2 stream tables verified"), what="nobody verified")
        db.execute("SET pgtrickle.allow_direct_writes = on")
        db.execute("INSERT INTO a VALUES (7, 7)")
        severity, detail = eventually(lambda: health(db) if health(db)[0] == "ERROR" else None, what="not noticed")
        assert "public.a: 1 or more rows differ" in detail and "public.b" not in detail
        db.execute("DELETE FROM a WHERE k = 7")
        eventually(lambda: health(db)[0] == "OK", what="it is right again")
        client.close()


def test_without_being_asked_nothing_is_verified(own_database: str, spark: SparkSession) -> None:
    with running_engine(own_database, spark), psycopg.connect(own_database, autocommit=True) as db:
        client = runnel.connect(own_database)
        script(db, "CREATE TABLE t (k int)")
        client.create_stream_table("a", "SELECT k FROM t", schedule="1s")
        for value in range(3):
            db.execute("INSERT INTO t VALUES (%s)", (value,))
            client.refresh("a")
        assert health(db) == ("OK", "0 stream tables verified")
        client.close()
