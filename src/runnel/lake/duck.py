"""DuckDB in this process: for encrypted files, and as an analyst's client. Nothing is downloaded at run time."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.errors import RunnelError

if TYPE_CHECKING:
    import duckdb


def connect(*extensions: str) -> duckdb.DuckDBPyConnection:
    """A DuckDB with these extensions, which shows times in UTC."""
    import duckdb

    conn = duckdb.connect(config={"allow_unsigned_extensions": "true", "autoinstall_known_extensions": "false"})
    try:
        for name in extensions:
            conn.execute(f"LOAD {literal(str(extension(name)))}")
        conn.execute("SET enable_progress_bar = false")
        conn.execute("SET TimeZone = 'UTC'")
    except BaseException:
        conn.close()
        raise
    return conn


def extension(name: str) -> Path:
    """Where the package of a DuckDB extension keeps it."""
    from duckdb import __version__ as version

    package = import_module(f"duckdb_extension_{name}")
    found = list(Path(package.__path__[0]).glob(f"extensions/v{version}/{name}.duckdb_extension"))
    if not found:
        raise RunnelError(
            f"There is no DuckDB extension {name} for DuckDB {version}.",
            hint=f"Install matching versions: pip install duckdb=={version} duckdb-extension-{name.replace('_', '-')}"
            f"=={version}",
        )
    return found[0]


def literal(text: str) -> str:
    """A string in DuckDB's SQL.

    >>> literal("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"
