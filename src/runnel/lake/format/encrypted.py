"""Encrypted Parquet as DuckLake has it, which only DuckDB can write: a fresh key per file, httpfs for the cipher."""

from __future__ import annotations

import base64
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.lake.duck import connect
from runnel.model.names import quote

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "none": "uncompressed"}
_local = threading.local()


def new_key() -> bytes:
    return os.urandom(16)


def key_text(key: bytes) -> str:
    """A key as the catalog keeps it."""
    return base64.b64encode(key).decode()


def encode(table: pa.Table, key: bytes, compression: str = "zstd") -> bytes:
    """A table as an encrypted Parquet file; field ids come from the schema's metadata."""
    conn = connection().cursor()
    conn.register("rows_to_write", table)
    try:
        with tempfile.TemporaryDirectory(prefix="runnel-") as folder:
            path = Path(folder) / "file.parquet"
            ids = ", ".join(_field_ids(field) for field in table.schema)
            conn.execute(
                f"COPY (SELECT * FROM rows_to_write) TO '{path}' (FORMAT parquet, COMPRESSION {_CODECS[compression]}, "
                f"FIELD_IDS {{{ids}}}, ENCRYPTION_CONFIG {{footer_key_value: from_hex('{key.hex()}')}})"
            )
            return path.read_bytes()
    finally:
        conn.unregister("rows_to_write")
        conn.close()


def connection() -> duckdb.DuckDBPyConnection:
    """This thread's DuckDB, with the cipher loaded; it never downloads anything."""
    conn: duckdb.DuckDBPyConnection | None = getattr(_local, "conn", None)
    if conn is None:
        conn = connect("httpfs")
        conn.execute("SET threads = 2")
        _local.conn = conn
    return conn


def _field_ids(field: pa.Field) -> str:
    """One field's entry of FIELD_IDS: `name: 1`, or with what is nested below it."""
    import pyarrow as pa

    name = quote(field.name)
    id = int(field.metadata[b"PARQUET:field_id"])
    if pa.types.is_struct(field.type):
        below = [_field_ids(child) for child in field.type]
    elif pa.types.is_list(field.type):
        below = [_field_ids(field.type.value_field.with_name("element"))]
    elif pa.types.is_map(field.type):
        below = [
            _field_ids(field.type.key_field.with_name("key")),
            _field_ids(field.type.item_field.with_name("value")),
        ]
    else:
        return f"{name}: {id}"
    return f"{name}: {{__duckdb_field_id: {id}, {', '.join(below)}}}"
