"""The stack under measurement: an embedded server in a temporary home and `runnel up` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

from runnel.client import Client
from runnel.server.embedded import EmbeddedServer


@dataclass
class Bench:
    """What the questions share."""

    server: EmbeddedServer
    conn: psycopg.Connection[Any]
    client: Client
    console: Console
    quick: bool
    checkout: Path | None = None
    """Another checkout of the project whose engine is measured; None: this one."""
    engine: subprocess.Popen[str] | None = None
    shops: dict[int, str] = field(default_factory=dict)
    """Schemas that hold a shop, by its number of orders."""

    @property
    def lake(self) -> Path:
        """Where the default lake keeps its files."""
        return self.server.home.path / "lake"

    @property
    def dsn(self) -> str:
        return self.server.dsn

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{text}[/dim]")

    def start_engine(self, *options: str, **environment: str) -> None:
        """Returns when it is warm. `options` of `runnel up` and `environment` are for an engine that is not yet up."""
        if self.engine is not None:
            assert not options, "another engine is up already"
            return
        command = [
            str(Path(sys.executable).with_name("runnel")),
            "up",
            "--dsn",
            self.dsn,
            "--data-path",
            str(self.lake),
            *options,
        ]
        others = {} if self.checkout is None else {"PYTHONPATH": str(self.checkout / "src")}
        self.engine = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | others | environment,
        )
        assert self.engine.stdout is not None
        said = []
        # Another checkout may be from when an engine was warm before it was ready.
        last = "Spark is warm" if self.checkout is None else "Ready"
        for line in self.engine.stdout:
            said.append(line)
            if last in line:
                break
        else:
            raise RuntimeError("the engine did not start:\n" + "".join(said))
        # Nobody reads on: a full pipe would block the engine.
        _drain(self.engine)

    def stop_engine(self) -> None:
        if self.engine is None:
            return
        self.engine.terminate()
        try:
            self.engine.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.engine.pid, signal.SIGKILL)
        self.engine = None


def _drain(process: subprocess.Popen[str]) -> None:
    import threading

    def read() -> None:
        assert process.stdout is not None
        for _ in process.stdout:
            pass

    threading.Thread(target=read, daemon=True).start()


@contextlib.contextmanager
def bench_stack(
    console: Console, *, quick: bool, checkout: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Bench]:
    """Everything up, and everything gone afterwards; `settings` of the server that it needs at its start."""
    with tempfile.TemporaryDirectory(prefix="runnel-bench-", ignore_cleanup_errors=True) as directory:
        server = EmbeddedServer(Path(directory))
        server.start()
        if settings:
            with psycopg.connect(server.dsn, autocommit=True) as conn:
                for name, value in settings.items():
                    conn.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
            server.stop("fast")
            server.start()
        try:
            with psycopg.connect(server.dsn, autocommit=True) as conn, Client(server.dsn) as client:
                bench = Bench(server, conn, client, console, quick, checkout)
                try:
                    yield bench
                finally:
                    bench.stop_engine()
        finally:
            server.stop("fast")
