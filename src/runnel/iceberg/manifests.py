"""Manifests and lists of unseen positions: each is written once, and kept in mind for the snapshots that share it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from runnel.iceberg import avro
from runnel.iceberg.avro import FileRecord, Manifest
from runnel.iceberg.entries import Placed, place_files
from runnel.iceberg.facts import Facts
from runnel.iceberg.groups import Group
from runnel.iceberg.masks import Ints, Key, Mask
from runnel.iceberg.partitions import Spec
from runnel.iceberg.puffin import write_puffin
from runnel.iceberg.schema import Shown
from runnel.iceberg.shelf import Shelf
from runnel.lake.format.model import Lake, LakeTable
from runnel.lake.store.beside import uri
from runnel.lake.write.parquet import FIELD_IDS, numbered_field

Connection = psycopg.Connection[Any]

KEPT = 50_000
"""So many encoded files are kept for the next manifest."""
_POSITIONS = pa.schema(
    [
        numbered_field("file_path", pa.string(), FIELD_IDS["file_path"]).with_nullable(False),
        numbered_field("pos", pa.int64(), FIELD_IDS["pos"]).with_nullable(False),
    ]
)


@dataclass(frozen=True, slots=True)
class Deletes:
    """Unseen positions that were written."""

    uri: str
    size: int
    count: int
    sequence: int
    offset: int | None = None
    length: int | None = None


@dataclass
class Manifests:
    """What was written for one table in one version of the format."""

    lake: Lake
    version: int
    shelf: Shelf
    schemas: Sequence[Shown]
    """By number, as the history finds them."""
    placed: dict[int, Placed] = field(default_factory=dict)
    deletes: dict[Key, Deletes] = field(default_factory=dict)
    _by_group: dict[Group, Manifest] = field(default_factory=dict)
    _beside: dict[tuple[Group, tuple[Key, ...]], Manifest] = field(default_factory=dict)
    _rows: dict[int, str] = field(default_factory=dict)
    _schema_texts: dict[int, str] = field(default_factory=dict)

    def of_group(self, group: Group) -> Manifest:
        """One that was written."""
        return self._by_group[group]

    def beside(self, group: Group, keys: tuple[Key, ...]) -> Manifest:
        """The one of the group's unseen positions, if it was written."""
        return self._beside[group, keys]

    def clear(self) -> None:
        """Files are listed in another way from now on."""
        self.placed.clear()
        self._by_group.clear()
        self._beside.clear()

    def read(
        self, conn: Connection, table: LakeTable, facts: Facts, specs: Mapping[int, Spec], ids: Iterable[int]
    ) -> None:
        """Learn what manifests say of these files."""
        missing = {id for id in ids if id not in self.placed}
        if missing:
            self.placed |= place_files(conn, self.lake, table, facts, missing, specs, self.shelf, self.version)
            self._rows |= {id: self.placed[id].uri for id in missing if id < 0}

    def unread(self, groups: Iterable[Group], states: Mapping[Group, tuple[Key, ...]]) -> set[int]:
        """The files of manifests that are not written yet."""
        known = self._by_group
        needed = {id for group in groups if group not in known for id in group.files}
        for group, keys in states.items():
            if (group, keys) not in self._beside:
                needed.update(key[0] for key in keys)
        return needed

    def write(
        self,
        facts: Facts,
        masks: Mapping[int, Mask],
        groups: Sequence[Group],
        states: Mapping[Group, tuple[Key, ...]],
        schema: int,
    ) -> list[Manifest]:
        """The manifests of these groups, whose files were read, and of what is not seen of them."""
        for key in {key for keys in states.values() for key in keys} - self.deletes.keys():
            self.deletes[key] = self._write_deletes(key, masks[key[0]], facts.files[key[0]].begin)
        known = self._by_group
        listed = [known.get(group) or self._manifest(group, schema) for group in groups]
        return listed + [self._delete_manifest(group, keys, schema) for group, keys in states.items()]

    def _manifest(self, group: Group, schema: int) -> Manifest:
        placed = [self.placed[id] for id in group.files]
        newest = max(each.begin for each in placed)
        listed = [
            _Listed(avro.ADDED if each.begin == newest else avro.EXISTING, each.begin, each.rows, each.record)
            for each in placed
        ]
        first = None
        if self.version >= 3:
            # Every file names its own; without a number here readers would forget them.
            first = min(each.first_row_id for each in placed)
        made = self._write_manifest(listed, avro.DATA, placed[0].spec, schema, first)
        self._by_group[group] = made
        return made

    def _delete_manifest(self, group: Group, keys: tuple[Key, ...], schema: int) -> Manifest:
        known = self._beside.get((group, keys))
        if known is not None:
            return known
        listed = []
        for key in keys:
            placed, deletes = self.placed[key[0]], self.deletes[key]
            is_vector = deletes.offset is not None
            bounds = {} if is_vector else {FIELD_IDS["file_path"]: placed.uri.encode()}
            record = FileRecord(
                content=avro.POSITION_DELETES,
                path=deletes.uri,
                format="PUFFIN" if is_vector else "PARQUET",
                partition=placed.partition,
                rows=deletes.count,
                size=deletes.size,
                counts={},
                nulls={},
                lower=bounds,
                upper=bounds,
                referenced=placed.uri,
                offset=deletes.offset,
                length=deletes.length,
            )
            listed.append(_Listed(avro.ADDED, deletes.sequence, deletes.count, record.encoded(self.version)))
        made = self._write_manifest(listed, avro.DELETES, self.placed[keys[0][0]].spec, schema, None)
        self._beside[group, keys] = made
        return made

    def _write_manifest(
        self, listed: list[_Listed], content: int, spec: Spec, schema: int, first_row_id: int | None
    ) -> Manifest:
        entries = [avro.encode_entry(each.status, each.sequence, each.record) for each in listed]
        if schema not in self._schema_texts:
            self._schema_texts[schema] = json.dumps(self.schemas[schema].as_json(schema))
        data = avro.write_manifest(entries, self.version, content, spec, self._schema_texts[schema], schema)
        address, size = self.shelf.put("manifest", data, "avro")
        added = [each.rows for each in listed if each.status == avro.ADDED]
        existing = [each.rows for each in listed if each.status == avro.EXISTING]
        sequences = [each.sequence for each in listed]
        return Manifest(
            address, size, spec.id, content, max(sequences), min(sequences), len(added), sum(added), len(existing),
            sum(existing), first_row_id, self.version,
        )  # fmt: skip

    def _write_deletes(self, key: Key, mask: Mask, begin: int) -> Deletes:
        """The unseen positions of a file that begins with this snapshot."""
        if key[1] < 0:
            assert mask.direct is not None
            return Deletes(uri(mask.direct.path), mask.direct.size, mask.direct.count, max(mask.direct_from, begin))
        address, positions, since = self.placed[key[0]].uri, mask.positions(key[1]), max(key[1], begin)
        if self.version >= 3:
            # One file each: PyIceberg takes all vectors of a file, also those that another snapshot's list means.
            data, vector = write_puffin(address, positions)
            written, size = self.shelf.put("deletes", data, "puffin")
            return Deletes(written, size, len(positions), since, vector.offset, vector.length)
        written, size = self.shelf.put("deletes", _position_deletes(address, positions), "data")
        return Deletes(written, size, len(positions), since)

    def forget(self, facts: Facts, used: set[Manifest]) -> None:
        """Keep what belongs to these manifests."""
        self._by_group = {group: made for group, made in self._by_group.items() if made in used}
        self._beside = {key: made for key, made in self._beside.items() if made in used}
        if len(self.placed) > KEPT:
            self.placed.clear()
        needed = {key for _, keys in self._beside for key in keys}
        self.deletes = {key: made for key, made in self.deletes.items() if key in needed}
        self._rows = {id: address for id, address in self._rows.items() if id in facts.inlined}

    def generated(self) -> Iterator[str]:
        """The files that were written."""
        yield from {made.path for made in self._by_group.values()}
        yield from {made.path for made in self._beside.values()}
        yield from {made.uri for key, made in self.deletes.items() if key[1] >= 0}
        yield from self._rows.values()


@dataclass(frozen=True, slots=True)
class _Listed:
    """An entry of a manifest."""

    status: int
    sequence: int
    rows: int
    record: bytes


def _position_deletes(path: str, positions: Ints) -> bytes:
    target = io.BytesIO()
    names = pa.repeat(pa.scalar(path, pa.string()), len(positions))
    table = pa.table([names, pa.array(positions, pa.int64())], schema=_POSITIONS)
    pq.write_table(table, target, compression="zstd", store_schema=False)
    return target.getvalue()
