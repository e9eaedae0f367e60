"""Data and query texts from DuckDB's tpch extension. It is a wheel like any other: a run downloads nothing."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.bench.workload import Connection
from runnel.errors import UserError

if TYPE_CHECKING:
    import duckdb

TABLES = ("region", "nation", "part", "supplier", "partsupp", "customer", "orders", "lineitem")
"""Small ones first."""

_BATCH = 50_000

_ROWS = {
    # Below scale 0.01 there are so few suppliers that dbgen gives some parts the same one twice.
    "partsupp": "FROM partsupp QUALIFY row_number() OVER (PARTITION BY ps_partkey, ps_suppkey) = 1",
}


def generator() -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB with dbgen and the query texts."""
    try:
        import duckdb
        import duckdb_extension_tpch
    except ImportError as error:
        raise UserError(
            f"TPC-H data comes from DuckDB, and {error.name} is not installed.",
            hint="Install it with: pip install 'runnel[bench]'",
        ) from error
    found = sorted(Path(duckdb_extension_tpch.__file__).parent.rglob("tpch.duckdb_extension"))
    duck = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    try:
        # By its path: LOAD by name would look into DuckDB's own cache, or ask the network.
        duck.execute(f"LOAD '{found[0]}'")
    except (duckdb.Error, IndexError) as error:
        raise UserError(
            "DuckDB cannot load its tpch extension.",
            hint="duckdb and duckdb-extension-tpch must have the same version.",
            detail=str(error),
        ) from error
    return duck


def load(conn: Connection, scale: float, say: Callable[[str], None]) -> None:
    """Generate the tables in DuckDB and stream them into PostgreSQL with COPY."""
    before, after = resources.files("runnel.bench.tpch").joinpath("tables.sql").read_text("utf-8").split("-- step 2", 1)
    conn.execute(before.encode())
    with generator() as duck:
        began = time.monotonic()
        duck.execute(f"CALL dbgen(sf = {scale})")
        say(f"TPC-H generated at scale {scale:g} ({time.monotonic() - began:.1f} s)")
        for table in TABLES:
            began = time.monotonic()
            rows = _copy(duck, conn, table)
            say(f"  {table}: {rows:,} rows ({time.monotonic() - began:.1f} s)")
    began = time.monotonic()
    conn.execute(f"--{after}".encode())
    say(f"  keys and indexes ({time.monotonic() - began:.1f} s)")


def _copy(duck: duckdb.DuckDBPyConnection, conn: Connection, table: str) -> int:
    """Arrow batches out of DuckDB, CSV into PostgreSQL; returns the number of rows."""
    from pyarrow import csv

    reader = duck.sql(_ROWS.get(table, f"FROM {table}")).to_arrow_reader(_BATCH)
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    rows = 0
    with conn.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv)".encode()) as copy:
        for batch in reader:
            text = io.BytesIO()
            csv.write_csv(batch, text, options)
            copy.write(text.getvalue())
            rows += batch.num_rows
    return rows
