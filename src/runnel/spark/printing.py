"""Rows as the text that COPY reads, printed where a task runs: pieces of it, each with its number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

PRINTED = "rows bigint, bytes binary"
"""The columns of printed rows in a DataFrame."""

_PIECE = pa.schema([("rows", pa.int64()), ("bytes", pa.binary())])


def print_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch as one piece."""
    from runnel.transport import render_csv  # noqa: PLC0415  (imported where the task runs)

    for batch in batches:
        if batch.num_rows:
            yield pa.record_batch([[batch.num_rows], [render_csv(batch)]], schema=_PIECE)
