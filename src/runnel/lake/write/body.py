"""A Parquet file in the making: in memory while it is small, in a temporary file without a name beyond that.

So whoever writes a large file holds a row group of it and no more, and a writer that is killed leaves nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runnel.lake.format import encrypted
from runnel.lake.format.model import ColumnStats, WrittenFile
from runnel.lake.store.storage import Store

ROW_GROUP = 122_880
_IN_MEMORY = 8 * 1024 * 1024
_SAMPLE = 10_000
"""Rows that are looked at to see whether a column's values repeat."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A file's bytes and what the catalog will say about it; not uploaded yet."""

    file: WrittenFile
    data: pa.Buffer | IO[bytes]

    def upload(self, store: Store, folder: str) -> WrittenFile:
        """Put it into its folder, and let go of the bytes."""
        path = folder + self.file.path
        if isinstance(self.data, pa.Buffer):
            store.put(path, memoryview(self.data))
        else:
            with self.data as file:
                file.seek(0)
                store.put(path, file)
        return self.file


class PlainBody:
    """Parquet by pyarrow."""

    def __init__(self, schema: pa.Schema, compression: str, first: pa.Table) -> None:
        # A file that begins with a whole row group may become large; few rows are written faster to a buffer.
        few = first.num_rows < ROW_GROUP and first.nbytes < _IN_MEMORY
        self.target: pa.BufferOutputStream | IO[bytes] = pa.BufferOutputStream() if few else _spooled()
        self.writer = pq.ParquetWriter(
            self.target,
            schema,
            compression=compression,
            use_dictionary=repetitive(first),
            store_schema=False,
            store_decimal_as_integer=True,
        )

    @property
    def size(self) -> int:
        """Bytes so far."""
        return int(self.target.tell())

    def write(self, table: pa.Table) -> None:
        self.writer.write_table(table, row_group_size=ROW_GROUP)

    def finish(self, name: str, rows: int, stats: Mapping[int, ColumnStats]) -> Encoded:
        self.writer.close()
        target = self.target
        size = self.size
        if isinstance(target, pa.BufferOutputStream):
            data = target.getvalue()
            readable, footer = pa.BufferReader(data), footer_size(data)
        else:
            data = readable = target
            target.seek(-8, 2)
            footer = int.from_bytes(target.read(4), "little")
        sizes = _column_sizes(readable, list(stats))
        stats = {id: replace(each, size=sizes.get(id)) for id, each in stats.items()}
        return Encoded(WrittenFile(name, rows, size, footer, stats), data)


class EncryptedBody:
    """Encrypted Parquet by DuckDB, in one go at the end."""

    def __init__(self, schema: pa.Schema, compression: str) -> None:
        self.schema = schema
        self.compression = compression
        self.tables: list[pa.Table] = []
        self.held = 0

    @property
    def size(self) -> int:
        """What is held in memory; the file will be smaller."""
        return self.held

    def write(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.held += table.nbytes

    def finish(self, name: str, rows: int, stats: Mapping[int, ColumnStats]) -> Encoded:
        table = pa.concat_tables(self.tables) if self.tables else self.schema.empty_table()
        key = encrypted.new_key()
        data = pa.py_buffer(encrypted.encode(table, key, self.compression))
        return Encoded(WrittenFile(name, rows, data.size, footer_size(data), stats, encrypted.key_text(key)), data)


def new_body(schema: pa.Schema, compression: str, first: pa.Table, *, encrypt: bool) -> PlainBody | EncryptedBody:
    """The file of a schema; its first rows say what they are like, and are to be written yet."""
    return EncryptedBody(schema, compression) if encrypt else PlainBody(schema, compression, first)


def repetitive(table: pa.Table) -> list[str]:
    """The columns whose values repeat: a dictionary of all others would cost time and space.

    >>> repetitive(pa.table({"id": list(range(100)), "flag": [0, 1] * 50}))
    ['flag']
    """
    sample = table.slice(0, _SAMPLE)
    found = []
    for name, values in zip(table.column_names, sample.columns, strict=True):
        type = values.type
        if pa.types.is_nested(type):
            found += _leaf_paths(name, type)
        elif not isinstance(type, pa.BaseExtensionType) and 2 * pc.count_distinct(values).as_py() <= sample.num_rows:
            found.append(name)
    return found


def footer_size(data: Any) -> int:
    """The length that a Parquet file gives before its last four bytes."""
    length: bytes = bytes(memoryview(data)[-8:-4])
    return int.from_bytes(length, "little")


def _spooled() -> IO[bytes]:
    return cast("IO[bytes]", tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="runnel-"))  # noqa: SIM115


def _leaf_paths(name: str, type: pa.DataType) -> list[str]:
    """The leaves below a nested column as Parquet names them."""
    if pa.types.is_struct(type):
        return [path for field in type for path in _leaf_paths(f"{name}.{field.name}", field.type)]
    if pa.types.is_map(type):
        key, value = f"{name}.key_value.key", f"{name}.key_value.value"
        return [*_leaf_paths(key, type.key_type), *_leaf_paths(value, type.item_type)]
    if pa.types.is_list(type):
        return _leaf_paths(f"{name}.list.element", type.value_type)
    return [name]


def _column_sizes(data: Any, ids: Sequence[int]) -> dict[int, int]:
    """Compressed bytes of each leaf column; leaves are in the order of the statistics."""
    metadata = pq.read_metadata(data)
    sizes = dict.fromkeys(ids, 0)
    for group in range(metadata.num_row_groups):
        for index, id in enumerate(ids):
            sizes[id] += metadata.row_group(group).column(index).total_compressed_size
    return sizes
