"""One PostgreSQL server and one Spark application for the whole run; a fresh database and engine per test."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.catalog.migrate import migrate
from runnel.server.account import BINARIES
from runnel.server.embedded import EmbeddedServer
from tests.versions import fetched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from runnel.spark.session import Sessions

_numbers = itertools.count(1)
TEMPLATE = "runnel_template"


def pytest_configure() -> None:
    """RUNNEL_TEST_PG=15: every server of the run, also those that programs under test start, is of that version."""
    if version := os.environ.get("RUNNEL_TEST_PG"):
        os.environ[BINARIES] = fetched(int(version))


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """The run's PostgreSQL, without fsync: crash tests bring their own."""
    with tempfile.TemporaryDirectory(prefix="runnel-test-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)
        embedded = EmbeddedServer(Path(directory) / "home")
        embedded.start()
        try:
            with psycopg.connect(embedded.dsn, autocommit=True) as conn:
                conn.execute("ALTER SYSTEM SET fsync = off")
                conn.execute("ALTER SYSTEM SET synchronous_commit = off")
                conn.execute("SELECT pg_reload_conf()")
                conn.execute(f"CREATE DATABASE {TEMPLATE}")
            migrate(make_conninfo(embedded.dsn, dbname=TEMPLATE))
            yield embedded
        finally:
            embedded.stop("immediate")


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    """The run's Spark."""
    from runnel.spark.session import Sessions, build_sessions

    if rows := os.environ.get("RUNNEL_TEST_TASKS_ABOVE"):
        # Every test on the large path: slow, and worth it after a change of what tasks do.
        Sessions.threshold = int(rows)  # type: ignore[misc, assignment]
    # Thousands of small, ever different plans: the JVM's second compiler never pays off here.
    os.environ.setdefault("RUNNEL_DRIVER_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    built = build_sessions("local[2]")
    yield built
    built.stop()


@pytest.fixture(scope="session")
def spark(sessions: Sessions) -> SparkSession:
    """The run's SparkSession, as a user would hand it to an engine."""
    return sessions.base


@pytest.fixture
def dsn(server: EmbeddedServer) -> Iterator[str]:
    """A fresh database with Runnel's schemas installed."""
    name = f"t{next(_numbers)}"
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}".encode())
    yield make_conninfo(server.dsn, dbname=name)
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextlib.contextmanager
def running_engine(dsn: str, spark: SparkSession, **options: Any) -> Iterator[runnel.Engine]:
    """An engine at work in a thread of this process."""
    engine = runnel.Engine(dsn, spark=spark, **options)
    engine.start()
    thread = threading.Thread(target=engine.run, name="engine", daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        engine.stop()
        thread.join(60)
        engine.close()
        assert not thread.is_alive(), "the engine did not stop"


@pytest.fixture
def engine(dsn: str, spark: SparkSession) -> Iterator[runnel.Engine]:
    """An engine working on the test's database."""
    with running_engine(dsn, spark) as started:
        yield started


@pytest.fixture
def client(dsn: str, engine: runnel.Engine) -> Iterator[runnel.Client]:
    """The Python way in, with an engine behind it."""
    with contextlib.closing(runnel.connect(dsn)) as connected:
        yield connected


@pytest.fixture
def db(dsn: str) -> Iterator[psycopg.Connection]:
    """A user's own connection, in autocommit."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def check(client: runnel.Client) -> Callable[..., None]:
    """Refresh stream tables and assert that each equals its query in PostgreSQL."""

    def verify(*names: str) -> None:
        for name in names:
            result = client.verify(name)
            assert result.ok, f"{name}: missing {result.missing[:5]}, unexpected {result.unexpected[:5]}"

    return verify
