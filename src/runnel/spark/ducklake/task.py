"""Reading a lake's files inside Spark tasks; executors need only pyarrow, obstore and `runnel.lake`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from runnel.lake.read.reader import FileScan, scan_file


def file_reader(
    shares: list[list[FileScan]], wanted: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow`: each input row is the number of a share. Secrets travel inside it, not in plans."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for spec in files_of(batches, shares):
            for found in scan_file(spec):
                yield for_spark(found, wanted)

    return read


def files_of(batches: Iterator[pa.RecordBatch], shares: list[list[FileScan]]) -> Iterator[FileScan]:
    """The files of the shares whose numbers a task is given."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            yield from shares[number]


def for_spark(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The same rows in types that Spark has."""
    arrays = [
        array if array.type == field.type else array.cast(field.type, safe=False)
        for array, field in zip(batch.columns, wanted, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
