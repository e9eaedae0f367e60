"""DuckDB as an analyst runs it: a client of its own, with the lake attached, and PostgreSQL beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runnel.lake.duck import connect, literal

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

EXTENSIONS = ("httpfs", "postgres_scanner", "ducklake")
LAKE = "lake"
LIVE = "live"
"""The names under which the lake and PostgreSQL's own tables are attached."""


def open_duckdb(dsn: str, *, catalog_schema: str = "ducklake") -> DuckDBPyConnection:
    """A DuckDB with the lake of a database attached as `lake`, and the database itself, to read only, as `live`."""
    conn = connect(*EXTENSIONS)
    try:
        conn.execute(
            f"ATTACH {literal('ducklake:postgres:' + dsn)} AS {LAKE} (METADATA_SCHEMA {literal(catalog_schema)})"
        )
        conn.execute(f"ATTACH {literal(dsn)} AS {LIVE} (TYPE postgres, READ_ONLY)")
    except BaseException:
        conn.close()
        raise
    return conn


def ask(conn: DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    """The rows of a query, by name of column."""
    found = conn.execute(query)
    names = [each[0] for each in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
