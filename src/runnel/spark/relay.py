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
from runnel.spark.meter import Meter

_CHUNK = pa.schema([("rows", pa.int64()), ("bytes", pa.binary())])


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
            for chunk in self.printed.select("bytes").toLocalIterator(prefetchPartitions=True):
                yield bytes(chunk[0])
        self.meter.driver(self.rows)


@contextmanager
def relayed(rows: DataFrame, meter: Meter) -> Iterator[Relay]:
    """Compute rows, keep them on the disks of the executors until the block ends."""
    printed = rows.mapInArrow(_print, "rows bigint, bytes binary").persist(StorageLevel.DISK_ONLY)
    try:
        try:
            with meter.jobs():
                total = printed.selectExpr("coalesce(sum(rows), 0L)", "coalesce(sum(length(bytes)), 0L)").first()
        except Py4JJavaError as error:
            raise failure(error) from error
        assert total is not None
        meter.written(int(total[0]), int(total[1]))
        yield Relay(printed, int(total[0]), int(total[1]), meter)
    finally:
        printed.unpersist()


def _print(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from runnel.transport import render_csv  # noqa: PLC0415  (imported where the task runs)

    for batch in batches:
        if batch.num_rows:
            yield pa.record_batch([[batch.num_rows], [render_csv(batch)]], schema=_CHUNK)
