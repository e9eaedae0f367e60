"""Large publications: tasks read slices of a table in the refresh's snapshot and upload them as files of a lake."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from runnel.errors import TransientError, UserError
from runnel.lake.format.model import WrittenFile
from runnel.lake.store.storage import Store
from runnel.lake.write.parquet import Form
from runnel.spark.errands import run_errands

if TYPE_CHECKING:
    from runnel.spark.session import Sessions


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
    return run_errands(sessions, len(queries), lambda number: _write(spec, queries[number], names[number]))


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
