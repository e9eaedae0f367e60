"""The tutorials do what they say, as they are printed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runnel.relay.relay import Relay
from runnel.server.embedded import EmbeddedServer
from tests.conftest import TEMPLATE, running_engine
from tests.lake.s3 import S3, TUTORIAL_BUCKET
from tests.lake.tutorial import Runner, blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = Path(__file__).parents[2] / "docs" / "tutorials"


@pytest.fixture
def your_db(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The database that the pages speak of; where it is differs, and libpq is told by the environment."""
    for name, value in {"PGHOST": "localhost", "PGPORT": str(server.port), "PGUSER": "postgres"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PGDATABASE", "your_db")
    # What a page exports is gone after it.
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "ENDPOINT_URL", "ALLOW_HTTP", "REGION"):
        monkeypatch.setenv(f"AWS_{name}", "")
        monkeypatch.delenv(f"AWS_{name}")
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE your_db TEMPLATE {TEMPLATE}".encode())
        yield make_conninfo(server.dsn, dbname="your_db")
        conn.execute("DROP DATABASE your_db WITH (FORCE)")


@pytest.fixture
def stack(your_db: str, spark: SparkSession) -> Iterator[Callable[[list[str]], object]]:
    """`runnel up`, in this process."""
    with contextlib.ExitStack() as running:

        def up(arguments: list[str]) -> object:
            given = dict(zip(arguments[::2], arguments[1::2], strict=True))
            assert given.keys() <= {"--dsn", "--data-path"}, arguments
            engine = running.enter_context(running_engine(your_db, spark, data_path=given.get("--data-path")))
            relay = Relay(your_db)
            running.callback(relay.close)
            relay.start()
            return engine

        yield up


@pytest.mark.slow
def test_one_box(
    stack: Callable[[list[str]], object], spark: SparkSession, s3: S3, tmp_path: Path, your_db: str
) -> None:
    address = s3.endpoint.removeprefix("http://")
    runner = Runner(spark, stack, {"localhost:9000": address})
    runner.run(PAGES / "one-box.md", tmp_path)
    assert s3.files(f"s3://{TUTORIAL_BUCKET}/"), "nothing was written to the bucket"
    assert len(runner.outputs) >= 4


@pytest.mark.slow
def test_postgres_to_lake(
    stack: Callable[[list[str]], object], spark: SparkSession, tmp_path: Path, your_db: str
) -> None:
    (tmp_path / "lake").mkdir()
    runner = Runner(spark, stack, {"/var/lib/lake/": f"{tmp_path}/lake/"})
    runner.run(PAGES / "postgres-to-lake.md", tmp_path)
    assert list((tmp_path / "lake").rglob("*.parquet"))
    assert len(runner.outputs) >= 9


@pytest.mark.slow
def test_relay(stack: Callable[[list[str]], object], spark: SparkSession, tmp_path: Path, your_db: str) -> None:
    (tmp_path / "lake").mkdir()
    runner = Runner(spark, stack, {"/var/lib/lake/": f"{tmp_path}/lake/"})
    runner.run(PAGES / "relay.md", tmp_path)
    assert list((tmp_path / "lake").rglob("*.parquet"))
    assert len(runner.outputs) >= 9


def test_every_page_is_run_here() -> None:
    names = {page.name for page in PAGES.glob("*.md")}
    assert names == {"one-box.md", "postgres-to-lake.md", "relay.md"}
    for page in PAGES.glob("*.md"):
        assert {block.language for block in blocks(page.read_text())} <= {"sql", "bash", "python"}
        # A server of one's own has no files for it, and nothing needs it.
        assert "CREATE EXTENSION" not in page.read_text()
