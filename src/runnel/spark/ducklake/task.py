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
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for spec in shares[number]:
                    for found in scan_file(spec):
                        yield for_spark(found, wanted)

    return read


def for_spark(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The same rows in types that Spark has."""
    arrays = [
        array if array.type == field.type else array.cast(field.type, safe=False)
        for array, field in zip(batch.columns, wanted, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
