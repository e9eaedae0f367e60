"""Work that is stopped at any moment, through tasks and a lake: all is right afterwards, and nothing is left."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import runnel
from tests.conftest import running_engine
from tests.crowd.stopping import Quiet, do, stop_somewhere
from tests.e2e.helpers import eventually, rows, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = int(os.environ.get("RUNNEL_TEST_STOPS", "6"))
"""Of each kind of work; `make soak` does 50."""
QUERY = "SELECT a.k, count(*) AS n, sum(a.x) AS s, max(b.x) AS m FROM a JOIN b ON b.id = a.id GROUP BY a.k"
OTHER = "SELECT a.k, count(*) AS n, min(a.x) AS s, sum(b.x) AS m FROM a JOIN b ON b.id = a.id GROUP BY a.k"


@dataclass
class Site:
    """An engine whose every work is large, with a table that is refreshed all the time beside it."""

    dsn: str
    db: psycopg.Connection
    engine: runnel.Engine
    client: runnel.Client
    spark: SparkSession
    lake: Path


@pytest.fixture
def site(dsn: str, db: psycopg.Connection, spark: SparkSession, tmp_path: Path) -> Iterator[Site]:
    """Two tables of 20,000 rows each."""
    for table in "ab":
        db.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, k int, x int)".encode())
        db.execute(f"INSERT INTO {table} SELECT i, i % 999, i FROM generate_series(1, 20000) i".encode())
    db.execute("ANALYZE a, b")
    with running_engine(dsn, spark, home=tmp_path, tasks_above=100) as engine, runnel.connect(dsn) as client:
        client.create_stream_table("beside", "SELECT k, count(*) AS n FROM a GROUP BY k", "100ms", sink="ducklake")
        eventually(lambda: value(db, "SELECT count(*) FROM pgtrickle.pgt_lake_tables"), what="it has no stand-in")
        yield Site(dsn, db, engine, client, spark, tmp_path / "lake")


def change(db: psycopg.Connection) -> None:
    """Something new for everybody."""
    db.execute("UPDATE a SET x = x + 1 WHERE id <= 20")


@pytest.mark.slow
def test_a_creation_is_stopped(site: Site) -> None:
    db, client, chance = site.db, site.client, random.Random(7)
    seconds = 0.0

    def create(caller: runnel.Client) -> None:
        caller.create_stream_table("passing", QUERY, "@yearly", sink="ducklake")

    for _ in range(2):
        began = time.monotonic()
        create(client)
        seconds = time.monotonic() - began
        client.drop_stream_table("passing")
    quiet, stopped = Quiet(db, site.spark, site.lake), 0
    for _ in range(TIMES):
        if stop_somewhere(site.dsn, db, site.engine, "passing", create, seconds, chance):
            client.drop_stream_table("passing")
        else:
            stopped += 1
        change(db)
    assert stopped > TIMES // 4, f"{stopped} of {TIMES} were stopped"
    assert not rows(db, "SELECT * FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'passing'")
    quiet.nothing_is_left()
    assert client.verify("beside").ok
    client.drop_stream_table("beside")
    quiet.no_file_is_lost()


def refresh(client: runnel.Client, _: int) -> None:
    """Everything anew."""
    client.refresh("kept")


def verify(client: runnel.Client, _: int) -> None:
    """A refresh, and PostgreSQL's own answer beside it."""
    assert client.verify("kept").ok


def publish(client: runnel.Client, _: int) -> None:
    """For the first time."""
    client.alter_stream_table("kept", sink="ducklake")


def alter(client: runnel.Client, number: int) -> None:
    """Another query each time, with all state built anew."""
    client.alter_stream_table("kept", query=(QUERY, OTHER)[number % 2])


def nothing(_: runnel.Client) -> None:
    """It is ready for the next time."""


def withdraw(client: runnel.Client) -> None:
    """So that the next publication is a first one."""
    client.alter_stream_table("kept", sink="none")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "mode", "again"),
    [(refresh, "FULL", nothing), (verify, "AUTO", nothing), (publish, "AUTO", withdraw), (alter, "AUTO", nothing)],
    ids=["full refresh", "verify", "first publication", "alter"],
)
def test_other_work_is_stopped(
    site: Site, work: Callable[[runnel.Client, int], None], mode: str, again: Callable[[runnel.Client], None]
) -> None:
    db, client, chance = site.db, site.client, random.Random(mode)
    client.create_stream_table("kept", QUERY, "@yearly", refresh_mode=mode)
    seconds = 0.0
    for number in range(2):
        change(db)
        began = time.monotonic()
        assert do(site.dsn, lambda caller, n=number: work(caller, n))
        seconds = time.monotonic() - began
        again(client)
    quiet, stopped = Quiet(db, site.spark, site.lake), 0
    for number in range(TIMES):
        change(db)
        ended = stop_somewhere(
            site.dsn, db, site.engine, "kept", lambda caller, n=number: work(caller, n), seconds, chance
        )
        stopped += not ended
        state = rows(db, "SELECT status, is_populated FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'kept'")
        assert state == [("ACTIVE", True)]
        again(client)
        if number % 3 == 0:
            assert client.verify("kept").ok
    assert stopped > TIMES // 4, f"{stopped} of {TIMES} were stopped"
    assert client.verify("kept").ok
    assert client.verify("beside").ok
    quiet.nothing_is_left()
    client.drop_stream_table("kept")
    client.drop_stream_table("beside")
    quiet.no_file_is_lost()
