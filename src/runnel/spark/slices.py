"""Slices of tables as a DataFrame: each task reads one, in the refresh's own snapshot.

What runs inside tasks is kept free of other imports: executors need psycopg, pyarrow and `runnel.transport`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    return numbers.mapInArrow(slice_reader(slices), from_arrow_schema(slices.schema))


def slice_reader(slices: Slices) -> SliceReader:
    """A function for `mapInArrow`: each input row is the number of a SELECT, its rows are the output."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import psycopg  # noqa: PLC0415  (imported where the task runs)
        from psycopg import sql  # noqa: PLC0415

        from runnel.transport import stream_csv  # noqa: PLC0415

        for batch in batches:
            for text in (slices.queries[number] for number in batch.column("id").to_pylist()):
                with psycopg.connect(slices.dsn, autocommit=True) as conn:
                    conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(slices.snapshot)))
                    for key, value in slices.settings.items():
                        conn.execute("SELECT set_config(%s, %s, true)", (key, value))
                    with conn.cursor() as cursor, cursor.copy(f"COPY ({text}) TO STDOUT (FORMAT csv)".encode()) as copy:
                        yield from stream_csv(iter(copy), slices.schema)

    return read
