"""Rows of any number from Spark to PostgreSQL: tasks print them as COPY reads them, the driver passes the bytes on.

The driver holds no more than one partition, a few megabytes. It passes the rows on itself, because only its own
transaction can write what that transaction is to see: rows that tasks committed would be invisible in the refresh's
snapshot. First all tasks compute and print, side by side, and keep the bytes on their disks; then these are fetched one
partition after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from runnel.spark.job import failure
from runnel.spark.meter import Mapped, Meter, TaskCounter

_CHUNK = pa.schema([("bytes", pa.binary())])


@dataclass(frozen=True, slots=True)
class Relay:
    """Rows that have been computed and wait to be fetched."""

    printed: DataFrame
    rows: int
    size: int
    """In bytes."""
    meter: Meter

    def chunks(self) -> Iterator[bytes]:
        """The rows as CSV, one partition after the other."""
        with self.meter.jobs():
            for chunk in self.printed.toLocalIterator(prefetchPartitions=True):
                yield bytes(chunk[0])
        self.meter.driver(self.rows)


@contextmanager
def relayed(rows: DataFrame, meter: Meter) -> Iterator[Relay]:
    """Compute rows, keep them on the disks of the executors until the block ends."""
    printed = rows.mapInArrow(_printer(meter.in_tasks()), "bytes binary").persist(StorageLevel.DISK_ONLY)
    before = meter.work.written_rows
    try:
        try:
            with meter.jobs():
                size = printed.selectExpr("coalesce(sum(length(bytes)), 0L)").first()
        except Py4JJavaError as error:
            raise failure(error) from error
        assert size is not None
        yield Relay(printed, meter.work.written_rows - before, int(size[0]), meter)
    finally:
        printed.unpersist()


def _printer(counter: TaskCounter) -> Mapped:
    """A function for `mapInArrow`: rows as COPY reads them."""

    def printed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from runnel.transport import render_csv  # noqa: PLC0415  (imported where the task runs)

        for batch in batches:
            if batch.num_rows:
                text = render_csv(batch)
                counter.wrote(batch.num_rows, len(text))
                yield pa.record_batch([pa.array([text], pa.binary())], schema=_CHUNK)

    return printed
