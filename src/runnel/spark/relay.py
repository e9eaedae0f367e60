"""Rows of any number from Spark to PostgreSQL: tasks print them as COPY reads them, the driver passes the bytes on.

The driver holds a few megabytes at a time. It passes the rows on itself, because only its own transaction can write
what that transaction is to see: rows that tasks committed would be invisible in the refresh's snapshot. First all tasks
compute and print, side by side, and keep the bytes on their disks; then these are fetched piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from runnel.spark.job import failure
from runnel.spark.printing import PRINTED, print_batches

_AT_ONCE = 16 * 2**20
"""About how many bytes are fetched at a time."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Rows that have been computed and wait to be fetched."""

    printed: DataFrame
    rows: int
    size: int
    """In bytes."""

    def chunks(self) -> Iterator[bytes]:
        """The rows as CSV."""
        parts = -(-self.size // _AT_ONCE)
        pieces = self.printed.select("bytes")
        if parts == 1:
            yield from (bytes(piece) for piece in pieces.toArrow().column(0).to_pylist())
            return
        # A partition is fetched as a whole, and may be as large as all that a task has read.
        for piece in pieces.repartition(parts).toLocalIterator(prefetchPartitions=True):
            yield bytes(piece[0])


def printed(rows: DataFrame) -> DataFrame:
    """Rows that Spark computes, as its tasks print them."""
    return rows.mapInArrow(print_batches, PRINTED)


@contextmanager
def relayed(printed: DataFrame) -> Iterator[Relay]:
    """Compute printed rows, and keep them on the disks of the executors until the block ends."""
    kept = printed.persist(StorageLevel.DISK_ONLY)
    try:
        try:
            pieces = kept.selectExpr("rows", "length(bytes) AS size").toArrow().to_pydict()
        except Py4JJavaError as error:
            raise failure(error) from error
        yield Relay(kept, sum(pieces["rows"]), sum(pieces["size"]))
    finally:
        kept.unpersist()
