"""What runs inside Spark tasks: reading one slice of a table in the refresh's own snapshot.

Kept free of other imports: executors need psycopg, pyarrow and this module with `runnel.transport`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

SliceReader = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def slice_reader(
    dsn: str,
    snapshot: str,
    settings: Mapping[str, str],
    schema: pa.Schema,
    queries: Sequence[str],
) -> SliceReader:
    """A function for `mapInArrow`: each input row is the number of a SELECT, its rows are the output.

    The SELECTs bring the rights they run with (`runnel.catalog.owner`). The connection string travels inside the
    pickled function, so it is never part of a query plan's text.
    """

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import psycopg  # noqa: PLC0415  (imported where the task runs)
        from psycopg import sql  # noqa: PLC0415

        from runnel.transport import stream_csv  # noqa: PLC0415

        for batch in batches:
            for text in (queries[number] for number in batch.column("id").to_pylist()):
                with psycopg.connect(dsn, autocommit=True) as conn:
                    conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
                    for key, value in settings.items():
                        conn.execute("SELECT set_config(%s, %s, true)", (key, value))
                    with conn.cursor() as cursor, cursor.copy(f"COPY ({text}) TO STDOUT (FORMAT csv)".encode()) as copy:
                        yield from stream_csv(iter(copy), schema)

    return read
