"""Leaves as Arrow tables, read by the driver through COPY; Arrow tables written back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import psycopg
import pyarrow as pa

from runnel.catalog.owner import AsOwner
from runnel.ports.rows import Query
from runnel.transport import parse_csv, render_csv


def pg_types(schema: pa.Schema) -> list[str]:
    """The PostgreSQL types in which the columns of a read come: one per form."""
    return [_pg_type(field.type) for field in schema]


def _pg_type(type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return "numeric"
    return {pa.int64(): "int8", pa.bool_(): "bool", pa.float64(): "float8"}.get(type_, "text")


def binary_types(schema: pa.Schema) -> list[str]:
    """The same for reads in PostgreSQL's binary format, which has no number that is a decimal of Arrow's."""
    return ["text" if name == "numeric" else name for name in pg_types(schema)]


def read_arrow(owner: AsOwner, query: Query, schema: pa.Schema) -> pa.Table:
    """Run a SELECT of the owner's and give its rows as Arrow."""
    # Parameters are always passed, because percent signs in the text are always doubled.
    return parse_csv(owner.csv_text(query.text, pg_types(schema), query.params or {"none": None}), schema)


def table_as_csv(table: pa.Table) -> Iterator[bytes]:
    """An Arrow table as the text that COPY reads."""
    for batch in table.to_batches(max_chunksize=65536):
        yield render_csv(batch)


def copy_csv(conn: psycopg.Connection, target: str, columns: Sequence[str], chunks: Iterable[bytes]) -> None:
    """COPY text into a PostgreSQL table whose columns parse it."""
    statement = f"COPY {target} ({', '.join(columns)}) FROM STDIN (FORMAT csv)".encode()
    with conn.cursor() as cursor, cursor.copy(statement) as copy:
        for chunk in chunks:
            copy.write(chunk)
