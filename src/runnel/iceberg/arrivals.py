"""What a client's snapshot is compared with the head: files that came and went, positions that were deleted.

A client writes a list of manifests: ours, as far as they are as they were, and its own. Only its own are read. The rest
is a comparison of sets, so it does not matter how the client got there, or by how many snapshots.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runnel.iceberg.avro import DATA, POSITION_DELETES
from runnel.iceberg.errors import bad_request
from runnel.iceberg.masks import Ints, Key
from runnel.iceberg.puffin import read_vector
from runnel.iceberg.standing import Standing
from runnel.lake.format.model import DataFile
from runnel.lake.read.input import Tally, open_parquet
from runnel.lake.store.beside import uri
from runnel.lake.store.storage import MissingFile, open_store

_EXISTING, _GONE = 0, 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as a client's manifest lists it."""

    path: str
    format: str
    rows: int
    size: int
    spec: int
    partition: tuple[Any, ...]
    offset: int | None = None
    length: int | None = None
    referenced: str | None = None


@dataclass(slots=True)
class Arrivals:
    """The difference between a client's snapshot and the head."""

    added: list[Entry] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    dead: dict[str, Ints] = field(default_factory=dict)
    """Positions that new lists name, by the address of the data file."""
    uncovered: set[int] = field(default_factory=set)
    """Files that stay and whose lists of deleted positions went."""
    lists: list[Entry] = field(default_factory=list)
    """The client's own files of deleted positions."""


def arrivals(standing: Standing, manifest_list: str | None) -> Arrivals:
    """Compare. Without a list the table is emptied."""
    found = Arrivals()
    live: set[int] = set()
    keys: set[Key] = set()
    for manifest in _records(standing, manifest_list) if manifest_list else ():
        path, content = manifest["manifest_path"], manifest.get("content") or DATA
        if content == DATA and path in standing.manifests:
            live.update(standing.manifests[path])
        elif content != DATA and path in standing.delete_manifests:
            keys.update(standing.delete_manifests[path])
        else:
            for content, entry in _entries(standing, path, manifest["partition_spec_id"]):
                if content == DATA:
                    _data(standing, entry, found, live)
                else:
                    _deletes(standing, entry, content, found, keys)
    found.removed = sorted(set(standing.files.values()) - live)
    before = {key[0] for manifest in standing.delete_manifests.values() for key in manifest}
    found.uncovered = before - {key[0] for key in keys} - set(found.removed)
    found.dead = {path: np.unique(np.concatenate(parts)) for path, parts in _positions(standing, found.lists).items()}
    return found


def appended(standing: Standing, manifest_list: str, snapshots: set[int]) -> Arrivals | None:
    """What these snapshots of a client added, if that is all they did: it is the same on any later head."""
    found = Arrivals()
    for manifest in _records(standing, manifest_list):
        path, content = manifest["manifest_path"], manifest.get("content") or DATA
        if path in standing.manifests or path in standing.delete_manifests:
            continue
        own = manifest.get("added_snapshot_id") in snapshots
        for record in _records(standing, path) if own else ():
            if record["status"] == _EXISTING or record.get("snapshot_id") not in {None, *snapshots}:
                continue
            entry = _entry(record, manifest["partition_spec_id"])
            if content != DATA or record["status"] == _GONE or entry.path in standing.files:
                return None
            _data(standing, entry, found, set())
    return found


def _data(standing: Standing, entry: Entry, found: Arrivals, live: set[int]) -> None:
    id = standing.files.get(entry.path)
    if id is not None:
        live.add(id)
    elif entry.format != "PARQUET":
        raise bad_request(f"Data files are Parquet here, not {entry.format}: set write.format.default.")
    else:
        found.added.append(entry)


def _deletes(standing: Standing, entry: Entry, content: int, found: Arrivals, keys: set[Key]) -> None:
    if content != POSITION_DELETES:
        raise bad_request("Equality deletes are not supported: delete by positions, or rewrite files (copy-on-write).")
    known = standing.deletes.get((entry.path, entry.offset))
    if known is not None:
        keys.add(known)
    else:
        found.lists.append(entry)


def local_form(standing: Standing, address: str) -> str:
    """The path of a file that a client names. It must be among the table's own files: nobody reads others' this way."""
    path = address
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    folders = (standing.table.path, _path_of(standing.location) + "/")
    if not any(path.startswith(folder) for folder in folders) or "/../" in path or "/./" in path:
        raise bad_request(
            f"The file {address} is not in the folders of the table: see its location and write.data.path."
        )
    return path


def _path_of(address: str) -> str:
    return address.removeprefix("file://").rstrip("/")


def _records(standing: Standing, address: str) -> list[dict[str, Any]]:
    """The records of an Avro file."""
    path = local_form(standing, address)
    with of_client(address):
        data = open_store(path.rpartition("/")[0], standing.lake.options).get(path)
        return list(fastavro.reader(io.BytesIO(data)))  # type: ignore[arg-type]


@contextmanager
def of_client(address: str) -> Iterator[None]:
    """A file that a client has written is read: it may be anything. A store that does not answer is another matter."""
    try:
        yield
    except MissingFile as error:
        raise bad_request(f"The file {address} is not there.") from error
    except (OSError, ValueError, EOFError, KeyError, TypeError, IndexError, pa.ArrowException) as error:
        raise bad_request(f"The file {address} cannot be read: {type(error).__name__}.") from error


def _entries(standing: Standing, address: str, spec: int) -> Iterator[tuple[int, Entry]]:
    for record in _records(standing, address):
        if record["status"] != _GONE:
            yield record["data_file"].get("content") or DATA, _entry(record, spec)


def _entry(record: Mapping[str, Any], spec: int) -> Entry:
    file = record["data_file"]
    return Entry(
        file["file_path"], str(file["file_format"]).upper(), file["record_count"], file["file_size_in_bytes"], spec,
        tuple((file.get("partition") or {}).values()), file.get("content_offset"), file.get("content_size_in_bytes"),
        file.get("referenced_data_file"),
    )  # fmt: skip


def _positions(standing: Standing, lists: list[Entry]) -> Mapping[str, list[Ints]]:
    """What the client's own lists name, by the address of the data file."""
    found: dict[str, list[Ints]] = {}
    for entry in lists:
        path = local_form(standing, entry.path)
        with of_client(entry.path):
            if entry.format == "PUFFIN":
                if entry.offset is None or entry.length is None or entry.referenced is None:
                    raise bad_request("A deletion vector must say where it is and what it is for.")
                store = open_store(path.rpartition("/")[0], standing.lake.options)
                vector = read_vector(store.get_range(path, entry.offset, entry.length))
                found.setdefault(entry.referenced, []).append(vector)
            elif entry.format == "PARQUET":
                for data_file, positions in _position_deletes(standing, path, entry):
                    found.setdefault(data_file, []).append(positions)
            else:
                raise bad_request(f"Deleted positions in {entry.format} are not supported.")
    return found


def _position_deletes(standing: Standing, path: str, entry: Entry) -> Iterator[tuple[str, Ints]]:
    size = open_store(path.rpartition("/")[0], standing.lake.options).size(path)
    stored = DataFile(-1, path, 0, None, entry.rows, size, None, None)
    with open_parquet(stored, standing.lake.options, Tally()) as opened:
        table = opened.read(["file_path", "pos"])
    paths = table.column("file_path").combine_chunks()
    for name in pc.unique(paths).to_pylist():
        chosen = table.filter(pc.equal(paths, name)).column("pos")
        yield uri(str(name)), np.asarray(chosen.to_numpy(), dtype=np.int64)
