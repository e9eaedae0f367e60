"""One database and one engine for all scenarios: a schema per scenario is cheap, a database is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

import runnel
from runnel.server.embedded import EmbeddedServer
from tests.conftest import TEMPLATE, running_engine
from tests.oracle.replay import Oracle
from tests.oracle.scenario import Scenario

DATABASE = "oracle"


@pytest.fixture(scope="package")
def oracle(server: EmbeddedServer, spark: SparkSession) -> Iterator[Oracle]:
    """Replays scenarios against an engine in this process."""
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {DATABASE} TEMPLATE {TEMPLATE}".encode())
    dsn = make_conninfo(server.dsn, dbname=DATABASE)
    with running_engine(dsn, spark), contextlib.closing(runnel.connect(dsn)) as client:
        yield Oracle(dsn, client)


@pytest.fixture
def replay(oracle: Oracle) -> Callable[[Scenario], None]:
    """Replay one scenario."""
    return oracle.replay
