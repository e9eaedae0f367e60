"""Files of messages: NDJSON or Parquet, in a folder or an object store.

A file is written whole, under a name that follows from its offsets. A batch that is sent again after a crash has the
same first offset, and its file replaces the one that was written before.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from runnel.errors import UserError
from runnel.lake.format.model import Lake
from runnel.lake.store.storage import StoreError, open_store
from runnel.relay.config import Options
from runnel.relay.message import Message, Unavailable
from runnel.sinks.uploads import store_options

FORMATS = ("ndjson", "parquet")


class FileSink:
    """Writes each batch as a file."""

    def __init__(self, options: Options, lakes: Callable[[], Sequence[Lake]]) -> None:
        options.refuse_unknown(("path", "format"))
        path = options.text("path")
        self._folder = path if path.endswith("/") else f"{path}/"
        said = options.text("format", "ndjson")
        self._format = "ndjson" if said == "jsonl" else said
        self._lakes = lakes
        if self._format not in FORMATS:
            raise UserError(
                f"format {self._format} is not known", hint=f"Use {' or '.join(FORMATS)}.", sqlstate="22023"
            )

    def send(self, messages: Sequence[Message]) -> None:
        """One file."""
        name = f"{self._folder}{messages[0].offset:020d}.{self._format}"
        body = _ndjson(messages) if self._format == "ndjson" else _parquet(messages)
        try:
            # A store is reached as the lake is that lies in it; a folder needs no credentials.
            options = store_options(name, self._lakes()) if "://" in name else {}
            open_store(name, options).put(name, body)
        except StoreError as error:
            raise Unavailable(str(error)) from error

    def close(self) -> None:
        """Nothing is held."""


def _ndjson(messages: Sequence[Message]) -> bytes:
    return "".join(f"{message.envelope()}\n" for message in messages).encode()


def _parquet(messages: Sequence[Message]) -> bytes:
    import json  # noqa: PLC0415

    table = pa.table(
        {
            "dedup_key": [m.dedup_key for m in messages],
            "outbox_name": [m.outbox for m in messages],
            "offset": pa.array([m.offset for m in messages], pa.int64()),
            "created_at": pa.array([m.created_at for m in messages], pa.timestamp("us", tz="UTC")),
            "headers": [json.dumps(dict(m.headers)) for m in messages],
            "payload": [m.payload for m in messages],
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()
