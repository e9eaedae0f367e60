"""A durable server of one's own for tests that break things."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import runnel
from runnel.server.embedded import EmbeddedServer
from tests.robustness.processes import Process, none_left


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory for a stack, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="runnel-robust-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
def durable(home: Path) -> Iterator[EmbeddedServer]:
    """PostgreSQL as users run it: fsync on, synchronous commits."""
    server = EmbeddedServer(home)
    server.start()
    try:
        yield server
    finally:
        server.stop("immediate")


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """Every process that a test appends here is gone when it ends."""
    with none_left([]) as started:
        yield started


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What executors need, packed once for the whole run."""
    from runnel.spark.package import default_name, write_package

    made = tmp_path_factory.mktemp("package") / default_name(runnel.__version__)
    write_package(made, runnel.__version__)
    return made
