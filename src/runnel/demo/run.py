"""A demo from start to end: a stack in a temporary home, a lake, live traffic, DuckDB, and a verification."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from rich.console import Console

from runnel.cli.output import print_verified
from runnel.client import Client, connect
from runnel.demo.analyst import Analyst
from runnel.demo.duck import LAKE, ask, open_duckdb
from runnel.demo.engines import tell_engines
from runnel.demo.leaderboard import leaderboard_story
from runnel.demo.observability import tell_observability
from runnel.demo.screen import Screen, latency_line, print_answer
from runnel.demo.shop import shop_story
from runnel.demo.story import Story
from runnel.demo.traffic import Traffic
from runnel.demo.view import look
from runnel.errors import RunnelError
from runnel.server.account import binaries
from runnel.server.embedded import EmbeddedServer

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

STORIES = {"shop": shop_story, "leaderboard": leaderboard_story}

_SECONDS_PER_FRAME = 0.5
_SECONDS_TO_ARRIVE = 20.0
_ATTEMPTS_TO_AGREE = 5


def run_demo(name: str, *, duration: float, rate: float | None, keep: bool, master: str) -> bool:
    """True when at the end every stream table equals its query, and the lake equals PostgreSQL."""
    console = Console(highlight=False)
    # A demo that is told to end, by whatever means, must not leave a server behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    home = Path(tempfile.mkdtemp(prefix="runnel-demo-"))
    server = EmbeddedServer(home, on_event=lambda text: console.print(text, style="dim", markup=False))
    try:
        with _stack(server, master, console) as dsn, connect(dsn) as client:
            if name == "engines":
                return tell_engines(client, server.home.path, console)
            if name == "observability":
                return tell_observability(client, console, duration=duration, rate=rate)
            story = STORIES[name]()
            return tell(story, client, console, duration=duration, rate=rate or story.rate)
    finally:
        server.stop()
        if keep:
            console.print(
                f"\nThe demo's home is kept. Go on with it:\n  runnel up --home {home}\n"
                f"  runnel psql --home {home}         (in another terminal)\n"
                f"  runnel lake info --home {home}    (how DuckDB attaches the lake)\n"
                f"  rm -r {home}                      (when done)",
                markup=False,
            )
        else:
            server.remove()


def tell(story: Story, client: Client, console: Console, *, duration: float, rate: float) -> bool:
    """The story in a database with an engine and a lake; true when everything agrees at the end."""
    _open(story, client.dsn, console)
    with contextlib.closing(open_duckdb(client.dsn)) as duck:
        _archive(story, duck, console)
        with contextlib.suppress(KeyboardInterrupt):
            _watch(story, client, duck, console, duration, rate)
        return _verify(client, duck, console)


@contextlib.contextmanager
def _stack(server: EmbeddedServer, master: str, console: Console) -> Iterator[str]:
    """PostgreSQL and an engine in this process, for as long as the demo takes."""
    from runnel.engine import Engine
    from runnel.http.place import HttpPlace
    from runnel.http.server import HttpServer

    began = time.monotonic()
    dsn = server.start()
    console.print(f"PostgreSQL 18 started in {server.home.path} ({time.monotonic() - began:.1f} s)", style="dim")
    starting = True

    def say(text: str) -> None:
        """What the engine does while it starts; later the screen shows it better."""
        if starting:
            console.print(text, style="dim", markup=False)

    engine = Engine(dsn, master=master, on_event=say, home=server.home.path)
    try:
        engine.start()
        starting = False
        console.print(f"Ready in {time.monotonic() - began:.1f} s", style="dim")
        worker = threading.Thread(target=engine.run, name="demo-engine", daemon=True)
        worker.start()
        page = HttpServer(dsn, HttpPlace.of_home(server.home.path), loopback_reads=True, looks=engine.looks)
        try:
            page.start()
            console.print(f"Watch it in a browser: [bold]{page.url}[/bold]\n", soft_wrap=True)
            yield dsn
        finally:
            page.close()
            engine.stop()
            worker.join(timeout=60)
    finally:
        engine.close()


def _open(story: Story, dsn: str, console: Console) -> None:
    """The story's scripts go through psql, statement by statement, as a reader would paste them."""
    _psql(dsn, story.tables)
    with psycopg.connect(dsn, autocommit=True) as connection:
        console.print(story.fill(connection), style="dim")
    began = time.monotonic()
    _psql(dsn, story.stream_tables)
    took = time.monotonic() - began
    console.print(f"Stream tables created, filled and published to the lake ({took:.1f} s)", style="dim")


def _archive(story: Story, duck: DuckDBPyConnection, console: Console) -> None:
    began = time.monotonic()
    for statement in story.archive:
        duck.execute(statement)
    if story.archive:
        console.print(
            f"DuckDB archived last year's {story.unit} in the lake ({time.monotonic() - began:.1f} s)\n", style="dim"
        )


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


def _watch(
    story: Story, client: Client, duck: DuckDBPyConnection, console: Console, duration: float, rate: float
) -> None:
    traffic = Traffic(story, client.dsn, rate)
    analyst = Analyst(story, duck, traffic.tally)
    began = time.monotonic()
    traffic.start()
    analyst.start()
    try:
        with Screen(console, story, duration) as screen:
            while (elapsed := time.monotonic() - began) < duration and not (traffic.error or analyst.error):
                screen.show(look(story, client, analyst), traffic.tally, elapsed)
                time.sleep(_SECONDS_PER_FRAME)
    finally:
        traffic.stop()
        analyst.await_last(_SECONDS_TO_ARRIVE)
        analyst.stop()
    if (failed := traffic.error or analyst.error) is not None:
        raise failed
    view = look(story, client, analyst)
    for question in story.questions:
        print_answer(console, question, view.answers[question.title])
    console.print()
    console.print(latency_line(story, view), soft_wrap=True)


def _verify(client: Client, duck: DuckDBPyConnection, console: Console) -> bool:
    console.print("\nEvery stream table against its query, evaluated by PostgreSQL in the same snapshot:")
    results = {each.name: client.verify(each.relation) for each in client.status()}
    for name, result in results.items():
        print_verified(name, result)
    console.print("\nAnd what DuckDB reads in the lake against what PostgreSQL holds:")
    differing = [name for name in results if not _agree(client, duck, name, console)]
    return all(result.ok for result in results.values()) and not differing


def _agree(client: Client, duck: DuckDBPyConnection, name: str, console: Console) -> bool:
    """Row by row. A table that is refreshed between the two looks is looked at again."""
    for _ in range(_ATTEMPTS_TO_AGREE):
        held = _bag(client.query(sql.SQL("SELECT * FROM {}").format(sql.Identifier(name))))
        shown = _bag(ask(duck, f'SELECT * FROM {LAKE}."{name}"'))
        if held == shown:
            text = f"[green]✓[/green] {name} in the lake equals {name} in PostgreSQL ({held.total():,} rows)"
            console.print(text, soft_wrap=True)
            return True
        time.sleep(0.5)
    missing, unexpected = (held - shown).total(), (shown - held).total()
    console.print(f"[red]✗[/red] {name} differs in the lake: {missing} rows missing, {unexpected} unexpected")
    return False


def _bag(rows: list[dict[str, object]]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in rows)
