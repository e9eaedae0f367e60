"""A client that writes its manifests by hand: what well-behaved libraries never send, and compaction."""

from __future__ import annotations

import io
import itertools
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import requests

from runnel.http.server import HttpServer
from runnel.lake.write.parquet import FIELD_IDS, numbered_field

Json = dict[str, Any]

DATA, POSITIONS, EQUALITY = 0, 1, 2
EXISTING, ADDED = 0, 1

_FILE_FIELDS: dict[str, Any] = {
    "content": "int", "file_path": "string", "file_format": "string", "record_count": "long",
    "file_size_in_bytes": "long", "equality_ids": ["null", {"type": "array", "items": "int"}],
    "content_offset": ["null", "long"], "content_size_in_bytes": ["null", "long"],
    "referenced_data_file": ["null", "string"],
}  # fmt: skip
_LIST_FIELDS: dict[str, Any] = {
    "manifest_path": "string", "manifest_length": "long", "partition_spec_id": "int", "content": "int",
    "sequence_number": "long", "min_sequence_number": "long", "added_snapshot_id": "long",
}  # fmt: skip


def _record(name: str, fields: Mapping[str, Any]) -> Json:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields.items()]}


_ENTRY = _record(
    "manifest_entry",
    {"status": "int", "snapshot_id": ["null", "long"], "data_file": _record("data_file", _FILE_FIELDS)},
)
_LISTED = _record("manifest_file", _LIST_FIELDS)


@dataclass
class Hand:
    """One table of a local lake, as one version of the format shows it."""

    http: HttpServer
    token: str
    name: str
    warehouse: str = "lake@v2"
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(random.randrange(2**40, 2**60)))

    # -- files -----------------------------------------------------------------------------------------------

    def data_file(self, rows: pa.Table, folder: str | None = None, **said: Any) -> Json:
        """Write rows as a client does, with the field ids of the table's columns, and say so in an entry."""
        ids = {each["name"]: each["id"] for each in self.schema()["fields"]} | FIELD_IDS
        fields = [numbered_field(each.name, each.type, ids[each.name]) for each in rows.schema]
        where = folder or self.metadata()["properties"]["write.data.path"]
        address = f"{where}/{uuid.uuid4()}.parquet"
        pq.write_table(rows.cast(pa.schema(fields)), local(address), store_schema=False)
        size = local(address).stat().st_size
        return {
            "content": DATA, "file_path": address, "file_format": "PARQUET", "record_count": rows.num_rows,
            "file_size_in_bytes": size, **said,
        }  # fmt: skip

    def positions(self, of: str, *places: int, **said: Any) -> Json:
        """A file of deleted positions of a data file."""
        table = pa.table({"file_path": [of] * len(places), "pos": pa.array(places, pa.int64())})
        return self.data_file(table, self.metadata()["location"] + "/data", **{"content": POSITIONS, **said})

    def manifest(self, *files: Json, content: int | None = None, status: int = ADDED) -> Json:
        """Write a manifest, and say so in an entry of a list."""
        kind = content if content is not None else int(files[0]["content"] != DATA)
        entries = [{"status": status, "snapshot_id": None, "data_file": _filled(each)} for each in files]
        address = self._put(_ENTRY, entries)
        return {
            "manifest_path": address, "manifest_length": local(address).stat().st_size, "partition_spec_id": 0,
            "content": kind, "sequence_number": 0, "min_sequence_number": 0, "added_snapshot_id": 0,
        }  # fmt: skip

    def listed(self) -> list[Json]:
        """The manifests of the newest snapshot."""
        metadata = self.metadata()
        newest = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])
        found = fastavro.reader(io.BytesIO(local(newest["manifest-list"]).read_bytes()))
        return [{key: each[key] for key in _LIST_FIELDS} for each in found]  # type: ignore[call-overload, index]

    def files(self) -> list[str]:
        """The addresses of the data files of the newest snapshot."""
        return [
            entry["data_file"]["file_path"]  # type: ignore[call-overload, index]
            for each in self.listed()
            if each["content"] == DATA
            for entry in fastavro.reader(io.BytesIO(local(each["manifest_path"]).read_bytes()))
        ]

    # -- requests --------------------------------------------------------------------------------------------

    def metadata(self) -> Json:
        answer = requests.get(self._url(f"namespaces/main/tables/{self.name}"), headers=self._headers, timeout=60)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()["metadata"]
        return found

    def schema(self) -> Json:
        found = self.metadata()
        return next(each for each in found["schemas"] if each["schema-id"] == found["current-schema-id"])

    def snapshot(self, manifests: Sequence[Json], operation: str = "append") -> list[Json]:
        """The updates that make these manifests the table's newest snapshot."""
        number = next(self._numbers)
        manifests = [{**each, "added_snapshot_id": each["added_snapshot_id"] or number} for each in manifests]
        made = {
            "snapshot-id": number, "sequence-number": 1, "timestamp-ms": int(time.time() * 1000),
            "manifest-list": self._put(_LISTED, manifests), "summary": {"operation": operation}, "schema-id": 0,
        }  # fmt: skip
        return [
            {"action": "add-snapshot", "snapshot": made},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
        ]

    def commit(self, *updates: Json, requirements: Sequence[Json] | None = None) -> requests.Response:
        """Ask for it, from the newest snapshot unless told otherwise."""
        if requirements is None:
            at = self.metadata()["current-snapshot-id"]
            requirements = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": at}]
        body = {"requirements": list(requirements), "updates": list(updates)}
        return self.post(f"namespaces/main/tables/{self.name}", body)

    def append(self, *files: Json) -> requests.Response:
        return self.commit(*self.snapshot([*self.listed(), self.manifest(*files)]))

    def replace(self, *files: Json, operation: str = "replace") -> requests.Response:
        """The table is these files, and no others."""
        return self.commit(*self.snapshot([self.manifest(*files)], operation))

    def delete(self, *lists: Json, content: int | None = None) -> requests.Response:
        made = self.manifest(*lists, content=content)
        return self.commit(*self.snapshot([*self.listed(), made], "delete"))

    def post(self, path: str, body: Any) -> requests.Response:
        return requests.post(self._url(path), json=body, headers=self._headers, timeout=60)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def _url(self, path: str) -> str:
        return f"{self.http.url}/iceberg/v1/{self.warehouse}/{path}"

    def _put(self, schema: Json, records: Sequence[Json]) -> str:
        address = f"{self.metadata()['location']}/metadata/{uuid.uuid4()}.avro"
        with local(address).open("wb") as target:
            fastavro.writer(target, schema, records)
        return address


def local(address: str) -> Path:
    return Path(address.removeprefix("file://"))


def _filled(file: Json) -> Json:
    return dict.fromkeys(_FILE_FIELDS) | file
