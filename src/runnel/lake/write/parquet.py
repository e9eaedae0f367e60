"""Writing a lake's Parquet files: columns by field id, exact statistics, a name that nobody else uses.

Runs on the driver and in Spark's tasks alike. Files are made in memory (a target size bounds them) and uploaded whole.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runnel.errors import UserError
from runnel.lake.format import encrypted
from runnel.lake.format.model import ColumnStats, LakeColumn, WrittenFile
from runnel.lake.format.types import TIMESTAMPS, arrow_type, leaves
from runnel.lake.store.storage import Store
from runnel.lake.write.measure import STORED_UNITS, Collector

ROW_ID = "_ducklake_internal_row_id"
SNAPSHOT_ID = "_ducklake_internal_snapshot_id"
FIELD_IDS = {ROW_ID: 2147483540, SNAPSHOT_ID: 2147483539, "file_path": 2147483646, "pos": 2147483645}

COMPRESSIONS = frozenset({"zstd", "snappy", "gzip", "none"})
ROW_GROUP = 122_880
TARGET_SIZE = 128 * 1024 * 1024
_SAMPLE = 10_000
"""Rows that are looked at to see whether a column's values repeat."""
_UNWRITABLE = frozenset({"int128", "uint128", "interval", "timetz", "time_ns", "variant", "geometry"})


@dataclass(frozen=True, slots=True)
class Encoded:
    """A file's bytes and what the catalog will say about it; not uploaded yet."""

    file: WrittenFile
    data: pa.Buffer


def file_name(kind: str = "") -> str:
    """A name for a new file; names sort by time of creation. `kind` is "" or "delete"."""
    moment = time.time_ns() // 1_000_000
    number = moment << 80 | 0x7 << 76 | int.from_bytes(os.urandom(10)) & ~(0xF << 76) & ((1 << 80) - 1)
    number = number & ~(0x3 << 62) | 0x2 << 62
    return f"ducklake-{uuid.UUID(int=number)}{'-' if kind else ''}{kind}.parquet"


def write_file(
    store: Store,
    folder: str,
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[LakeColumn],
    *,
    compression: str = "zstd",
    encrypt: bool = False,
    name: str | None = None,
) -> WrittenFile:
    """Write all batches to one file below `folder`, the table's. See `encode_files` for the batches' form."""
    name = name or file_name()
    (encoded,) = encode_files(
        batches, columns, compression=compression, encrypt=encrypt, target_size=None, name=lambda: name, empty=True
    )
    store.put(folder + name, memoryview(encoded.data))
    return encoded.file


def write_files(
    store: Store,
    folder: str,
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[LakeColumn],
    *,
    compression: str = "zstd",
    encrypt: bool = False,
    target_size: int = TARGET_SIZE,
    name: Callable[[], str] = file_name,
) -> list[WrittenFile]:
    """Write batches to as many files as the target size asks for; no rows, no file."""
    written = []
    for encoded in encode_files(
        batches, columns, compression=compression, encrypt=encrypt, target_size=target_size, name=name
    ):
        store.put(folder + encoded.file.path, memoryview(encoded.data))
        written.append(encoded.file)
    return written


def encode_files(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[LakeColumn],
    *,
    compression: str = "zstd",
    encrypt: bool = False,
    target_size: int | None = TARGET_SIZE,
    name: Callable[[], str] = file_name,
    empty: bool = False,
) -> Iterator[Encoded]:
    """Make files of batches whose first columns are the table's, in order; types are cast where Arrow can.

    Columns named like ROW_ID and SNAPSHOT_ID may follow: they are kept as DuckLake's own.
    """
    check_compression(compression)
    file: _File | None = None
    for group in _groups(batches):
        file = file or _File(columns, group.schema, compression, encrypt)
        file.add(group)
        if target_size is not None and file.size >= target_size:
            yield file.close(name())
            file = None
    if file is None and empty:
        nothing = pa.schema([pa.field(column.name, storage_type(column)) for column in columns])
        file = _File(columns, nothing, compression, encrypt)
    if file is not None:
        yield file.close(name())


def write_delete_file(
    store: Store,
    folder: str,
    data_file: str,
    deletions: Mapping[int, int],
    *,
    encrypt: bool = False,
    name: str | None = None,
) -> WrittenFile:
    """Write all deleted positions of a data file (its full path), each with the snapshot that deleted it."""
    encoded = encode_delete_file(data_file, deletions, encrypt=encrypt, name=name)
    store.put(folder + encoded.file.path, memoryview(encoded.data))
    return encoded.file


def encode_delete_file(
    data_file: str, deletions: Mapping[int, int], *, encrypt: bool = False, name: str | None = None
) -> Encoded:
    """As `write_delete_file`, without the upload."""
    positions = sorted(deletions)
    schema = pa.schema(
        [
            _field("file_path", pa.string(), FIELD_IDS["file_path"]),
            _field("pos", pa.int64(), FIELD_IDS["pos"]),
            _field(SNAPSHOT_ID, pa.int64(), FIELD_IDS[SNAPSHOT_ID]),
        ]
    )
    table = pa.table(
        [
            pa.array([data_file] * len(positions), pa.string()),
            pa.array(positions, pa.int64()),
            pa.array([deletions[position] for position in positions], pa.int64()),
        ],
        schema=schema,
    )
    sink = _Encrypted(schema, "zstd") if encrypt else _Plain(schema, "zstd", repetitive(table))
    sink.write(table)
    return sink.finish(name or file_name("delete"), len(positions), {})


def check_compression(compression: str) -> None:
    if compression not in COMPRESSIONS:
        raise UserError(
            f"Parquet files cannot be compressed with {compression}",
            hint=f"Choose one of {', '.join(sorted(COMPRESSIONS))}.",
        )


def can_write(columns: Sequence[LakeColumn]) -> bool:
    """Whether files of these columns can be written here: a few rare types, and uuids below others, need DuckDB."""
    return not any(
        leaf.type in _UNWRITABLE or (leaf.type == "uuid" and leaf is not column)
        for column in columns
        for leaf in leaves(column)
    )


def storage_type(column: LakeColumn) -> pa.DataType:
    """The Arrow type that makes the Parquet type which DuckLake expects, with field ids below it."""
    match column.type:
        case "struct":
            return pa.struct([storage_field(child) for child in column.children])
        case "list":
            return pa.list_(storage_field(column.children[0]))
        case "map":
            key, value = column.children
            return pa.map_(storage_field(key).with_nullable(False), storage_field(value))
        case "uuid":
            return pa.uuid()
        case unwritable if unwritable in _UNWRITABLE:
            raise UserError(
                f"column {column.name} of type {column.type} cannot be written to Parquet",
                hint="Cast it to text, or let DuckDB write it.",
            )
    if column.type in TIMESTAMPS:
        return pa.timestamp(STORED_UNITS.get(column.type, "us"))
    return arrow_type(column)


def storage_field(column: LakeColumn) -> pa.Field:
    return _field(column.name, storage_type(column), column.id)


class _File:
    """One file in the making."""

    def __init__(self, columns: Sequence[LakeColumn], given: pa.Schema, compression: str, encrypt: bool) -> None:
        extra = [_field(name, pa.int64(), FIELD_IDS[name]) for name in (ROW_ID, SNAPSHOT_ID) if name in given.names]
        self.schema = pa.schema([*(storage_field(column) for column in columns), *extra])
        self.columns = columns
        self.extra = [field.name for field in extra]
        self.statistics = Collector(columns)
        self.compression, self.encrypt = compression, encrypt
        self.sink: _Plain | _Encrypted | None = None

    @property
    def size(self) -> int:
        return self.sink.size if self.sink is not None else 0

    def add(self, group: pa.Table) -> None:
        arrays = [_stored(group.column(index), self.schema.field(index).type) for index in range(len(self.columns))]
        arrays += [group.column(name).cast(pa.int64()) for name in self.extra]
        table = pa.table(arrays, schema=self.schema)
        for batch in table.to_batches():
            self.statistics.add(batch)
        self._opened(table).write(table)

    def _opened(self, first: pa.Table) -> _Plain | _Encrypted:
        if self.sink is None and self.encrypt:
            self.sink = _Encrypted(self.schema, self.compression)
        elif self.sink is None:
            self.sink = _Plain(self.schema, self.compression, repetitive(first))
        return self.sink

    def close(self, name: str) -> Encoded:
        return self._opened(self.schema.empty_table()).finish(name, self.statistics.rows, self.statistics.result())


class _Plain:
    """Parquet by pyarrow, into memory."""

    def __init__(self, schema: pa.Schema, compression: str, dictionaries: list[str]) -> None:
        self.buffer = pa.BufferOutputStream()
        self.writer = pq.ParquetWriter(
            self.buffer,
            schema,
            compression=compression,
            use_dictionary=dictionaries,
            store_schema=False,
            store_decimal_as_integer=True,
        )

    @property
    def size(self) -> int:
        return int(self.buffer.tell())

    def write(self, table: pa.Table) -> None:
        self.writer.write_table(table, row_group_size=ROW_GROUP)

    def finish(self, name: str, rows: int, stats: Mapping[int, ColumnStats]) -> Encoded:
        self.writer.close()
        data = self.buffer.getvalue()
        sizes = _column_sizes(data, list(stats))
        stats = {id: replace(each, size=sizes.get(id)) for id, each in stats.items()}
        return Encoded(WrittenFile(name, rows, data.size, footer_size(data), stats), data)


class _Encrypted:
    """Encrypted Parquet by DuckDB, in one go at the end."""

    def __init__(self, schema: pa.Schema, compression: str) -> None:
        self.schema = schema
        self.compression = compression
        self.tables: list[pa.Table] = []

    @property
    def size(self) -> int:
        # Before compression; DuckDB writes the file at the end. Half of it is a fair guess.
        size: int = sum(table.nbytes for table in self.tables)
        return size // 2

    def write(self, table: pa.Table) -> None:
        self.tables.append(table)

    def finish(self, name: str, rows: int, stats: Mapping[int, ColumnStats]) -> Encoded:
        table = pa.concat_tables(self.tables) if self.tables else self.schema.empty_table()
        key = encrypted.new_key()
        data = pa.py_buffer(encrypted.encode(table, key, self.compression))
        return Encoded(WrittenFile(name, rows, data.size, footer_size(data), stats, encrypted.key_text(key)), data)


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


def footer_size(data: Any) -> int:
    """The length that a Parquet file gives before its last four bytes."""
    length: bytes = bytes(memoryview(data)[-8:-4])
    return int.from_bytes(length, "little")


def _column_sizes(data: pa.Buffer, ids: Sequence[int]) -> dict[int, int]:
    """Compressed bytes of each leaf column; leaves are in the order of the statistics."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    sizes = dict.fromkeys(ids, 0)
    for group in range(metadata.num_row_groups):
        for index, id in enumerate(ids):
            sizes[id] += metadata.row_group(group).column(index).total_compressed_size
    return sizes


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together to whole row groups: small ones would make a file that is slow to read."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROW_GROUP:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _stored(values: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    if values.type == type:
        return values
    if type == pa.uuid():
        return _uuids(values)
    return values.cast(type)


def _uuids(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as the sixteen bytes of Parquet's uuid."""
    if not pa.types.is_string(values.type) and not pa.types.is_large_string(values.type):
        return values.cast(pa.binary(16)).cast(pa.uuid())
    chunks = []
    for chunk in values.chunks:
        digits = "".join(chunk.fill_null("0" * 32).to_pylist()).replace("-", "")
        validity = chunk.is_valid()
        stored = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(chunk), [_bitmap(validity), pa.py_buffer(bytes.fromhex(digits))]
        )
        chunks.append(pa.ExtensionArray.from_storage(pa.uuid(), stored))
    return pa.chunked_array(chunks, pa.uuid())


def _bitmap(flags: pa.BooleanArray) -> pa.Buffer:
    return pa.array(flags.to_pylist(), pa.bool_()).buffers()[1]


def _field(name: str, type: pa.DataType, id: int) -> pa.Field:
    return pa.field(name, type, metadata={"PARQUET:field_id": str(id)})
