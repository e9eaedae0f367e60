"""Rows between PostgreSQL and Arrow, as CSV: fast in both directions and exact for every form.

Executors import this module where tasks hand rows to PostgreSQL; it needs only pyarrow.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.csv as pacsv

_BLOCK = 1 << 23
_BATCH = 1 << 22
_PARSE = pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)


def _convert(schema: pa.Schema) -> pacsv.ConvertOptions:
    """COPY's CSV: an unquoted empty field is NULL, a quoted one the empty string."""
    return pacsv.ConvertOptions(
        column_types=schema,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["t"],
        false_values=["f"],
    )


def parse_csv(data: bytes, schema: pa.Schema) -> pa.Table:
    """All rows of a COPY as one table."""
    if not data:
        return schema.empty_table()
    read = pacsv.ReadOptions(column_names=schema.names, block_size=_BLOCK)
    return pacsv.read_csv(io.BytesIO(data), read_options=read, parse_options=_PARSE, convert_options=_convert(schema))


def stream_csv(chunks: Iterable[bytes | bytearray | memoryview], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a running COPY, batch by batch. Chunks are whole rows, as COPY sends them.

    No more than a batch is in memory: Arrow's own streaming reader would run ahead of its caller.
    """
    waiting, size = [], 0
    for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size >= _BATCH:
            yield from parse_csv(b"".join(waiting), schema).to_batches()
            waiting, size = [], 0
    if waiting:
        yield from parse_csv(b"".join(waiting), schema).to_batches()


def render_csv(batch: pa.RecordBatch) -> bytes:
    """A batch in the form that COPY FROM reads."""
    buffer = io.BytesIO()
    options = pacsv.WriteOptions(include_header=False, quoting_style="all_valid")
    pacsv.write_csv(pa.Table.from_batches([batch]), buffer, options)
    return buffer.getvalue()
