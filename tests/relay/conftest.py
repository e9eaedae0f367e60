"""An engine with a lake, and relays beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import runnel
from runnel.relay.relay import Relay
from tests.conftest import running_engine
from tests.lake.conftest import bucket, data_path, duck, durable, home, processes, s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["bucket", "data_path", "duck", "durable", "home", "processes", "s3"]


@pytest.fixture
def engine(dsn: str, spark: SparkSession, data_path: str) -> Iterator[runnel.Engine]:
    """An engine whose default lake is in the test's folder."""
    with running_engine(dsn, spark, data_path=data_path) as started:
        yield started


@pytest.fixture
def relay(dsn: str) -> Iterator[Callable[[], Relay]]:
    """Start relays; they end with the test."""
    with contextlib.ExitStack() as running:

        def start() -> Relay:
            started = Relay(dsn)
            started.start()
            running.callback(started.close)
            return started

        yield start


@pytest.fixture
def orders(db: psycopg.Connection, client: runnel.Client) -> None:
    """A stream table over a table of orders."""
    db.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, region text NOT NULL, amount numeric(10,2) NOT NULL)")
    db.execute("INSERT INTO orders (region, amount) VALUES ('eu', 10), ('us', 20)")
    client.create_stream_table(
        "revenue", "SELECT region, sum(amount) AS total, count(*) AS n FROM orders GROUP BY region", schedule="1s"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that the relay writes to."""
    made = tmp_path / "out"
    made.mkdir()
    return made
