"""Large publications: tasks read slices of a table in the refresh's snapshot and upload them as files of a lake."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from runnel.errors import RunnelError, TransientError, UserError
from runnel.lake.format.model import WrittenFile
from runnel.lake.store.storage import Store
from runnel.lake.write.parquet import Form
from runnel.spark.job import run
from runnel.spark.session import Sessions

_ANSWER = pa.schema([("slice", pa.int64()), ("answer", pa.binary())])


@dataclass(frozen=True, slots=True)
class SliceWrite:
    """What all tasks of a publication need to know; it travels inside the pickled function."""

    dsn: str = field(repr=False)
    snapshot: str
    """The exported snapshot that they read in."""
    form: Form
    store: Store
    folder: str


def write_slices(
    sessions: Sessions, spec: SliceWrite, queries: Sequence[str], names: Sequence[str]
) -> list[WrittenFile | None]:
    """One file per query, in order; None for those without rows."""
    # A range of n partitions puts exactly one slice into each task.
    slices = sessions.large.range(0, len(queries), 1, len(queries))
    answers = run(slices.mapInArrow(_writer(spec, queries, names), from_arrow_schema(_ANSWER)))
    found: list[WrittenFile | None] = [None] * len(queries)
    for number, data in zip(answers["slice"].to_pylist(), answers["answer"].to_pylist(), strict=True):
        answer = pickle.loads(data)  # noqa: S301  (made by our own tasks)
        if isinstance(answer, RunnelError):
            raise answer
        found[number] = answer
    return found


def _writer(
    spec: SliceWrite, queries: Sequence[str], names: Sequence[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                try:
                    answer: object = _write(spec, queries[number], names[number])
                except RunnelError as error:
                    # Spark would wrap it; the driver should see it as it is, and the store may be back tomorrow.
                    answer = type(error)(error.message, hint=error.hint, sqlstate=error.sqlstate)
                yield pa.record_batch([[number], [pickle.dumps(answer)]], schema=_ANSWER)

    return write


def _write(spec: SliceWrite, query: str, name: str) -> WrittenFile | None:
    from runnel.lake.write.parquet import write_file  # noqa: PLC0415  (imported where the task runs)

    rows = _rows(spec, query)
    first = next(rows, None)
    if first is None:
        return None
    return write_file(spec.store, spec.folder, spec.form, itertools.chain([first], rows), name)


def _rows(spec: SliceWrite, query: str) -> Iterator[pa.RecordBatch]:
    """A slice's rows, straight from PostgreSQL's binary format: rows that pass through Python one by one cost more."""
    import adbc_driver_manager as adbc  # noqa: PLC0415
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415

    from runnel.lake.write.pgbinary import to_lake  # noqa: PLC0415

    try:
        with dbapi.connect(spec.dsn, autocommit=True) as conn, conn.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{spec.snapshot}'")
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                yield to_lake(batch, spec.form.columns)
    except adbc.Error as error:
        if (error.sqlstate or "").startswith("22"):
            text = f"a value does not fit into the lake: {str(error).splitlines()[0]}"
            raise UserError(text, sqlstate=error.sqlstate) from None
        # The whole message may repeat the connection string.
        raise TransientError(f"a slice of the table could not be read: {type(error).__name__}") from None
