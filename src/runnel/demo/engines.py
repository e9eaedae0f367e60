"""`runnel demo engines`: one lake, several engines. A stream table that all of them read, and one that moves when
another engine writes."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
from rich.console import Console
from rich.table import Table

from runnel.demo.duck import ask, open_duckdb
from runnel.demo.trino import CATALOG, Trino, open_trino
from runnel.errors import RunnelError, UserError
from runnel.http.place import HttpPlace, Listen
from runnel.http.server import HttpServer
from runnel.lake.duck import connect, literal

if TYPE_CHECKING:
    from pathlib import Path

    from runnel.client import Client

_ORDERS = """
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, region text, total numeric(10,2));
INSERT INTO orders (region, total) SELECT (ARRAY['north', 'south', 'west'])[1 + i % 3], i % 50
    FROM generate_series(1, 1000) i;
"""
_REVENUE = "SELECT region, count(*) AS orders, sum(total) AS revenue FROM orders GROUP BY 1"
_CLICKS = "SELECT page, count(*) AS clicks FROM lake.clicks GROUP BY 1"
_SECONDS = 60.0

Rows = list[tuple[Any, ...]]


def tell_engines(client: Client, home: Path, console: Console) -> bool:
    """True when all engines agree, and the stream table over the lake has moved."""
    try:
        from pyiceberg.catalog.rest import RestCatalog
    except ImportError:
        raise UserError("This demo needs PyIceberg.", hint="pip install 'pyiceberg[pyarrow]'") from None
    place = HttpPlace.of_home(home)
    server = HttpServer(client.dsn, place, Listen(), loopback_reads=True)
    server.start()
    try:
        console.print(f"The lake is served as Iceberg: {server.url}/iceberg\n")
        url = os.environ.get("TRINO_URL")
        if not url:
            console.print("Trino is not asked: TRINO_URL names none.\n", style="dim")
        older = {"uri": f"{server.url}/iceberg", "warehouse": "lake@v2", "token": place.token()}
        with psycopg.connect(client.dsn, autocommit=True) as db, open_trino(url, server.url) as trino:
            db.execute(_ORDERS)
            client.create_stream_table("revenue", _REVENUE, schedule="1s", sink="ducklake")
            catalog = RestCatalog("lake", **older)
            agreed = _read_by_all(client, server, catalog, trino, console)
            db.execute("INSERT INTO orders (region, total) VALUES ('east', 12.50), ('north', 7)")
            client.refresh("revenue")
            console.print("Two more orders in PostgreSQL, one refresh:\n")
            agreed = _read_by_all(client, server, catalog, trino, console) and agreed
            return _written_by_another(client, db, catalog, console) and agreed
    finally:
        server.close()


def _read_by_all(client: Client, server: HttpServer, catalog: Any, trino: Trino | None, console: Console) -> bool:
    """The same stream table, by everybody."""
    readers = _readers(client, server, catalog)
    if trino is not None:
        readers["Trino"] = lambda: trino.rows(f"SELECT region, orders, revenue FROM {CATALOG}.main.revenue")
    found = {name: _timed(read) for name, read in readers.items()}
    shown = Table("read by", "north", "south", "west", "east", "seconds")
    for name, (rows, seconds) in found.items():
        totals = {row[0]: f"{row[1]} for {Decimal(row[2]):.2f}" for row in rows}
        shown.add_row(
            name, *(totals.get(region, "") for region in ("north", "south", "west", "east")), f"{seconds:.2f}"
        )
    console.print(shown)
    bags = [Counter((row[0], int(row[1]), Decimal(row[2])) for row in rows) for rows, _ in found.values()]
    agreed = all(bag == bags[0] for bag in bags)
    console.print("[green]✓[/green] all agree\n" if agreed else "[red]✗[/red] they differ\n")
    return agreed


def _readers(client: Client, server: HttpServer, catalog: Any) -> dict[str, Callable[[], Rows]]:
    text = "SELECT region, orders, revenue FROM {}revenue"

    def ducklake() -> Rows:
        with open_duckdb(client.dsn) as duck:
            return [tuple(row.values()) for row in ask(duck, text.format("lake."))]

    def duckdb_iceberg() -> Rows:
        with connect("httpfs", "avro", "iceberg") as duck:
            duck.execute(
                f"ATTACH 'lake' AS ice (TYPE iceberg, ENDPOINT {literal(server.url + '/iceberg')},"
                " AUTHORIZATION_TYPE 'none', ACCESS_DELEGATION_MODE 'none', DEFAULT_SCHEMA 'main')"
            )
            return duck.execute(text.format("ice.main.")).fetchall()

    def pyiceberg() -> Rows:
        rows = catalog.load_table("main.revenue").scan().to_arrow().to_pylist()
        return [(row["region"], row["orders"], row["revenue"]) for row in rows]

    found: dict[str, Callable[[], Rows]] = {
        "PostgreSQL": lambda: [tuple(row.values()) for row in client.query(text.format(""))],
        "DuckDB, DuckLake": ducklake,
        "PyIceberg": pyiceberg,
    }
    try:
        with connect("avro", "iceberg"):
            found["DuckDB, Iceberg"] = duckdb_iceberg
    except (ImportError, RunnelError):
        pass  # the extension is not among the packages
    return found


def _written_by_another(client: Client, db: psycopg.Connection[Any], catalog: Any, console: Console) -> bool:
    """PyIceberg creates and fills a table of the lake, and a stream table in PostgreSQL follows."""
    import pyarrow as pa

    def clicks(first: int, last: int) -> pa.Table:
        numbers = range(first, last)
        pages = pa.array([f"/{number % 3}" for number in numbers], pa.string())
        return pa.table({"id": pa.array(numbers, pa.int64()), "page": pages})

    table = catalog.create_table("main.clicks", clicks(0, 0).schema)
    table.append(clicks(0, 100))
    _until(lambda: db.execute("SELECT to_regclass('lake.clicks')").fetchone() != (None,), "the lake's new table")
    client.create_stream_table("clicks_by_page", _CLICKS, schedule="1s")
    before = sum(row["clicks"] for row in client.query("SELECT clicks FROM clicks_by_page"))
    began = time.monotonic()
    table.append(clicks(100, 1100))
    appended = time.monotonic()
    _until(lambda: _total(client) == before + 1000, "the stream table")
    console.print(
        f"PyIceberg created lake table clicks and appended 1,000 rows ({appended - began:.2f} s);"
        f" the stream table over it had them {time.monotonic() - appended:.2f} s later."
    )
    result = client.verify("clicks_by_page")
    console.print("[green]✓[/green] it equals its query" if result.ok else "[red]✗[/red] it differs from its query")
    return result.ok


def _total(client: Client) -> int:
    return sum(int(row["clicks"]) for row in client.query("SELECT clicks FROM clicks_by_page"))


def _timed(read: Callable[[], Rows]) -> tuple[Rows, float]:
    began = time.monotonic()
    return read(), time.monotonic() - began


def _until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise RunnelError(f"{what} did not come within {_SECONDS:g} seconds")
        time.sleep(0.1)
