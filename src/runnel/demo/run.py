"""The demo from start to end: a stack in a temporary home, live orders, and a verification."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import psycopg
from rich.console import Console

from runnel.cli.output import print_verified
from runnel.client import Client, connect
from runnel.demo.screen import Screen
from runnel.demo.traffic import CUSTOMERS, PAST_ORDERS, PRODUCTS, Traffic, fill_shop
from runnel.demo.view import look
from runnel.errors import RunnelError
from runnel.server.account import binaries
from runnel.server.embedded import EmbeddedServer

_SECONDS_PER_FRAME = 0.5


def run_demo(*, duration: float, rate: float, keep: bool, master: str) -> bool:
    """True when every stream table equals its query at the end."""
    console = Console(highlight=False)
    # A demo that is told to end, by whatever means, must not leave a server behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    home = Path(tempfile.mkdtemp(prefix="runnel-demo-"))
    server = EmbeddedServer(home, on_event=lambda text: console.print(text, style="dim", markup=False))
    try:
        with _stack(server, master, console) as dsn, connect(dsn) as client:
            _open_shop(dsn, console)
            with contextlib.suppress(KeyboardInterrupt):
                _watch(client, dsn, console, duration, rate)
            return _verify(client, console)
    finally:
        server.stop()
        if keep:
            console.print(
                f"\nThe demo's home is kept. Go on with it:\n  runnel up --home {home}\n"
                f"  runnel psql --home {home}     (in another terminal)\n  rm -r {home}        (when done)",
                markup=False,
            )
        else:
            server.remove()


@contextlib.contextmanager
def _stack(server: EmbeddedServer, master: str, console: Console) -> Iterator[str]:
    """PostgreSQL and an engine in this process, for as long as the demo takes."""
    from runnel.engine import Engine

    began = time.monotonic()
    dsn = server.start()
    console.print(f"PostgreSQL 18 started in {server.home.path} ({time.monotonic() - began:.1f} s)", style="dim")
    starting = True

    def say(text: str) -> None:
        """What the engine does while it starts; later the screen shows it better."""
        if starting:
            console.print(text, style="dim", markup=False)

    engine = Engine(dsn, master=master, on_event=say)
    try:
        engine.start()
        starting = False
        console.print(f"Ready in {time.monotonic() - began:.1f} s", style="dim")
        worker = threading.Thread(target=engine.run, name="demo-engine", daemon=True)
        worker.start()
        try:
            yield dsn
        finally:
            engine.stop()
            worker.join(timeout=60)
    finally:
        engine.close()


def _open_shop(dsn: str, console: Console) -> None:
    """The script's two steps go through psql, statement by statement, as a reader would paste them."""
    tables, stream_tables = _steps()
    _psql(dsn, tables)
    with psycopg.connect(dsn, autocommit=True) as connection:
        fill_shop(connection)
    console.print(f"A shop with {CUSTOMERS} customers, {PRODUCTS} products, {PAST_ORDERS:,} orders", style="dim")
    began = time.monotonic()
    _psql(dsn, stream_tables)
    console.print(f"Three stream tables created and filled ({time.monotonic() - began:.1f} s)\n", style="dim")


def _steps() -> tuple[str, str]:
    text = resources.files("runnel.demo").joinpath("shop.sql").read_text(encoding="utf-8")
    first, second = text.split("-- step 2", 1)
    return first, "-- step 2" + second


def _psql(dsn: str, script: str) -> None:
    done = subprocess.run(
        [str(binaries() / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", dsn, "-f", "-"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PGOPTIONS": "-c client_min_messages=warning"},
    )
    if done.returncode != 0:
        raise RunnelError("The demo's script failed in psql.", detail=done.stderr.strip())


def _watch(client: Client, dsn: str, console: Console, duration: float, rate: float) -> None:
    traffic = Traffic(dsn, rate)
    began = time.monotonic()
    traffic.start()
    try:
        with Screen(console, duration) as screen:
            while (elapsed := time.monotonic() - began) < duration and traffic.error is None:
                screen.show(look(client), traffic.tally, elapsed)
                time.sleep(_SECONDS_PER_FRAME)
    finally:
        traffic.stop()
    if traffic.error is not None:
        raise traffic.error


def _verify(client: Client, console: Console) -> bool:
    console.print("\nEvery stream table against its query, evaluated by PostgreSQL in the same snapshot:")
    results = {each.name: client.verify(each.relation) for each in client.status()}
    for name, result in results.items():
        print_verified(name, result)
    return all(result.ok for result in results.values())
