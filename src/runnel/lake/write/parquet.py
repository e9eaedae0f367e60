"""Writing a lake's Parquet files: columns by field id, exact statistics, a name that nobody else uses.

Runs on the driver and in Spark's tasks alike. Batches come in and whole row groups go out; files are uploaded whole.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from runnel.errors import UserError
from runnel.lake.format.model import LakeColumn, WrittenFile
from runnel.lake.format.types import TIMESTAMPS, arrow_type, leaves
from runnel.lake.store.storage import Store
from runnel.lake.write.body import ROW_GROUP, Encoded, EncryptedBody, PlainBody, new_body
from runnel.lake.write.measure import STORED_UNITS, Collector

ROW_ID = "_ducklake_internal_row_id"
SNAPSHOT_ID = "_ducklake_internal_snapshot_id"
_OWN = (ROW_ID, SNAPSHOT_ID)
FIELD_IDS = {ROW_ID: 2147483540, SNAPSHOT_ID: 2147483539, "file_path": 2147483546, "pos": 2147483545}

COMPRESSIONS = frozenset({"zstd", "snappy", "gzip", "none"})
TARGET_SIZE = 128 * 1024 * 1024
_ENCRYPTED_SIZE = 64 * 1024 * 1024
"""Rows of an encrypted file are in memory until DuckDB has them all: so many bytes of them, before compression."""
_GROUP_BYTES = 32 * 1024 * 1024
"""Long rows make a row group of fewer."""
_UNWRITABLE = frozenset({"int128", "uint128", "interval", "timetz", "time_ns", "variant", "geometry"})


@dataclass(frozen=True, slots=True)
class Form:
    """What a table's files are like."""

    columns: tuple[LakeColumn, ...]
    compression: str = "zstd"
    encrypt: bool = False


def file_name(kind: str = "") -> str:
    """A name for a new file; names sort by time of creation. `kind` says what is in it, if it is not rows."""
    moment = time.time_ns() // 1_000_000
    number = moment << 80 | 0x7 << 76 | int.from_bytes(os.urandom(10)) & ~(0xF << 76) & ((1 << 80) - 1)
    number = number & ~(0x3 << 62) | 0x2 << 62
    return f"ducklake-{uuid.UUID(int=number)}{'-' if kind else ''}{kind}.parquet"


def write_file(
    store: Store, folder: str, form: Form, batches: Iterable[pa.RecordBatch], name: str | None = None
) -> WrittenFile:
    """Write all batches to one file below `folder`, the table's. See `encode_files` for the batches' form."""
    name = name or file_name()
    (encoded,) = encode_files(form, batches, target_size=None, name=lambda: name, empty=True)
    return encoded.upload(store, folder)


def write_files(
    store: Store,
    folder: str,
    form: Form,
    batches: Iterable[pa.RecordBatch],
    *,
    target_size: int = TARGET_SIZE,
    name: Callable[[], str] = file_name,
) -> list[WrittenFile]:
    """Write batches to as many files as the target size asks for; no rows, no file."""
    made = encode_files(form, batches, target_size=target_size, name=name)
    return [encoded.upload(store, folder) for encoded in made]


def encode_files(
    form: Form,
    batches: Iterable[pa.RecordBatch],
    *,
    target_size: int | None = TARGET_SIZE,
    name: Callable[[], str] = file_name,
    empty: bool = False,
) -> Iterator[Encoded]:
    """Make files of batches whose first columns are the table's, in order; types are cast where Arrow can.

    Columns named like ROW_ID and SNAPSHOT_ID may follow: they are kept as DuckLake's own.
    """
    check_compression(form.compression)
    if target_size is not None and form.encrypt:
        target_size = min(target_size, _ENCRYPTED_SIZE)
    file: _File | None = None
    for group in _groups(batches):
        file = file or _File(form, group.schema)
        file.add(group)
        if target_size is not None and file.size >= target_size:
            yield file.close(name())
            file = None
    if file is None and empty:
        file = _File(form, pa.schema([pa.field(column.name, storage_type(column)) for column in form.columns]))
    if file is not None:
        yield file.close(name())


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
    return numbered_field(column.name, storage_type(column), column.id)


class _File:
    """One file in the making."""

    def __init__(self, form: Form, given: pa.Schema) -> None:
        extra = [numbered_field(name, pa.int64(), FIELD_IDS[name]) for name in _OWN if name in given.names]
        self.form = form
        self.schema = pa.schema([*(storage_field(column) for column in form.columns), *extra])
        self.extra = [field.name for field in extra]
        self.statistics = Collector(form.columns)
        self.body: PlainBody | EncryptedBody | None = None

    @property
    def size(self) -> int:
        return self.body.size if self.body is not None else 0

    def add(self, group: pa.Table) -> None:
        count = len(self.form.columns)
        arrays = [_stored(group.column(index), self.schema.field(index).type) for index in range(count)]
        arrays += [group.column(name).cast(pa.int64()) for name in self.extra]
        table = pa.table(arrays, schema=self.schema)
        for batch in table.to_batches():
            self.statistics.add(batch)
        self._opened(table).write(table)

    def _opened(self, first: pa.Table) -> PlainBody | EncryptedBody:
        if self.body is None:
            self.body = new_body(self.schema, self.form.compression, first, encrypt=self.form.encrypt)
        return self.body

    def close(self, name: str) -> Encoded:
        return self._opened(self.schema.empty_table()).finish(name, self.statistics.rows, self.statistics.result())


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together to whole row groups: small ones would make a file that is slow to read."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROW_GROUP or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
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


def numbered_field(name: str, type: pa.DataType, id: int) -> pa.Field:
    """A field by whose number readers find its column."""
    return pa.field(name, type, metadata={"PARQUET:field_id": str(id)})
