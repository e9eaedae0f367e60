"""The demos run from start to end and agree with themselves."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from rich.console import Console

import runnel
from runnel.demo.leaderboard import leaderboard_story
from runnel.demo.run import tell
from tests.conftest import running_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def engine(dsn: str, spark: SparkSession, tmp_path: Path) -> Iterator[runnel.Engine]:
    """An engine with a lake."""
    with running_engine(dsn, spark, home=tmp_path) as started:
        yield started


@pytest.fixture
def empty_home() -> Iterator[Path]:
    """A home directory with nothing in it, in a place that PostgreSQL's own account may pass through."""
    with tempfile.TemporaryDirectory(prefix="runnel-test-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.mark.slow
def test_a_shop_from_orders_to_the_lake(empty_home: Path) -> None:
    """As `make demo` does it; nothing is left behind."""
    own = {"HOME": str(empty_home), "TMPDIR": str(empty_home), "COLUMNS": "200"}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("runnel")), "demo", "--duration", "6", "--rate", "10"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**own, **{name: os.environ[name] for name in ("PATH", "PYTHONPATH", "JAVA_HOME") if name in os.environ}},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("revenue_by_region", "revenue_by_day", "customer_lifetime_value", "inventory_health"):
        assert f"{name} equals its query" in done.stdout
        assert f"{name} in the lake equals {name} in PostgreSQL" in done.stdout
    assert re.search(r"Commit to lake  p50 [\d.]+ m?s, p95 [\d.]+ m?s", done.stdout), done.stdout
    assert "time travel" in done.stdout and "joined with the live tables" in done.stdout
    assert not list(empty_home.glob("runnel-demo-*")), "the demo left its home behind"
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(empty_home) in str(each.info["cmdline"])]


@pytest.mark.slow
def test_a_leaderboard_for_two_audiences(client: runnel.Client) -> None:
    """On a terminal: every question of both audiences is on the screen, and both see the same at the end."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200, height=60, highlight=False)
    story = leaderboard_story()
    assert tell(story, client, console, duration=4, rate=20), screen.getvalue()
    for question in story.questions:
        assert f"{question.asked_in}: {question.title}" in screen.getvalue()
    assert "leaderboard in the lake equals leaderboard in PostgreSQL (500 rows)" in screen.getvalue()
