"""What `write_ducklake` does inside Spark tasks; executors need only pyarrow, obstore and `runnel.lake`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from runnel.errors import RunnelError, UserError
from runnel.lake.format.columns import conform, found_as
from runnel.lake.format.misfit import misfit
from runnel.lake.read.reader import FileScan, versions
from runnel.lake.store.storage import Store
from runnel.lake.write.parquet import Form, write_files
from runnel.spark.ducklake.task import files_of, for_spark


def file_writer(
    store: Store, folder: str, form: Form
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow`: rows go to files, and the output is what was written, or why not."""

    def lake_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in form.columns]
        for batch in batches:
            arrays = []
            for array, column in zip(batch.columns, form.columns, strict=True):
                try:
                    arrays.append(conform(array, found_as(column), column))
                except pa.ArrowInvalid as error:
                    raise misfit(column.name, column.type, str(error)) from None
                if not column.nulls_allowed and arrays[-1].null_count:
                    raise UserError(f"Column {column.name} of the lake's table must not be NULL.", sqlstate="23502")
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            answers: list[object] = list(write_files(store, folder, form, lake_rows(batches)))
        except RunnelError as error:
            answers = [type(error)(error.message, hint=error.hint, sqlstate=error.sqlstate)]
        for answer in answers:
            yield pa.record_batch([[pickle.dumps(answer)]], names=["answer"])

    return write


def place_reader(
    shares: list[list[FileScan]], wanted: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow`: each input row is the number of a share, the output are keys with their places."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for spec in files_of(batches, shares):
            start = 0
            for columns, _, _, died in versions(spec):
                places = np.arange(start, start + len(died), dtype=np.int64)
                start += len(died)
                arrays = [*columns, pa.repeat(pa.scalar(spec.file.id, pa.int64()), len(died)), pa.array(places)]
                rows = pa.RecordBatch.from_arrays(arrays, names=wanted.names)
                yield for_spark(rows.filter(pa.array(died == np.iinfo(np.int64).max)), wanted)

    return read
