"""A server that asks everybody for a password, and the command as a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runnel.server.account import BINARIES
from runnel.server.embedded import EmbeddedServer
from tests.guarded import PASSWORD

COMMAND = (str(Path(sys.executable).with_name("runnel")),)


@dataclass(frozen=True)
class Locked:
    """A server with passwords: where it is, and its home."""

    dsn: str
    server: EmbeddedServer

    @property
    def port(self) -> int:
        return self.server.port

    def full(self, **words: str) -> str:
        return make_conninfo(self.dsn, password=PASSWORD, **words)


@pytest.fixture(scope="session")
def locked() -> Iterator[Locked]:
    """PostgreSQL whose pg_hba.conf says scram-sha-256 everywhere, as an administrator's does."""
    with tempfile.TemporaryDirectory(prefix="runnel-locked-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)
        server = EmbeddedServer(Path(directory) / "home")
        server.start()
        try:
            with psycopg.connect(server.dsn, autocommit=True) as conn:
                conn.execute(f"ALTER ROLE postgres PASSWORD '{PASSWORD}'".encode())
                hba = server.home.data / "pg_hba.conf"
                hba.write_text("local all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n")
                conn.execute("SELECT pg_reload_conf()")
            yield Locked(f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres", server)
        finally:
            server.stop("immediate")


@pytest.fixture
def database(locked: Locked) -> Iterator[str]:
    """A fresh database on it; the DSN without the password."""
    name = f"d{time.monotonic_ns()}"
    with psycopg.connect(locked.full(), autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}".encode())
    yield make_conninfo(locked.dsn, dbname=name)
    with psycopg.connect(locked.full(), autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A command as a process, in an empty directory and with a home and an environment of its own."""

    def start(*args: str, code: int = 0, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *args], input=stdin, capture_output=True, text=True, timeout=120, check=False,
            cwd=tmp_path, env=clean_environment(tmp_path, **environment),
        )  # fmt: skip
        assert done.returncode == code, f"{args}: {done.stdout}{done.stderr}"
        return done

    return start


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """What a new user has: nothing of PostgreSQL's or Runnel's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "RUNNEL_")) or key == BINARIES}
    here = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (f"{here}/src", kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "HOME": str(home), "COLUMNS": "200", "NO_COLOR": "1", **more}


class Stack:
    """A `runnel up` in the background, and what it has said so far."""

    def __init__(self, directory: Path, args: list[str], environment: dict[str, str]) -> None:
        self.out, self.err = directory / "up.out", directory / "up.err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = psutil.Popen(
                [*COMMAND, "up", *args], stdout=out, stderr=err, cwd=directory, env=environment,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.out.read_text() + self.err.read_text()

    def wait_for(self, text: str, seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, f"no {text!r} in {self.said}"
            time.sleep(0.05)

    def command_lines(self) -> str:
        """What `ps` shows of the engine and of everything that it started."""
        lines = []
        for each in [self.process, *self.process.children(recursive=True)]:
            # Some end while they are looked at.
            with contextlib.suppress(psutil.NoSuchProcess):
                lines.append(" ".join(each.cmdline()))
        return "\n".join(lines)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Start a stack; it is stopped at the end."""
    started: list[Stack] = []

    def start(*args: str, **environment: str) -> Stack:
        small = {"RUNNEL_DRIVER_MEMORY": "512m", "RUNNEL_MASTER": "local[1]"}
        started.append(Stack(tmp_path, list(args), clean_environment(tmp_path, **small, **environment)))
        return started[-1]

    yield start
    for each in started:
        each.stop()
