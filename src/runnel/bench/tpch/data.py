"""The eight tables, filled by DuckDB's dbgen."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import resources

from runnel.bench.generator import copy_rows, generator
from runnel.bench.workload import Connection

TABLES = ("region", "nation", "part", "supplier", "partsupp", "customer", "orders", "lineitem")
"""Small ones first."""

_ROWS = {
    # Below scale 0.01 there are so few suppliers that dbgen gives some parts the same one twice.
    "partsupp": "FROM partsupp QUALIFY row_number() OVER (PARTITION BY ps_partkey, ps_suppkey) = 1",
}


def load(conn: Connection, scale: float, say: Callable[[str], None]) -> None:
    """Generate the tables in DuckDB and stream them into PostgreSQL with COPY."""
    before, after = resources.files("runnel.bench.tpch").joinpath("tables.sql").read_text("utf-8").split("-- step 2", 1)
    conn.execute(before.encode())
    with generator("tpch") as duck:
        began = time.monotonic()
        duck.execute(f"CALL dbgen(sf = {scale})")
        say(f"TPC-H generated at scale {scale:g} ({time.monotonic() - began:.1f} s)")
        for table in TABLES:
            began = time.monotonic()
            rows = copy_rows(duck, _ROWS.get(table, f"FROM {table}"), conn, table)
            say(f"  {table}: {rows:,} rows ({time.monotonic() - began:.1f} s)")
    began = time.monotonic()
    conn.execute(f"--{after}".encode())
    say(f"  keys and indexes ({time.monotonic() - began:.1f} s)")
