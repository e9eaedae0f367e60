"""A database per test with an engine that tells what happened to it, and a role that is nobody."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest

import runnel
from runnel.server.embedded import EmbeddedServer
from tests.conftest import running_engine
from tests.hostile.helpers import Watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_roles = itertools.count(1)


@pytest.fixture
def events() -> list[str]:
    """What the engine has said."""
    return []


@pytest.fixture
def engine(dsn: str, spark: SparkSession, events: list[str]) -> Iterator[runnel.Engine]:
    """An engine whose events and log are kept."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            events.append(record.getMessage())

    log, handler = logging.getLogger("runnel"), Kept()
    log.addHandler(handler)
    try:
        with running_engine(dsn, spark, on_event=events.append) as started:
            yield started
    finally:
        log.removeHandler(handler)


@pytest.fixture
def stranger(server: EmbeddedServer, dsn: str) -> Iterator[psycopg.Connection]:
    """A session of a role without any rights."""
    name = f"stranger{next(_roles)}"
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN".encode())
        with psycopg.connect(dsn, user=name, autocommit=True) as conn:
            yield conn
        admin.execute(f"DROP OWNED BY {name}".encode())
        admin.execute(f"DROP ROLE {name}".encode())


@pytest.fixture
def watched(db: psycopg.Connection, client: runnel.Client) -> Watched:
    """A stream table that must stay fresh whatever happens."""
    db.execute("CREATE TABLE good (id int PRIMARY KEY, grp int, x int)")
    db.execute("INSERT INTO good SELECT i, i % 3, i FROM generate_series(1, 10) i")
    client.create_stream_table("fresh", "SELECT grp, sum(x) AS total, count(*) AS n FROM good GROUP BY grp", "200ms")
    return Watched(db)
