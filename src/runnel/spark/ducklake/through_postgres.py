"""Lake tables whose expressions only PostgreSQL knows: each task copies its files' rows there and back.

A task has a connection and a temporary table of its own. Executors need what they need for reading lakes, and psycopg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from runnel.lake.read.reader import FileScan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from runnel.spark.session import Sessions

TABLE = "pgt_lent_rows"


@dataclass(frozen=True, slots=True)
class Through:
    """What a task needs besides its files; the connection string travels in the pickled function, not in a plan."""

    dsn: str = field(repr=False)
    columns: tuple[str, ...]
    """Definitions of the temporary table's columns, quoted."""
    query: str
    """A SELECT over the temporary table, with the rights of the stream table's owner."""
    settings: Mapping[str, str]
    role: str
    """The owner, who may read the temporary table."""
    schema: pa.Schema
    places: tuple[int, ...] | None = None
    """Which columns of what is read go to the temporary table; None: all of them."""


def through_frame(sessions: Sessions, through: Through, shares: list[list[FileScan]], rest: pa.Table) -> DataFrame:
    """The rows of files and of `rest`, as the SELECT makes them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    numbers = sessions.large.range(0, len(shares) + 1, 1, len(shares) + 1)
    read = sessions.meter.reading(_share_reader(through, shares, rest))
    return numbers.mapInArrow(read, from_arrow_schema(through.schema))


def through_rows(rows: DataFrame, through: Through) -> DataFrame:
    """Rows that Spark has already, as the SELECT makes them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return rows.mapInArrow(_rows_reader(through), from_arrow_schema(through.schema))


def _rows_reader(through: Through) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is not None:
            yield from _through_postgres(through, chain([first], filled))

    return read


def _share_reader(
    through: Through, shares: list[list[FileScan]], rest: pa.Table
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow`: each input row is the number of a share of files; the last one is `rest`."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from runnel.lake.read.reader import scan_file

        for batch in batches:
            for number in batch.column("id").to_pylist():
                if number == len(shares):
                    yield from _through_postgres(through, iter(rest.to_batches()))
                    continue
                for spec in shares[number]:
                    yield from _through_postgres(through, scan_file(spec))

    return read


def _through_postgres(through: Through, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import psycopg
    from psycopg import sql

    from runnel.lake.read.copytext import as_text
    from runnel.transport import render_csv, stream_csv

    with psycopg.connect(through.dsn, autocommit=True) as conn:
        conn.execute("BEGIN")
        for key, value in through.settings.items():
            conn.execute("SELECT set_config(%s, %s, true)", (key, value))
        conn.execute(f"CREATE TEMP TABLE {TABLE} ({', '.join(through.columns)}) ON COMMIT DROP".encode())
        with conn.cursor() as cursor, cursor.copy(f"COPY pg_temp.{TABLE} FROM STDIN (FORMAT csv)".encode()) as copy:
            for batch in rows:
                chosen = batch if through.places is None else batch.select(list(through.places))
                copy.write(render_csv(as_text(chosen)))
        conn.execute(
            sql.SQL("GRANT SELECT ON pg_temp.{} TO {}").format(sql.Identifier(TABLE), sql.Identifier(through.role))
        )
        with conn.cursor() as cursor, cursor.copy(f"COPY ({through.query}) TO STDOUT (FORMAT csv)".encode()) as copy:
            yield from stream_csv(iter(copy), through.schema)
        # Nothing here is to last: what the owner's code may have left to a COMMIT never runs.
        conn.execute("ROLLBACK")
