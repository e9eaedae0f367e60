"""`runnel demo observability`: a lake watched by stream tables over its own catalog, while DuckDB writes, deletes and
compacts, and a stream table is published."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from runnel.cli.output import print_verified
from runnel.demo.duck import LAKE, ask, open_duckdb
from runnel.demo.screen import answer_table
from runnel.lake.watch import TABLES, Limits, watch_schema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from runnel.client import Client

RATE = 4.0
"""Steps of the traffic per second."""
LIMITS = Limits(small_files=8)

_ALERT = "SELECT FROM lake_watch.too_many_small_files WHERE table_name = 'events'"
_ORDERS = "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, region text, total numeric(10,2))"
_REVENUE = "SELECT region, count(*) AS orders, sum(total) AS revenue FROM orders GROUP BY 1"
_EVENTS = f"CREATE TABLE {LAKE}.events (id BIGINT, page VARCHAR)"
_SECONDS_PER_FRAME = 0.5
_SECONDS_PER_LINE = 5.0
_SECONDS_TO_FOLLOW = 60.0
_SHOWN = {
    "snapshots_per_minute": "SELECT to_char(minute, 'HH24:MI') AS minute, snapshots, published FROM {} ORDER BY minute",
    "files_per_table": "SELECT table_name, files, bytes, rows, small_files, small_percent FROM {} ORDER BY table_name",
    "deletes_waiting": "SELECT table_name, delete_files, deleted_rows FROM {} ORDER BY table_name",
    "refresh_to_snapshot": "SELECT stream_table, snapshots, rows, average_ms, longest_ms FROM {} ORDER BY stream_table",
    "who_wrote_what": "SELECT writer, did, table_name, snapshots FROM {} ORDER BY writer, did, table_name",
    "too_many_small_files": "SELECT table_name, small_files, files, average_bytes FROM {} ORDER BY table_name",
}

Rows = list[dict[str, Any]]


def tell_observability(client: Client, console: Console, *, duration: float, rate: float | None = None) -> bool:
    """True when the watch equals its queries and what DuckDB says of its lake, and its alert has come and gone."""
    client.watch_lake(schedule="1s", limits=LIMITS)
    console.print(f"The lake is watched by {len(TABLES)} stream tables over its catalog\n", style="dim")
    with contextlib.ExitStack() as stack:
        people = {
            name: stack.enter_context(contextlib.closing(open_duckdb(client.dsn))) for name in ("ingest", "privacy", "")
        }
        db = stack.enter_context(psycopg.connect(client.dsn, autocommit=True))
        db.execute(_ORDERS)
        people["ingest"].execute(_EVENTS)
        client.create_stream_table("revenue", _REVENUE, schedule="1s", sink="ducklake")
        traffic = _Traffic(people, db, rate or RATE)
        traffic.start()
        try:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(client, console, traffic, duration)
        finally:
            traffic.stop()
        if traffic.error is not None:
            raise traffic.error
        return _conclude(client, people["ingest"], traffic, console)


class _Traffic:
    """A thread in which several clients of the lake take turns, until told to stop."""

    def __init__(self, people: Mapping[str, DuckDBPyConnection], db: psycopg.Connection[Any], rate: float) -> None:
        self.steps = 0
        self.compacted = 0
        self.error: Exception | None = None
        self._people, self._db, self._rate = people, db, rate
        self._alarmed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-lake-traffic", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=60)

    def alert(self) -> bool:
        """Whether the watch says that there are too many small files."""
        return self._db.execute(_ALERT).fetchone() is not None

    def compact(self) -> None:
        """What people do about the alert, and about deletes: by somebody who leaves no name."""
        for call in (
            "rewrite_data_files('{}', 'events', delete_threshold => 0)",
            "merge_adjacent_files('{}', 'events')",
        ):
            self._people[""].execute(f"CALL ducklake_{call.format(LAKE)}")
        self.compacted += 1

    def _run(self) -> None:
        try:
            while not self._stopping.wait(1 / self._rate):
                self._step(self.steps)
                self.steps += 1
        except Exception as error:
            self.error = error

    def _step(self, number: int) -> None:
        first = number * 200
        self._commit(
            "ingest", f"INSERT INTO {LAKE}.events SELECT i, '/' || i % 7 FROM range({first}, {first + 200}) t(i)"
        )
        if number % 4 == 1:
            self._commit("privacy", f"DELETE FROM {LAKE}.events WHERE id % 10 = {number % 10}")
        if number % 3 == 0:
            self._db.execute(
                "INSERT INTO orders (region, total) VALUES ((ARRAY['north', 'south', 'west'])[1 + %s %% 3], 9.50)",
                (number,),
            )
        alert = self.alert()
        if alert and not self._alarmed:
            self.compact()
        self._alarmed = alert

    def _commit(self, author: str, statement: str) -> None:
        duck = self._people[author]
        duck.execute("BEGIN")
        duck.execute(statement)
        duck.execute(f"CALL {LAKE}.set_commit_message('{author}', 'demo')")
        duck.execute("COMMIT")


def _watch(client: Client, console: Console, traffic: _Traffic, duration: float) -> None:
    """Show the watch while time passes."""
    began, next_line = time.monotonic(), 0.0
    with Live(console=console, auto_refresh=False) if console.is_terminal else contextlib.nullcontext() as live:
        while (elapsed := time.monotonic() - began) < duration and traffic.error is None:
            view = _look(client)
            if live is not None:
                live.update(_picture(view, elapsed, duration), refresh=True)
            elif elapsed >= next_line:
                next_line = elapsed + _SECONDS_PER_LINE
                console.print(_line(view, elapsed), markup=False, soft_wrap=True)
            time.sleep(_SECONDS_PER_FRAME)


def _look(client: Client) -> dict[str, Rows]:
    """Every table of the watch, as a dashboard reads them."""
    schema = watch_schema("lake")
    return {name: client.query(sql.SQL(query).format(sql.Identifier(schema, name))) for name, query in _SHOWN.items()}


def _picture(view: Mapping[str, Rows], elapsed: float, duration: float) -> Group:
    head = Text.assemble(
        ("Runnel demo ", "bold"), f"{min(elapsed, duration):.0f} of {duration:.0f} s   (Ctrl-C ends it)"
    )
    panels = [_panel(name, rows) for name, rows in view.items()]
    return Group(head, "", Columns(panels))


def _panel(name: str, rows: Sequence[dict[str, Any]]) -> Panel:
    table = answer_table(list(rows))
    for row in rows[-8:]:
        table.add_row(*(str(value) for value in row.values()))
    alarming = name == "too_many_small_files" and rows
    return Panel(table, title=name, title_align="left", border_style="red" if alarming else "blue")


def _line(view: Mapping[str, Rows], elapsed: float) -> str:
    snapshots = sum(row["snapshots"] for row in view["snapshots_per_minute"])
    parts = [f"{elapsed:4.0f} s  {snapshots} snapshots"]
    parts += [
        f"{row['table_name']}: {row['files']} files, {row['small_percent']} % small" for row in view["files_per_table"]
    ]
    parts += [f"{row['table_name']}: {row['deleted_rows']} deletes wait" for row in view["deletes_waiting"]]
    parts += [f"too many small files: {row['table_name']}" for row in view["too_many_small_files"]]
    return " | ".join(parts)


def _conclude(client: Client, duck: DuckDBPyConnection, traffic: _Traffic, console: Console) -> bool:
    """Compact once more, and compare the watch with its queries and with DuckDB's own figures."""
    raised = traffic.compacted > 0 or traffic.steps < LIMITS.small_files or _until(traffic.alert)
    traffic.compact()
    calm = _until(lambda: not _look(client)["too_many_small_files"] and not _look(client)["deletes_waiting"])
    view = _look(client)
    for name, rows in view.items():
        console.print(_panel(name, rows))
    console.print(
        f"{_mark(raised)} small files raised the alert, and the table was compacted {traffic.compacted} times"
    )
    console.print(f"{_mark(calm)} no alert stands any more, and no delete waits")
    agreed = _until(lambda: _ours(client) == _theirs(duck))
    console.print(f"{_mark(agreed)} files and bytes per table are those that DuckDB reports")
    schema = watch_schema("lake")
    console.print("\nEvery stream table against its query, evaluated by PostgreSQL in the same snapshot:")
    results = {name: client.verify(f"{schema}.{name}") for name in view}
    for name, result in results.items():
        print_verified(name, result)
    return raised and calm and agreed and all(result.ok for result in results.values())


def _ours(client: Client) -> dict[str, tuple[int, int]]:
    return {row["table_name"]: (row["files"], row["bytes"]) for row in _look(client)["files_per_table"]}


def _theirs(duck: DuckDBPyConnection) -> dict[str, tuple[int, int]]:
    found = ask(duck, f"SELECT table_name, file_count, file_size_bytes FROM ducklake_table_info('{LAKE}')")
    return {row["table_name"]: (row["file_count"], row["file_size_bytes"]) for row in found if row["file_count"]}


def _until(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _SECONDS_TO_FOLLOW
    while not (settled := is_so()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return settled


def _mark(good: bool) -> str:
    return "[green]✓[/green]" if good else "[red]✗[/red]"
