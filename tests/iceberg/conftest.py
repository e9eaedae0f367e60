"""Lakes for tests of what is served as Iceberg."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from runnel.http.server import HttpServer
from tests.iceberg.clients import serving
from tests.lake.conftest import bucket, data_path, duck, s3

__all__ = ["bucket", "data_path", "duck", "s3"]

ATTACH = "INSERT INTO pgtrickle.pgt_lakes (name, catalog_schema, data_path, is_default) VALUES (%s, %s, %s, true)"


@pytest.fixture
def lake(db: psycopg.Connection, data_path: str) -> str:
    """The data path of a lake that is attached as `lake`; DuckDB makes it."""
    db.execute(ATTACH, ("lake", "ducklake", data_path))
    return data_path


@pytest.fixture
def http(dsn: str, tmp_path: Path) -> Iterator[HttpServer]:
    """The HTTP server of the test's database; this machine may read."""
    with serving(dsn, tmp_path / "http") as server:
        yield server
