"""The stack under measurement: an embedded server and an engine in this process."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil
import psycopg
from rich.console import Console

from runnel.bench.workload import Connection
from runnel.server.embedded import EmbeddedServer


@dataclass(frozen=True, slots=True)
class Stack:
    """A running server with an engine at work."""

    server: EmbeddedServer
    home: Path
    console: Console

    @property
    def dsn(self) -> str:
        return self.server.dsn

    def say(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False)


@contextlib.contextmanager
def running_stack(console: Console, home: Path | None, *, keep: bool, master: str) -> Iterator[Stack]:
    """Everything up. Afterwards a temporary home is removed unless it shall be kept; a given one always stays."""
    from runnel.engine import Engine

    # A benchmark that is told to end, by whatever means, must not leave a server behind.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    place = home or Path(tempfile.mkdtemp(prefix="runnel-bench-"))
    if home is None:
        # PostgreSQL under an account of its own must get through.
        os.chmod(place, 0o755)  # noqa: S103
    server = EmbeddedServer(place, on_event=lambda text: console.print(text, style="dim", markup=False))
    try:
        began = time.monotonic()
        dsn = server.start()
        stack = Stack(server, place, console)
        engine = Engine(dsn, master=master)
        try:
            engine.start()
            stack.say(f"PostgreSQL and an engine are ready in {place} ({time.monotonic() - began:.0f} s)")
            worker = threading.Thread(target=engine.run, name="bench-engine", daemon=True)
            worker.start()
            try:
                yield stack
            finally:
                engine.stop()
                worker.join(timeout=60)
        finally:
            engine.close()
    finally:
        server.stop()
        if home is None and not keep:
            server.remove()
        else:
            console.print(f"The home {place} is kept: go on with runnel up --home {place}", style="dim", markup=False)


def machine(conn: Connection) -> list[tuple[str, str]]:
    """The facts without which figures mean nothing."""
    row = conn.execute(
        "SELECT current_setting('server_version'), current_setting('shared_buffers'), current_setting('work_mem'), "
        "current_setting('fsync'), current_setting('synchronous_commit')"
    ).fetchone()
    assert row is not None
    server, buffers, work_mem, fsync, commit = row
    return [
        ("date", f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"),
        ("processor", f"{psutil.cpu_count()} cores, {_processor()}"),
        ("memory", f"{psutil.virtual_memory().total / 2**30:.0f} GiB"),
        ("system", f"{platform.system()} {platform.release().partition('-')[0]}"),
        ("PostgreSQL", f"{server}, shared_buffers {buffers}, work_mem {work_mem}"),
        ("durability", f"fsync {fsync}, synchronous_commit {commit}"),
        ("Spark", version("pyspark")),
        ("Python", f"{platform.python_version()}, psycopg {psycopg.__version__}, pyarrow {version('pyarrow')}"),
        ("Runnel", version("runnel")),
    ]


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
