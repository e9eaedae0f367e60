"""DuckDB as an analyst runs it: a client of its own, with the lake attached, and PostgreSQL beside it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from runnel.errors import RunnelError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

EXTENSIONS = ("httpfs", "postgres_scanner", "ducklake")
LAKE = "lake"
LIVE = "live"
"""The names under which the lake and PostgreSQL's own tables are attached."""


def open_duckdb(dsn: str, *, catalog_schema: str = "ducklake") -> DuckDBPyConnection:
    """A DuckDB with the lake of a database attached as `lake`, and the database itself, to read only, as `live`."""
    conn = duckdb.connect(config={"allow_unsigned_extensions": "true", "autoinstall_known_extensions": "false"})
    try:
        for name in EXTENSIONS:
            conn.execute(f"LOAD {_literal(str(extension(name)))}")
        conn.execute("SET enable_progress_bar = false")
        conn.execute("SET TimeZone = 'UTC'")
        conn.execute(
            f"ATTACH {_literal('ducklake:postgres:' + dsn)} AS {LAKE} (METADATA_SCHEMA {_literal(catalog_schema)})"
        )
        conn.execute(f"ATTACH {_literal(dsn)} AS {LIVE} (TYPE postgres, READ_ONLY)")
    except BaseException:
        conn.close()
        raise
    return conn


def ask(conn: DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    """The rows of a query, by name of column."""
    found = conn.execute(query)
    names = [each[0] for each in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def extension(name: str) -> Path:
    """Where the package of a DuckDB extension keeps it: nothing is downloaded."""
    package = import_module(f"duckdb_extension_{name}")
    version = duckdb.__version__
    found = list(Path(package.__path__[0]).glob(f"extensions/v{version}/{name}.duckdb_extension"))
    if not found:
        raise RunnelError(
            f"There is no DuckDB extension {name} for DuckDB {version}.",
            hint=f"Install matching versions: pip install duckdb=={version} duckdb-extension-{name.replace('_', '-')}"
            f"=={version}",
        )
    return found[0]


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
