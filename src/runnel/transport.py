"""Rows between PostgreSQL and Arrow, as CSV: fast in both directions and exact for every form.

Executors import this module where tasks hand rows to PostgreSQL; it needs only pyarrow.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

_BLOCK = 1 << 23
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


def stream_csv(chunks: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a running COPY, batch by batch."""
    first = next(chunks, None)
    if first is None:
        return
    reader = _ChunkReader(first, chunks)
    read = pacsv.ReadOptions(column_names=schema.names, block_size=_BLOCK)
    yield from pacsv.open_csv(reader, read_options=read, parse_options=_PARSE, convert_options=_convert(schema))


def render_csv(batch: pa.RecordBatch) -> bytes:
    """A batch in the form that COPY FROM reads."""
    buffer = io.BytesIO()
    options = pacsv.WriteOptions(include_header=False, quoting_style="all_valid")
    pacsv.write_csv(pa.Table.from_batches([batch]), buffer, options)
    return buffer.getvalue()


class _ChunkReader(io.RawIOBase):
    """A file over the chunks of a COPY. Chunks are single rows: they are gathered, or each would cost a call."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self._buffer = bytearray(first)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        wanted = len(target)
        while len(self._buffer) < wanted:
            chunk = next(self._rest, None)
            if chunk is None:
                break
            self._buffer += chunk
        size = min(wanted, len(self._buffer))
        target[:size] = self._buffer[:size]
        del self._buffer[:size]
        return size
