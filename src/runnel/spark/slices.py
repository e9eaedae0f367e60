"""Slices of tables as a DataFrame: each task reads one, in the refresh's own snapshot.

What runs inside tasks is kept free of other imports: executors need pyarrow and the ADBC driver of PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  (tasks import this module without it)

    # A range of n partitions puts exactly one slice into each task.
    numbers = sessions.large.range(0, len(slices.queries), 1, len(slices.queries))
    return numbers.mapInArrow(sessions.meter.reading(slice_reader(slices)), from_arrow_schema(slices.schema))


def slice_reader(slices: Slices) -> SliceReader:
    """A function for `mapInArrow`: each input row is the number of a SELECT, its rows are the output."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from slice_rows(slices, slices.queries[number])

    return read


def slice_rows(slices: Slices, query: str) -> Iterator[pa.RecordBatch]:
    """A slice's rows, straight from PostgreSQL's binary format: rows that pass through Python one by one cost more."""
    import adbc_driver_manager as adbc  # noqa: PLC0415  (imported where the task runs)
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415

    try:
        with dbapi.connect(slices.dsn, autocommit=True) as conn, conn.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{slices.snapshot}'")
            for key, value in slices.settings.items():
                cursor.execute("SELECT set_config($1, $2, true)", (key, value))
                cursor.fetchall()
            cursor.execute(query)
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
