"""Data and query texts from DuckDB's extensions. They are wheels like any other: a run downloads nothing."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.bench.workload import Connection
from runnel.errors import UserError

if TYPE_CHECKING:
    import duckdb

_BATCH = 50_000


def generator(extension: str) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB with the generator and the query texts of an extension (tpch, tpcds)."""
    try:
        import duckdb

        package = importlib.import_module(f"duckdb_extension_{extension}")
    except ImportError as error:
        raise UserError(
            f"The data comes from DuckDB, and {error.name} is not installed.",
            hint="Install it with: pip install 'runnel[bench]'",
        ) from error
    found = sorted(Path(str(package.__file__)).parent.rglob(f"{extension}.duckdb_extension"))
    duck = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    try:
        # By its path: LOAD by name would look into DuckDB's own cache, or ask the network.
        duck.execute(f"LOAD '{found[0]}'")
    except (duckdb.Error, IndexError) as error:
        raise UserError(
            f"DuckDB cannot load its {extension} extension.",
            hint=f"duckdb and duckdb-extension-{extension} must have the same version.",
            detail=str(error),
        ) from error
    return duck


def copy_rows(duck: duckdb.DuckDBPyConnection, query: str, conn: Connection, table: str) -> int:
    """Arrow batches out of DuckDB, CSV into PostgreSQL; returns the number of rows."""
    from pyarrow import csv

    reader = duck.sql(query).to_arrow_reader(_BATCH)
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    rows = 0
    with conn.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv)".encode()) as copy:
        for batch in reader:
            text = io.BytesIO()
            csv.write_csv(batch, text, options)
            copy.write(text.getvalue())
            rows += batch.num_rows
    return rows
