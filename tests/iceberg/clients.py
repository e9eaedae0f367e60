"""Readers of Iceberg: PyIceberg and DuckDB's extension, as users run them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

from runnel.http.place import HttpPlace, Listen
from runnel.http.server import HttpServer
from tests.lake.s3 import S3


@contextlib.contextmanager
def serving(dsn: str, folder: Path, *, listen: Listen | None = None, **options: Any) -> Iterator[HttpServer]:
    """An HTTP server on the test's database, whose machine may read."""
    server = HttpServer(dsn, HttpPlace(folder), listen, **{"loopback_reads": True, **options})
    server.start()
    try:
        yield server
    finally:
        server.close()


def catalog(server: HttpServer, warehouse: str = "lake", *, s3: S3 | None = None, **properties: str) -> RestCatalog:
    """PyIceberg's way in."""
    store = {}
    if s3 is not None:
        store = {
            "s3.access-key-id": s3.options["access_key_id"],
            "s3.secret-access-key": s3.options["secret_access_key"],
        }
    return RestCatalog("test", uri=f"{server.url}/iceberg", warehouse=warehouse, **store, **properties)


def ducks(
    server: HttpServer,
    warehouse: str = "lake",
    *,
    s3: S3 | None = None,
    token: str | None = None,
    delegation: str = "none",
) -> duckdb.DuckDBPyConnection:
    """DuckDB with the lake attached as `ice`."""
    conn = duckdb.connect(config={"allow_unsigned_extensions": "true", "autoinstall_known_extensions": "false"})
    for name in ("httpfs", "avro", "iceberg"):
        package = import_module(f"duckdb_extension_{name}")
        (found,) = Path(package.__path__[0]).glob(f"extensions/v{duckdb.__version__}/{name}.duckdb_extension")
        conn.execute(f"LOAD '{found}'")
    conn.execute("SET enable_progress_bar = false")
    conn.execute("SET TimeZone = 'UTC'")
    conn.execute("SET python_enable_replacements = false")
    if s3 is not None:
        conn.execute(s3.duck_secret())
    way = "AUTHORIZATION_TYPE 'none'"
    if token is not None:
        conn.execute(f"CREATE SECRET runnel (TYPE iceberg, TOKEN '{token}')")
        way = "SECRET runnel"
    conn.execute(
        f"ATTACH '{warehouse}' AS ice (TYPE iceberg, ENDPOINT '{server.url}/iceberg', {way}, "
        f"ACCESS_DELEGATION_MODE '{delegation}', DEFAULT_SCHEMA 'main')"
    )
    return conn


def read(table: Any, snapshot: int | None = None) -> pa.Table:
    """A table of PyIceberg's at a snapshot."""
    return table.scan(snapshot_id=snapshot).to_arrow()
