"""A stack in the background: `up --detach`, `logs`, `service print`."""

from __future__ import annotations

import configparser
import itertools
import os
import stat
from pathlib import Path

import pytest

from runnel.cli.commands.service import _following
from tests.cli.conftest import Run


@pytest.mark.slow
def test_a_stack_starts_in_the_background(run: Run, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "home"))
    began = run("up", *home, "--master", "local[1]", "--no-http", "--detach")
    assert began.stdout.startswith("Ready in ")
    try:
        assert "No stream tables yet" in run("status", *home).stdout
        log = tmp_path / "home" / "engine.log"
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        assert "PostgreSQL started" in run("logs", *home).stdout
        assert run("logs", *home, "-n", "1").stdout == log.read_text().splitlines(keepends=True)[-1]
        again = run("up", *home, "--detach", code=1)
        assert "already up" in again.stderr
    finally:
        run("down", *home)
    assert "No stack is running" in run("down", *home).stdout


def test_a_server_of_ones_own_needs_a_place_for_the_log(run: Run) -> None:
    told = run("up", "--dsn", "postgresql://127.0.0.1:1/none", "--detach", code=1).stderr
    assert "--log-file" in told
    assert "--log-file" in run("logs", "--dsn", "postgresql://127.0.0.1:1/none", code=1).stderr


def test_what_ends_before_it_is_ready_says_why(run: Run, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    told = run("up", "--dsn", "postgresql://127.0.0.1:1/none", "--detach", "--log-file", log, code=1).stderr
    assert "ended before it was ready" in told
    assert "127.0.0.1" in told


def test_following_a_log_that_is_set_aside(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("one\n")
    news = _following(log, 0)
    assert next(news) == "one\n"
    with log.open("a") as more:
        more.write("two\n")
    assert next(news) == "two\n"
    with log.open("a") as more:
        more.write("the last of the old\n")
    log.rename(tmp_path / "engine.log.1")
    log.write_text("the new one, already longer than what was read of the old\n")
    assert "".join(itertools.islice(news, 2)) == (
        "the last of the old\nthe new one, already longer than what was read of the old\n"
    )


def test_a_unit_for_systemd(run: Run, tmp_path: Path) -> None:
    secret = tmp_path / "dsn.txt"
    secret.write_text("postgresql://ann:word@db/shop")
    printed = run("service", "print", "--user", "ann", "--dsn-file", str(secret), "--workers", "4").stdout
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(printed)
    program, *words = unit["Service"]["ExecStart"].split()
    assert os.access(program, os.X_OK)
    assert words == ["up", "--dsn-file", str(secret), "--workers", "4"]
    assert unit["Service"]["User"] == "ann"
    assert "word" not in printed
    refused = run("service", "print", "--dsn", "postgresql://ann:word@db/shop", code=1)
    assert "must not hold a password" in refused.stderr
