"""runnel.toml, the environment and flags; the log; version, completion and the watch."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import runnel
from runnel import __version__
from runnel.cli import logs, settings
from runnel.errors import UserError
from runnel.server.embedded import EmbeddedServer
from tests.cli.conftest import COMMAND, Run, Stack, clean_environment


def said(run: Run, *args: str, **environment: str) -> dict[str, tuple[str | None, str]]:
    found = json.loads(run("config", "--json", *args, **environment).stdout)
    return {key: (each["value"], each["from"]) for key, each in found.items()}


def test_flags_win_over_the_environment_over_the_file(run: Run, tmp_path: Path) -> None:
    assert said(run)["master"] == ("local[*]", "default")
    file = tmp_path / "runnel.toml"
    file.write_text('home = "here"\nmaster = "local[2]"\nlog_level = "debug"\ndata_path = "s3://bucket/x"\n')
    found = said(run)
    assert found["home"] == (str(tmp_path / "here"), f"file {file}"), "paths are relative to the file"
    assert found["data_path"] == ("s3://bucket/x", f"file {file}")
    assert found["master"] == ("local[2]", f"file {file}")
    found = said(run, RUNNEL_MASTER="local[3]", RUNNEL_HOME="/srv/x")
    assert found["master"] == ("local[3]", "environment RUNNEL_MASTER")
    assert found["home"] == ("/srv/x", "environment RUNNEL_HOME")
    assert found["log_level"] == ("debug", f"file {file}")
    found = said(run, "--home", "/srv/y", RUNNEL_HOME="/srv/x")
    assert found["home"] == ("/srv/y", "flag --home")
    found = said(run, "--dsn", "dbname=shop", RUNNEL_HOME="/srv/x")
    assert found["dsn"] == ("dbname=shop", "flag --dsn")
    assert found["home"] == (None, "not used: dsn counts")
    assert "local[2]" in run("config").stdout


def test_the_file_is_found_in_the_home_and_by_its_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".runnel").mkdir()
    (tmp_path / ".runnel" / "runnel.toml").write_text('master = "local[4]"\n')
    assert said(run)["master"][0] == "local[4]"
    other = tmp_path / "other.toml"
    other.write_text('master = "local[5]"\n')
    assert said(run, "--config", str(other))["master"][0] == "local[5]"
    assert said(run, RUNNEL_CONFIG=str(other))["master"][0] == "local[5]"
    assert "no configuration file" in run("--config", "none.toml", "config", code=1).stderr


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('mastr = "local[2]"', "there is no setting mastr", "Did you mean master?"),
        ('data-path = "x"', "there is no setting data-path", "Did you mean data_path?"),
        ("master = 2", "master must be a text", 'master = "..."'),
        ("master = ", "cannot be read", "TOML"),
        ('home = "x"\ndsn = "dbname=y"', "exclude each other", "home directory"),
        ('log_level = "loud"', "'loud' is no log_level", "warning"),
    ],
)
def test_a_file_with_a_mistake_is_refused(run: Run, tmp_path: Path, text: str, message: str, hint: str) -> None:
    (tmp_path / "runnel.toml").write_text(text)
    shown = run("status", code=1).stderr
    assert message in shown
    assert hint in shown


def test_a_file_of_somebody_else_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "runnel.toml"
    file.write_text('dsn = "host=evil.example.com"')
    monkeypatch.chdir(tmp_path)
    assert settings.config_file(None) == file
    if os.geteuid() == 0:
        os.chown(file, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UserError, match="belongs to another user"):
        settings.effective()
    monkeypatch.setenv(settings.CONFIG_VARIABLE, str(file))
    assert settings.effective()["dsn"].text == "host=evil.example.com"


@pytest.mark.slow
def test_up_takes_its_settings_from_the_file_and_logs_with_time(
    up: Callable[..., Stack], server: EmbeddedServer, tmp_path: Path
) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("CREATE DATABASE configured")
    config = f'dsn = "postgresql://postgres:pa55word@127.0.0.1:{server.port}/configured"\nlog_format = "json"\n'
    (tmp_path / "runnel.toml").write_text(config + 'log_file = "logs/engine.log"\n')
    stack = up()
    stack.wait_for("Ready in")
    stack.wait_for("Spark started")
    assert f"postgresql://postgres:***@127.0.0.1:{server.port}/configured" in stack.said
    stack.stop()
    assert "pa55word" not in stack.said
    lines = [json.loads(line) for line in (tmp_path / "logs" / "engine.log").read_text().splitlines()]
    assert any("Spark started" in line["message"] and line["logger"] == "up" for line in lines)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", line["time"]) for line in lines)
    assert (tmp_path / "logs" / "engine.log").stat().st_mode & 0o077 == 0
    # Why it did not start is in the file as well.
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("DROP DATABASE configured WITH (FORCE)")
    failed = up()
    assert failed.process.wait(60) == 1
    last = json.loads((tmp_path / "logs" / "engine.log").read_text().splitlines()[-1])
    assert last["level"] == "error"
    assert "There is no database configured" in last["message"]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    yield logging.getLogger("runnel.engine.core")
    for handler in list(logging.getLogger().handlers):
        if getattr(handler, "of_runnel", False):
            logging.getLogger().removeHandler(handler)
            handler.close()
    logging.captureWarnings(False)


def test_lines_of_the_log_hold_no_secret(logger: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "log"
    logs.configure("info", "text", str(file), ["hunter2"])
    logger.info("connected to %s", "postgresql://ann:other@db/shop")
    logger.debug("not at this level")
    try:
        raise ValueError("host=db password=hidden and hunter2 too")
    except ValueError:
        logger.exception("stumbled")
    text = file.read_text()
    for secret in ("hunter2", "other@", "hidden"):
        assert secret not in text
    first = text.splitlines()[0]
    shape = (
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+ INFO    engine\.core: connected to postgresql://ann:\*\*\*@db/shop"
    )
    assert re.fullmatch(shape, first)
    assert "Traceback" in text
    assert "not at this level" not in text
    logs.configure("warning", "text", str(file), [])
    logger.info("too quiet")
    logger.warning("heard once")
    assert file.read_text().count("heard once") == 1
    assert "too quiet" not in file.read_text()
    with pytest.raises(UserError, match="cannot be written"):
        logs.configure("info", "text", "/proc/nowhere/log", [])


def test_the_log_file_is_rotated(logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LARGEST", 1000)
    logs.configure("info", "text", str(tmp_path / "log"), [])
    for number in range(100):
        logger.info("line %s", number)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log", *(f"log.{n}" for n in range(1, logs.KEPT + 1))]


def test_version_and_completion(run: Run, tmp_path: Path) -> None:
    assert run("--version").stdout.strip() == f"runnel {__version__}"
    # By itself it would look which shell has started it, and a service manager is none.
    told = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "_runnel_completion" in run("--show-completion", "bash", **told).stdout
    words = run(_RUNNEL_COMPLETE="complete_bash", COMP_WORDS="runnel st", COMP_CWORD="1").stdout.split()
    assert words == ["status"]
    options = run(_RUNNEL_COMPLETE="complete_bash", COMP_WORDS="runnel up --log", COMP_CWORD="2").stdout.split()
    assert set(options) == {"--log-level", "--log-format", "--log-file"}
    run("--install-completion", "bash", **told)
    assert "runnel" in (tmp_path / ".bashrc").read_text()


def test_the_watch_follows(dsn: str, client: runnel.Client, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    command = [*COMMAND, "status", "--watch", "--every", "0.1"]
    environment = clean_environment(tmp_path, RUNNEL_DSN=dsn, TERM="xterm")
    watching = subprocess.Popen(command, stdout=follower, stderr=follower, cwd=tmp_path, env=environment)
    os.close(follower)
    os.set_blocking(leader, False)
    try:
        shown = _until(leader, "No stream tables yet")
        assert "every 0.1 s" in shown
        client.create_stream_table("seen", "SELECT 1 AS one")
        assert "seen" in _until(leader, "ACTIVE")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(leader)


def _until(terminal: int, text: str) -> str:
    shown, deadline = "", time.monotonic() + 30
    while text not in shown or "Ctrl-C" not in shown.rpartition(text)[2]:
        assert time.monotonic() < deadline, shown
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")
        except BlockingIOError:
            time.sleep(0.02)
    return shown
