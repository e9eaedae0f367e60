"""The TPC-H queries, as DuckDB's extension prints them, next to their rewrites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runnel.server.embedded import EmbeddedServer
from tests.rewrite.test_subqueries import compare, rewritten

duckdb = pytest.importorskip("duckdb")
tpch = pytest.importorskip("duckdb_extension_tpch")

DATABASE = "rewrites_tpch"
KEYS = {
    "region": "r_regionkey",
    "nation": "n_nationkey",
    "supplier": "s_suppkey",
    "customer": "c_custkey",
    "part": "p_partkey",
    "partsupp": "ps_partkey, ps_suppkey",
    "orders": "o_orderkey",
    "lineitem": "l_orderkey, l_linenumber",
}


@pytest.fixture(scope="module")
def generator() -> Any:
    """DuckDB with a hundredth of the smallest TPC-H database."""
    duck = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    (extension,) = Path(next(iter(tpch.__path__))).rglob("tpch.duckdb_extension")
    duck.execute(f"LOAD '{extension}'")
    duck.execute("CALL dbgen(sf = 0.01)")
    return duck


@pytest.fixture(scope="module")
def conn(server: EmbeddedServer, generator: Any) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE}".encode())
    with psycopg.connect(make_conninfo(server.dsn, dbname=DATABASE), autocommit=True) as connection:
        for table, key in KEYS.items():
            columns = generator.execute(f"DESCRIBE {table}").fetchall()
            items = ", ".join(f"{c[0]} {c[1]}" for c in columns)
            connection.execute(f"CREATE TABLE {table} ({items}, PRIMARY KEY ({key}))".encode())
            with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
                for row in generator.execute(f"SELECT * FROM {table}").fetchall():
                    copy.write_row(row)
        connection.execute("ANALYZE")
        yield connection
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)".encode())


@pytest.mark.parametrize("number", range(1, 23))
def test_tpch(conn: psycopg.Connection, generator: Any, number: int) -> None:
    (query,) = generator.execute(f"SELECT query FROM tpch_queries() WHERE query_nr = {number}").fetchone()
    pair = rewritten(conn, query.strip().rstrip(";"))
    compare(conn, pair)
