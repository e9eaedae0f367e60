"""One database and one engine per file, one schema per test.

A test's connections have its own schema first on their search path, so table names need no care, and the schema
with everything in it is dropped at the end of the test.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.server.embedded import EmbeddedServer
from tests.conftest import TEMPLATE, running_engine
from tests.e2e.helpers import Stream, drop_schema
from tests.versions import skip_unknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_databases = itertools.count(1)
_schemas = itertools.count(1)


@contextmanager
def _new_database(server: EmbeddedServer) -> Iterator[str]:
    name = f"e2e{next(_databases)}"
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}".encode())
    yield make_conninfo(server.dsn, dbname=name)
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(scope="module")
def database(server: EmbeddedServer) -> Iterator[str]:
    """The file's database."""
    with _new_database(server) as dsn:
        yield dsn


@pytest.fixture
def own_database(server: EmbeddedServer) -> Iterator[str]:
    """A database for this test alone, without an engine."""
    with _new_database(server) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def engine(database: str, spark: SparkSession) -> Iterator[runnel.Engine]:
    """The file's engine."""
    with running_engine(database, spark) as started:
        yield started


@pytest.fixture
def schema(database: str, engine: runnel.Engine) -> Iterator[str]:
    """The test's schema."""
    name = f"s{next(_schemas)}"
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f"CREATE SCHEMA {name}".encode())
        yield name
        drop_schema(conn, name)


@pytest.fixture
def dsn(database: str, schema: str) -> str:
    """A connection string that finds the test's schema first."""
    return make_conninfo(database, options=f"-c search_path={schema},public")


@pytest.fixture
def stream(client: runnel.Client, db: psycopg.Connection) -> Stream:
    """Create a stream table that refreshes only when told to, and only by deltas unless said otherwise."""

    def create(name: str, query: str, mode: str = "DIFFERENTIAL", schedule: str = "@yearly") -> None:
        skip_unknown(db, query)
        client.create_stream_table(name, query, schedule=schedule, refresh_mode=mode)

    return create
