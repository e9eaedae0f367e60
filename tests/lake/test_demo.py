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
from runnel.demo.engines import tell_engines
from runnel.demo.leaderboard import leaderboard_story
from runnel.demo.observability import tell_observability
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
    assert "Watch it in a browser: http://127.0.0.1:" in done.stdout
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


@pytest.mark.slow
def test_engines_agree_and_a_stream_table_follows_another_writer(client: runnel.Client, tmp_path: Path) -> None:
    said = io.StringIO()
    assert tell_engines(client, tmp_path, Console(file=said, width=160))
    text = said.getvalue()
    assert text.count("all agree") == 2 and "it equals its query" in text
    for reader in ("PostgreSQL", "DuckDB, DuckLake", "PyIceberg", "DuckDB, Iceberg"):
        assert text.count(reader) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
def test_a_lake_is_watched_while_duckdb_writes(
    client: runnel.Client, terminal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    said = io.StringIO()
    console = Console(file=said, force_terminal=terminal, width=200, height=80, highlight=False)
    assert tell_observability(client, console, duration=10, rate=10), said.getvalue()
    text = said.getvalue() + capsys.readouterr().out
    for name in ("snapshots_per_minute", "files_per_table", "who_wrote_what", "too_many_small_files"):
        assert f"{name} equals its query" in text
    for what in ("ingest", "privacy", "unnamed client", "stream table revenue", "those that DuckDB reports"):
        assert what in text
