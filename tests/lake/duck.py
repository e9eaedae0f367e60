"""DuckDB as users run it: the reference client that reads what we write and writes what we read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import duckdb

from tests.lake.s3 import S3

EXTENSIONS = ("httpfs", "postgres_scanner", "ducklake")
Row = tuple[Any, ...]


class Duck:
    """One DuckDB process image with one lake attached as `lake`. Not for use by two threads at once."""

    def __init__(
        self,
        dsn: str,
        data_path: str | Path | None = None,
        *,
        schema: str = "ducklake",
        encrypted: bool = False,
        read_only: bool = False,
        s3: S3 | None = None,
        alias: str = "lake",
    ) -> None:
        self.conn = connect(s3)
        self.alias = alias
        try:
            attach(self.conn, dsn, data_path, schema=schema, encrypted=encrypted, read_only=read_only, alias=alias)
            self.conn.execute(f"USE {alias}")
        except BaseException:
            self.conn.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.conn.close()

    def run(self, text: str, parameters: Sequence[Any] = ()) -> Self:
        """Execute one statement."""
        self.conn.execute(text, list(parameters))
        return self

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self.conn.execute(text, list(parameters)).fetchall()

    def bag(self, text: str, parameters: Sequence[Any] = ()) -> Counter[Row]:
        """The rows of a query as a multiset."""
        return Counter(self.rows(text, parameters))

    def value(self, text: str, parameters: Sequence[Any] = ()) -> Any:
        (found,) = self.rows(text, parameters)
        return found[0]

    def head(self) -> int:
        """The newest snapshot."""
        return int(self.value(f"SELECT max(snapshot_id) FROM ducklake_snapshots('{self.alias}')"))

    def snapshots(self) -> list[int]:
        """All snapshots that can be travelled to, oldest first."""
        return [n for (n,) in self.rows(f"SELECT snapshot_id FROM ducklake_snapshots('{self.alias}') ORDER BY 1")]

    def at(self, table: str, snapshot: int, columns: str = "*") -> list[Row]:
        """A table or view as it was."""
        return self.rows(f"SELECT {columns} FROM {table} AT (VERSION => {snapshot})")

    def changes(self, table: str, first: int, last: int, columns: str = "*") -> list[Row]:
        """DuckDB's own change feed; both ends are included."""
        return self.rows(f"SELECT {columns} FROM {self.alias}.table_changes('{table}', {first}, {last})")


def connect(s3: S3 | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB with the extensions of a lake, from the packages; it never downloads anything."""
    conn = duckdb.connect(config={"allow_unsigned_extensions": "true", "autoinstall_known_extensions": "false"})
    for name in EXTENSIONS:
        conn.execute(f"LOAD '{extension(name)}'")
    # A progress bar in the middle of a test's output helps nobody; two threads are all that a busy machine has to give.
    conn.execute("SET enable_progress_bar = false")
    conn.execute("SET threads = 2")
    conn.execute("SET TimeZone = 'UTC'")
    if s3 is not None:
        conn.execute(s3.duck_secret())
    return conn


def attach(
    conn: duckdb.DuckDBPyConnection,
    dsn: str,
    data_path: str | Path | None = None,
    *,
    schema: str = "ducklake",
    encrypted: bool = False,
    read_only: bool = False,
    alias: str = "lake",
) -> None:
    """ATTACH a lake whose catalog is a schema of a PostgreSQL database; it is made if there is none."""
    options = [f"METADATA_SCHEMA {_literal(schema)}"]
    if data_path is not None:
        options.append(f"DATA_PATH {_literal(str(data_path))}")
    if encrypted:
        options.append("ENCRYPTED")
    if read_only:
        options.append("READ_ONLY")
    conn.execute(f"ATTACH {_literal('ducklake:postgres:' + dsn)} AS {alias} ({', '.join(options)})")


def extension(name: str) -> Path:
    """Where the package of a DuckDB extension keeps it."""
    package = import_module(f"duckdb_extension_{name}")
    (found,) = Path(package.__path__[0]).glob(f"extensions/v{duckdb.__version__}/{name}.duckdb_extension")
    return found


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
