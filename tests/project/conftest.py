"""The command line on a test's database."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from runnel.cli.main import app


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The command line, on the test's database."""
    monkeypatch.setenv("RUNNEL_DSN", dsn)

    def call(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code == code, done.output
        return done.output

    return call
