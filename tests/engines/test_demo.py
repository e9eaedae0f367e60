"""`runnel demo engines` with a Trino beside the others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

import runnel
from runnel.demo.engines import tell_engines
from runnel.demo.trino import CATALOG
from tests.conftest import running_engine
from tests.engines.conftest import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def engine(dsn: str, spark: SparkSession, tmp_path: Path) -> Iterator[runnel.Engine]:
    """An engine with a lake."""
    with running_engine(dsn, spark, home=tmp_path) as started:
        yield started


def test_the_demo_asks_trino_too(
    place: Place, client: runnel.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINO_URL", place.trino.url)
    said = io.StringIO()
    assert tell_engines(client, tmp_path, Console(file=said, width=160)), said.getvalue()
    assert said.getvalue().count("all agree") == said.getvalue().count("Trino") == 2
    # What was made for the demo is gone.
    assert [CATALOG] not in [list(row) for row in place.trino.rows("SHOW CATALOGS")]
