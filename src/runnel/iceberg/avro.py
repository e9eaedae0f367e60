"""Manifests and manifest lists: the Avro files of Iceberg's specification, in versions 2 and 3.

Records are encoded here, by hand: a library takes half a second for the bounds of a thousand files, and an encoded
record can be kept and written again into another manifest as it is.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from runnel.iceberg.partitions import Spec, Value

DATA, DELETES = 0, 1
POSITION_DELETES = 1
EXISTING, ADDED = 0, 1

_SHORT = 16_384
"""Bytes that are not compressed."""

_SOME, _NONE, _END = b"\x02", b"\x00", b"\x00"


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """A manifest that was written, as manifest lists name it."""

    path: str
    length: int
    spec_id: int
    content: int
    sequence: int
    min_sequence: int
    added_files: int
    added_rows: int
    existing_files: int
    existing_rows: int
    first_row_id: int | None
    version: int
    record: bytes = field(init=False, repr=False)
    """As manifest lists have it: it is in those of many snapshots."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "record", self._encoded())

    def _encoded(self) -> bytes:
        parts = [
            text(self.path), long(self.length), long(self.spec_id), long(self.content), long(self.sequence),
            long(self.min_sequence), long(self.sequence), long(self.added_files), long(self.existing_files), long(0),
            long(self.added_rows), long(self.existing_rows), long(0), _NONE, _NONE,
        ]  # fmt: skip
        if self.version >= 3:
            parts.append(_NONE if self.first_row_id is None else _SOME + long(self.first_row_id))
        return b"".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """The part of a manifest's entry that says what a file is."""

    content: int = DATA
    path: str
    format: str = "PARQUET"
    partition: bytes
    rows: int
    size: int
    counts: Mapping[int, int]
    nulls: Mapping[int, int]
    lower: Mapping[int, bytes]
    upper: Mapping[int, bytes]
    referenced: str | None = None
    first_row_id: int | None = None
    offset: int | None = None
    length: int | None = None

    def encoded(self, version: int) -> bytes:
        parts = [
            long(self.content), text(self.path), text(self.format), self.partition, long(self.rows), long(self.size),
            _numbers(self.counts), _numbers(self.nulls), _bounds(self.lower), _bounds(self.upper),
            _NONE if self.referenced is None else _SOME + text(self.referenced),
        ]  # fmt: skip
        if version >= 3:
            parts += [
                _NONE if number is None else _SOME + long(number)
                for number in (self.first_row_id, self.offset, self.length)
            ]
        return b"".join(parts)


def encode_entry(status: int, sequence: int, file: bytes) -> bytes:
    """An entry of a manifest; snapshots and sequence numbers are the same numbers here."""
    number = _SOME + long(sequence)
    return long(status) + number * 3 + file


def encode_partition(spec: Spec, values: Mapping[str, Value]) -> bytes:
    """A file's partition values."""
    parts = []
    for each in spec.fields:
        match values.get(each.name):
            case None:
                parts.append(_NONE)
            case bool(value):
                parts.append(_SOME + (b"\x01" if value else b"\x00"))
            case int(value):
                parts.append(_SOME + long(value))
            case str(value):
                parts.append(_SOME + text(value))
    return b"".join(parts)


def write_manifest(
    entries: Sequence[bytes], version: int, content: int, spec: Spec, schema: str, schema_id: int
) -> bytes:
    """A manifest with these entries. The schema is given as JSON, since it is the same for many."""
    return _container(_manifest_header(version, content, spec, schema, schema_id), entries)


def write_manifest_list(manifests: Iterable[Manifest], version: int, snapshot: int, parent: int | None) -> bytes:
    """The list of a snapshot's manifests."""
    metadata = {
        "snapshot-id": str(snapshot),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(snapshot),
    }
    return _container(_list_header(version).with_more(metadata), [each.record for each in manifests])


# -- the encoding ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def long(number: int) -> bytes:
    """An int or long of Avro: the sign in the last bit, seven bits to a byte.

    >>> long(0), long(-1), long(64), long(1_000_000)
    (b'\\x00', b'\\x01', b'\\x80\\x01', b'\\x80\\x89z')
    """
    rest = (number << 1) ^ (number >> 63)
    made = bytearray()
    while rest > 127:
        made.append(rest & 127 | 128)
        rest >>= 7
    made.append(rest)
    return bytes(made)


def text(value: str) -> bytes:
    encoded = value.encode()
    return long(len(encoded)) + encoded


def _numbers(values: Mapping[int, int]) -> bytes:
    if not values:
        return _SOME + _END
    items = b"".join([long(key) + long(value) for key, value in values.items()])
    return _SOME + long(len(values)) + items + _END


def _bounds(values: Mapping[int, bytes]) -> bytes:
    if not values:
        return _SOME + _END
    items = b"".join([long(key) + long(len(value)) + value for key, value in values.items()])
    return _SOME + long(len(values)) + items + _END


@dataclass(frozen=True, slots=True)
class _Header:
    """What a file says of itself: its schema, and more by name. Most of it is the same in very many files."""

    count: int
    entries: bytes
    marker: bytes
    """What ends a block; the same for the same header."""

    @classmethod
    def of(cls, schema: Any, metadata: Mapping[str, str]) -> _Header:
        return cls(0, b"", b"").with_more({"avro.schema": json.dumps(schema), **metadata})

    def with_more(self, metadata: Mapping[str, str]) -> _Header:
        more = b"".join([text(key) + text(value) for key, value in metadata.items()])
        marker = hashlib.md5(self.marker + more, usedforsecurity=False).digest()
        return _Header(self.count + len(metadata), self.entries + more, marker)


def _container(header: _Header, records: Sequence[bytes]) -> bytes:
    """An Avro file of one block. The same contents make the same bytes."""
    body = b"".join(records)
    # What is short is read as fast as it is, and there are very many.
    squeezed = len(body) > _SHORT
    codec = _DEFLATE if squeezed else _PLAIN
    whole = [b"Obj\x01", long(header.count + 1), header.entries, codec, _END, header.marker]
    if records:
        if squeezed:
            squeezer = zlib.compressobj(1, zlib.DEFLATED, -15)
            body = squeezer.compress(body) + squeezer.flush()
        whole += [long(len(records)), long(len(body)), body, header.marker]
    return b"".join(whole)


@lru_cache(maxsize=256)
def _manifest_header(version: int, content: int, spec: Spec, schema: str, schema_id: int) -> _Header:
    metadata = {
        "schema": schema,
        "schema-id": str(schema_id),
        "partition-spec": json.dumps(spec.as_json()["fields"]),
        "partition-spec-id": str(spec.id),
        "format-version": str(version),
        "content": "deletes" if content == DELETES else "data",
    }
    return _Header.of(_entry(version, [(each.id, each.name, each.avro) for each in spec.fields]), metadata)


@lru_cache
def _list_header(version: int) -> _Header:
    return _Header.of(_list(version), {"format-version": str(version)})


_PLAIN, _DEFLATE = (text("avro.codec") + text(codec) for codec in ("null", "deflate"))

# -- the schemas -----------------------------------------------------------------------------------------------


def _field(id: int, name: str, type_: Any, *, optional: bool = False) -> dict[str, Any]:
    made = {"name": name, "type": ["null", type_] if optional else type_, "field-id": id}
    return {**made, "default": None} if optional else made


def _map(key: int, value: int, type_: str) -> dict[str, Any]:
    record = {
        "type": "record",
        "name": f"k{key}_v{value}",
        "fields": [_field(key, "key", "int"), _field(value, "value", type_)],
    }
    return {"type": "array", "logicalType": "map", "items": record}


def _entry(version: int, partition_fields: Sequence[tuple[int, str, str]]) -> dict[str, Any]:
    partition = {
        "type": "record",
        "name": "r102",
        "fields": [_field(id, name, avro, optional=True) for id, name, avro in partition_fields],
    }
    fields = [
        _field(134, "content", "int"),
        _field(100, "file_path", "string"),
        _field(101, "file_format", "string"),
        _field(102, "partition", partition),
        _field(103, "record_count", "long"),
        _field(104, "file_size_in_bytes", "long"),
        _field(109, "value_counts", _map(119, 120, "long"), optional=True),
        _field(110, "null_value_counts", _map(121, 122, "long"), optional=True),
        _field(125, "lower_bounds", _map(126, 127, "bytes"), optional=True),
        _field(128, "upper_bounds", _map(129, 130, "bytes"), optional=True),
        _field(143, "referenced_data_file", "string", optional=True),
    ]
    if version >= 3:
        fields += [
            _field(142, "first_row_id", "long", optional=True),
            _field(144, "content_offset", "long", optional=True),
            _field(145, "content_size_in_bytes", "long", optional=True),
        ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field(0, "status", "int"),
            _field(1, "snapshot_id", "long", optional=True),
            _field(3, "sequence_number", "long", optional=True),
            _field(4, "file_sequence_number", "long", optional=True),
            _field(2, "data_file", {"type": "record", "name": "r2", "fields": fields}),
        ],
    }


def _list(version: int) -> dict[str, Any]:
    summary = {
        "type": "record",
        "name": "r508",
        "fields": [
            _field(509, "contains_null", "boolean"),
            _field(518, "contains_nan", "boolean", optional=True),
            _field(510, "lower_bound", "bytes", optional=True),
            _field(511, "upper_bound", "bytes", optional=True),
        ],
    }
    fields = [
        _field(500, "manifest_path", "string"),
        _field(501, "manifest_length", "long"),
        _field(502, "partition_spec_id", "int"),
        _field(517, "content", "int"),
        _field(515, "sequence_number", "long"),
        _field(516, "min_sequence_number", "long"),
        _field(503, "added_snapshot_id", "long"),
        _field(504, "added_files_count", "int"),
        _field(505, "existing_files_count", "int"),
        _field(506, "deleted_files_count", "int"),
        _field(512, "added_rows_count", "long"),
        _field(513, "existing_rows_count", "long"),
        _field(514, "deleted_rows_count", "long"),
        _field(507, "partitions", {"type": "array", "items": summary, "element-id": 508}, optional=True),
        _field(519, "key_metadata", "bytes", optional=True),
    ]
    if version >= 3:
        fields.append(_field(520, "first_row_id", "long", optional=True))
    return {"type": "record", "name": "manifest_file", "fields": fields}
