"""Slices of tables as a DataFrame: each task reads one, in the refresh's own snapshot.

What runs inside tasks is kept free of other imports: executors need pyarrow and the ADBC driver of PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from runnel.spark.session import Sessions

SliceReader = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Slices:
    """What tasks need; the connection string travels in the pickled function, never in a query plan's text."""

    dsn: str = field(repr=False)
    snapshot: str
    """Exported by the refresh transaction."""
    settings: Mapping[str, str]
    schema: pa.Schema
    queries: Sequence[str]
    """One SELECT per task, with the rights it runs with (`runnel.catalog.owner`)."""


def slices_frame(sessions: Sessions, slices: Slices) -> DataFrame:
    """The rows of all slices."""
    read = sessions.meter.reading(by_number(partial(slice_rows, slices)))
    return numbered_frame(sessions, len(slices.queries), read, slices.schema)


def numbered_frame(sessions: Sessions, count: int, read: SliceReader, schema: pa.Schema) -> DataFrame:
    """What a function reads for so many numbers, each in a task of its own."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  (tasks import this module without it)

    # A range of n partitions puts exactly one number into each task.
    return sessions.large.range(0, count, 1, count).mapInArrow(read, from_arrow_schema(schema))


def by_number(rows: Callable[[int], Iterator[pa.RecordBatch]]) -> SliceReader:
    """A function for `mapInArrow`: each input row is a number, and what `rows` has for it is the output."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from rows(number)

    return read


def slice_rows(slices: Slices, number: int) -> Iterator[pa.RecordBatch]:
    """A slice's rows, straight from PostgreSQL's binary format: rows that pass through Python one by one cost more."""
    import adbc_driver_manager as adbc  # noqa: PLC0415  (imported where the task runs)

    from runnel.spark.connections import connection  # noqa: PLC0415

    try:
        with connection(slices.dsn) as conn, conn.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{slices.snapshot}'")
            for key, value in slices.settings.items():
                cursor.execute("SELECT set_config($1, $2, true)", (key, value))
                cursor.fetchall()
            cursor.execute(slices.queries[number])
            for batch in cursor.fetch_record_batch():
                yield pa.record_batch(
                    [column.cast(field.type) for column, field in zip(batch.columns, slices.schema, strict=True)],
                    schema=slices.schema,
                )
    except adbc.Error as error:
        raise RuntimeError(failure(error)) from None


def failure(error: Any) -> str:
    """What PostgreSQL said, in one line; the driver's whole message may repeat the connection string."""
    if error.sqlstate is None:
        return f"a slice of a table could not be read: {type(error).__name__}"
    said = str(error).split("ERROR:", 1)[-1].strip()
    return said.splitlines()[0] if said else type(error).__name__
