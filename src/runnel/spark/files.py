"""Files as DuckDB reads, joins and adds them up inside of tasks.

A Parquet file holds columns, and DuckDB computes on columns: where all rows of a stage lie in files, each task lets it
reduce a share of them to partial sums, and Spark adds up what the tasks found. Executors need DuckDB and pyarrow, and
what the tables need to read their files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from math import ceil
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from runnel.spark.slices import by_number, numbered_frame

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame

    from runnel.spark.meter import Meter
    from runnel.spark.session import Sessions

_MOST_ROWS = 10_000_000
"""About so many rows of a table are the work of one task."""
_LIMITS: dict[str, str | int | float | list[str]] = {"threads": 1, "memory_limit": "1GB"}
"""Of one task. Tasks are side by side already, and what does not fit into memory goes to their disks."""
_OFFLINE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a file, by their positions: from one on, up to another."""

    file: int
    first: int
    end: int


Share = tuple[Piece, ...]
"""What one task reads of a table."""


class FileTable(Protocol):
    """Rows in files; it can be pickled."""

    @property
    def rows(self) -> int:
        """About how many."""

    @property
    def size(self) -> int:
        """Of the files, in bytes."""

    def divided(self, most: int) -> list[Share]:
        """Shares of about as many rows each, so many at most."""

    def offer(self, duck: duckdb.DuckDBPyConnection, name: str, share: Share | None, *, first: bool) -> None:
        """A view with columns `c0`, `c1`, .. and, of changes, their weight `w`; of all rows for None.

        What is in no file belongs to the first share.
        """


@dataclass(frozen=True, slots=True)
class FileSlices:
    """What tasks need: a query over tables, of which each task reads one in part and the others whole."""

    tables: Mapping[str, FileTable]
    sliced: str
    shares: Sequence[Share]
    query: str
    schema: pa.Schema

    def count(self, meter: Meter) -> None:
        """All of it will be read."""
        tables = self.tables.values()
        meter.scanned(sum(table.rows for table in tables), sum(table.size for table in tables))


def file_slices(tables: Mapping[str, FileTable], sliced: str, query: str, schema: pa.Schema, tasks: int) -> FileSlices:
    """The query for tasks, among which one table is divided."""
    rounds = max(2, ceil(tables[sliced].rows / _MOST_ROWS / tasks))
    return FileSlices(tables, sliced, tables[sliced].divided(tasks * rounds), query, schema)


def files_frame(sessions: Sessions, parts: Sequence[FileSlices]) -> DataFrame:
    """What the queries give for each share, all together."""
    return reduce(lambda one, other: one.union(other), [_frame(sessions, slices) for slices in parts])


def _frame(sessions: Sessions, slices: FileSlices) -> DataFrame:
    slices.count(sessions.meter)
    read = by_number(partial(share_rows, slices))
    return numbered_frame(sessions, len(slices.shares), read, slices.schema)


def share_rows(slices: FileSlices, number: int) -> Iterator[pa.RecordBatch]:
    """What the query gives for one share."""
    with _database() as duck:
        for name, table in slices.tables.items():
            mine = name == slices.sliced
            table.offer(duck, name, slices.shares[number] if mine else None, first=not mine or number == 0)
        for batch in duck.execute(slices.query).to_arrow_reader(131_072):
            if batch.num_rows:
                columns = zip(batch.columns, slices.schema, strict=True)
                yield pa.record_batch([column.cast(field.type) for column, field in columns], schema=slices.schema)


@contextmanager
def _database() -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb  # noqa: PLC0415  (imported where the task runs)

    with tempfile.TemporaryDirectory(prefix="runnel-duckdb-") as folder:
        duck = duckdb.connect(config={**_LIMITS, **_OFFLINE, "temp_directory": folder})
        try:
            duck.execute("SET enable_progress_bar = false")
            yield duck
        finally:
            duck.close()
