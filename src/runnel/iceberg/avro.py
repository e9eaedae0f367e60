"""Manifests and manifest lists: the Avro files of Iceberg's specification, in versions 2 and 3."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro

from runnel.iceberg.partitions import Spec

DATA, DELETES = 0, 1
POSITION_DELETES = 1
EXISTING, ADDED = 0, 1

Record = Mapping[str, Any]
_CODEC = "deflate"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was written, as manifest lists name it."""

    path: str
    length: int
    spec_id: int
    content: int
    sequence: int
    min_sequence: int
    snapshot: int
    added_files: int
    added_rows: int
    existing_files: int
    existing_rows: int
    first_row_id: int | None

    def as_record(self) -> dict[str, Any]:
        return {
            "manifest_path": self.path,
            "manifest_length": self.length,
            "partition_spec_id": self.spec_id,
            "content": self.content,
            "sequence_number": self.sequence,
            "min_sequence_number": self.min_sequence,
            "added_snapshot_id": self.snapshot,
            "added_files_count": self.added_files,
            "existing_files_count": self.existing_files,
            "deleted_files_count": 0,
            "added_rows_count": self.added_rows,
            "existing_rows_count": self.existing_rows,
            "deleted_rows_count": 0,
            "partitions": None,
            "key_metadata": None,
            "first_row_id": self.first_row_id,
        }


def write_manifest(
    entries: Sequence[Record], version: int, content: int, spec: Spec, schema: Mapping[str, Any]
) -> bytes:
    """A manifest with these entries."""
    metadata = {
        "schema": json.dumps(schema),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": json.dumps(spec.as_json()["fields"]),
        "partition-spec-id": str(spec.id),
        "format-version": str(version),
        "content": "deletes" if content == DELETES else "data",
    }
    return _write(_entry_schema(version, spec), entries, metadata)


def write_manifest_list(manifests: Iterable[Manifest], version: int, snapshot: int, parent: int | None) -> bytes:
    """The list of a snapshot's manifests."""
    metadata = {
        "snapshot-id": str(snapshot),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(snapshot),
        "format-version": str(version),
    }
    return _write(_list_schema(version), [each.as_record() for each in manifests], metadata)


def _write(schema: Any, records: Sequence[Record], metadata: Mapping[str, str]) -> bytes:
    target = io.BytesIO()
    # The same contents make the same bytes.
    marker = hashlib.md5(json.dumps(metadata).encode(), usedforsecurity=False).digest()
    fastavro.writer(target, schema, records, codec=_CODEC, metadata=dict(metadata), sync_marker=marker)
    return target.getvalue()


_parsed: dict[Any, Any] = {}


def _entry_schema(version: int, spec: Spec) -> Any:
    key = version, tuple((each.id, each.name, each.avro) for each in spec.fields)
    if key not in _parsed:
        _parsed[key] = fastavro.parse_schema(_entry(version, spec))
    return _parsed[key]


def _list_schema(version: int) -> Any:
    if version not in _parsed:
        _parsed[version] = fastavro.parse_schema(_list(version))
    return _parsed[version]


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


def _entry(version: int, spec: Spec) -> dict[str, Any]:
    partition = {
        "type": "record",
        "name": "r102",
        "fields": [_field(each.id, each.name, each.avro, optional=True) for each in spec.fields],
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
