"""Rows of any number from Spark to PostgreSQL: tasks print them as COPY reads them, the driver passes the bytes on.

The driver holds a few megabytes at a time. It passes the rows on itself, because only its own transaction can write
what that transaction is to see: rows that tasks committed would be invisible in the refresh's snapshot. First all tasks
compute and print, side by side, and keep the bytes on their disks; then these are fetched, one partition after another.
Small results come at once.

Rows that Spark has computed are a DataFrame. Rows that a database has computed for a task are none of Spark's business:
they are an RDD of bytes, which costs the JVM a quarter of what the same bytes in a DataFrame do (80 MB: 0.8 s against
3.1 s).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame

from runnel.spark.job import FAILURES, failure
from runnel.spark.meter import Mapped, Meter, TaskCounter

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

_WHOLE = 128 * 2**20
"""Partitions of at most so many bytes are fetched whole: the JVM of the driver holds two of them."""
_AT_ONCE = 16 * 2**20
"""Of larger ones, about how many bytes are fetched at a time."""
_AT_HAND = 4 * 2**20
"""So few bytes in all come in one answer."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Rows that have been computed and wait to be fetched."""

    is_empty: bool
    chunks: Iterable[bytes]
    """The rows as CSV."""


@contextmanager
def relayed(rows: DataFrame, meter: Meter) -> Iterator[Relay]:
    """Compute and print rows, and keep them on the disks of the executors until the block ends."""
    kept = rows.mapInArrow(_printed(meter.in_tasks()), "bytes binary").persist(StorageLevel.DISK_ONLY)
    before = meter.work.written_rows
    try:
        with _in_words(), meter.jobs():
            sizes = kept.selectExpr("length(bytes) AS size").toArrow().column(0).to_pylist()
        yield Relay(not sizes, _passed(_rows(kept, meter), meter, meter.work.written_rows - before))
    finally:
        kept.unpersist()


@contextmanager
def relayed_slices(sessions: Sessions, count: int, rows: Callable[[int], Iterator[Any]]) -> Iterator[Relay]:
    """The same with rows that a database has computed: each task asks for those of one number and prints what comes."""
    meter = sessions.meter
    before = meter.work.written_rows
    numbers = sessions.base.sparkContext.parallelize(range(count), count)
    kept = numbers.mapPartitions(_printed_slices(rows, meter.in_tasks())).persist(StorageLevel.DISK_ONLY)
    try:
        with _in_words(), meter.jobs():
            # Counted by the JVM: a Python worker that looks at what another has printed costs as much as the printing.
            is_empty = not kept._jrdd.count()
        chunks: Iterable[bytes]
        if meter.last_wrote.size <= _AT_HAND:
            with _in_words(), meter.jobs():
                chunks = kept.collect()
        elif meter.last_wrote.largest <= _WHOLE:
            chunks = _wholes(kept, meter)
        else:
            chunks = _portions(kept, meter)
        yield Relay(is_empty, _passed(chunks, meter, meter.work.written_rows - before))
    finally:
        kept.unpersist()


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        raise failure(error) from error


def _passed(chunks: Iterable[bytes], meter: Meter, rows: int) -> Iterator[bytes]:
    """The pieces, which are so many rows."""
    yield from chunks
    meter.driver(rows)


def _rows(kept: DataFrame, meter: Meter) -> Iterator[bytes]:
    """The pieces of all partitions, which Spark keeps small."""
    with _in_words(), meter.jobs():
        yield from (bytes(row[0]) for row in kept.toLocalIterator(prefetchPartitions=True))


def _wholes(kept: RDD[bytes], meter: Meter) -> Iterator[bytes]:
    """The pieces of all partitions, one partition after another; no Python worker sees them again."""
    with _in_words(), meter.jobs():
        yield from kept.toLocalIterator(prefetchPartitions=True)


def _portions(kept: RDD[bytes], meter: Meter) -> Iterator[bytes]:
    """The pieces of all partitions, some at a time; the next ones are fetched while those before are written.

    A Python worker picks them out of their partition, which takes ten times as long as fetching all of it.
    """
    context = kept.context
    with _in_words(), meter.jobs():
        sizes = kept.mapPartitions(lambda pieces: [[len(piece) for piece in pieces]]).collect()

    def fetch(partition: int, start: int, end: int) -> list[bytes]:
        # What stands before is passed over: it comes from the executor's disk and is not sent.
        return context.runJob(kept, lambda pieces: islice(pieces, start, end), [partition])

    waiting = [(p, a, b) for p, pieces in enumerate(sizes) for a, b in _runs(pieces)]
    with _in_words(), ThreadPoolExecutor(1) as ahead:
        following = ahead.submit(fetch, *waiting[0]) if waiting else None
        for number in range(len(waiting)):
            assert following is not None
            pieces = following.result()
            following = ahead.submit(fetch, *waiting[number + 1]) if number + 1 < len(waiting) else None
            yield from pieces
    # Jobs of another thread are in no group.
    meter.one_task_jobs(len(waiting))


def _runs(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pieces that are fetched together.

    >>> list(_runs([3 * 2**20] * 12))
    [(0, 5), (5, 10), (10, 12)]
    """
    start, total = 0, 0
    for number, size in enumerate(sizes):
        if total and total + size > _AT_ONCE:
            yield start, number
            start, total = number, 0
        total += size
    if total:
        yield start, len(sizes)


def _printed(counter: TaskCounter) -> Mapped:
    """A function for `mapInArrow`: rows as COPY reads them."""

    def printed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for text in _print(batches, counter):
            yield pa.record_batch([pa.array([text], pa.binary())], ["bytes"])

    return printed


def _printed_slices(
    rows: Callable[[int], Iterator[Any]], counter: TaskCounter
) -> Callable[[Iterable[int]], Iterator[bytes]]:
    """A function for `mapPartitions`: the rows of these numbers."""

    def printed(numbers: Iterable[int]) -> Iterator[bytes]:
        for number in numbers:
            size = 0
            for text in _print(_read(rows(number), counter), counter):
                size += len(text)
                yield text
            counter.part(size)

    return printed


def _read(batches: Iterable[Any], counter: TaskCounter) -> Iterator[Any]:
    for batch in batches:
        counter.read(batch)
        yield batch


def _print(batches: Iterable[Any], counter: TaskCounter) -> Iterator[bytes]:
    from runnel.transport import render_csv  # noqa: PLC0415  (imported where the task runs)

    for batch in batches:
        if batch.num_rows:
            text = render_csv(batch)
            counter.wrote(batch.num_rows, len(text))
            yield text
