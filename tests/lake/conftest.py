"""Lakes for tests: DuckDB clients, an object store, and a way to break it."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake.duck import Duck
from tests.lake.flaky import Flaky, proxy
from tests.lake.s3 import S3, serve
from tests.robustness.conftest import durable, home, processes

__all__ = ["durable", "home", "processes"]


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """The run's object store."""
    with serve(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture
def bucket(s3: S3) -> str:
    """The URL of a bucket for this test alone."""
    return s3.bucket()


@pytest.fixture
def flaky(s3: S3) -> Iterator[Flaky]:
    """The object store behind a proxy that can fail: use `flaky.s3` in place of `s3`."""
    with proxy(s3) as started:
        yield started


@pytest.fixture
def data_path(tmp_path: Path) -> str:
    """A folder for a lake's files."""
    folder = tmp_path / "lake"
    folder.mkdir()
    return f"{folder}/"


@pytest.fixture
def sealing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that starts after this can keep credentials in the database. Ask for it with `usefixtures`."""
    monkeypatch.setenv("RUNNEL_ENCRYPTION_KEY", base64.b64encode(bytes(32)).decode())


@pytest.fixture
def duck(dsn: str) -> Iterator[Callable[..., Duck]]:
    """Start DuckDB clients of a lake in the test's database: `duck(data_path, schema=..., s3=..., encrypted=...)`.

    The lake is made if there is none; without a data path it must be there.
    """
    with contextlib.ExitStack() as clients:

        def start(data_path: str | Path | None = None, **options: Any) -> Duck:
            return clients.enter_context(Duck(dsn, data_path, **options))

        yield start
