"""A table's snapshots as lists of manifests, kept in step with the catalog.

Live files are in groups, a group is a manifest. A snapshot that adds files gets a group of them; groups are merged by
size, sixteen to one, so that there are few and each file is written a few times at most; a group that loses a file is
written anew. So snapshots share almost all of their manifests. Deleted positions of a group's files are in a manifest
beside it.

DuckLake also changes the past: merging and flushing put new files into old snapshots, deletions replace the file of
earlier ones. What is different is found by comparing numbers, and from the first snapshot that it concerns on the lists
are made anew; manifests and masks that stay the same are used again.
"""

from __future__ import annotations

import io
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from runnel.iceberg import avro
from runnel.iceberg.avro import FileRecord, Manifest
from runnel.iceberg.entries import Placed, data_file_by_id, place_files, spec_of
from runnel.iceberg.facts import Facts, File, read_facts
from runnel.iceberg.groups import LARGEST, Group, mergers, without
from runnel.iceberg.masks import Ints, Key, Mask, first_difference, masks
from runnel.iceberg.partitions import Spec, specs
from runnel.iceberg.puffin import write_puffin
from runnel.iceberg.schema import Shown, name_mapping, show
from runnel.iceberg.shapes import with_shapes
from runnel.iceberg.shelf import Shelf
from runnel.lake.format.catalog import mappings
from runnel.lake.format.model import DataFile, Lake, LakeColumn, LakeTable
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
class Totals:
    """What a snapshot's summary counts."""

    files: int
    rows: int
    bytes: int
    delete_files: int
    deleted: int
    added_files: int
    added_rows: int
    removed_files: int
    first_row_id: int


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """From this snapshot on, until the next point, the table is the same."""

    snapshot: int
    groups: tuple[Group, ...]
    manifests: tuple[Manifest, ...]
    list_uri: str
    schema: int
    totals: Totals


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
class History:
    """One table in one version of the format."""

    lake: Lake
    table: LakeTable
    version: int
    shelf: Shelf
    facts: Facts | None = None
    points: list[Point] = field(default_factory=list)
    schemas: list[Shown] = field(default_factory=list)
    specs: dict[int, Spec] = field(default_factory=dict)
    mapping: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[tuple[Any, ...], str] = field(default_factory=dict)
    """Snapshots as JSON, kept by those who make it."""
    _masks: dict[int, Mask] = field(default_factory=dict)
    _sources: dict[int, tuple[object, Mask]] = field(default_factory=dict)
    _untold: frozenset[int] = frozenset()
    _shape: object = None
    _manifests: dict[Group, Manifest] = field(default_factory=dict)
    _beside: dict[tuple[Group, tuple[Key, ...]], Manifest] = field(default_factory=dict)
    _deletes: dict[Key, Deletes] = field(default_factory=dict)
    _placed: dict[int, Placed] = field(default_factory=dict)
    _rows: dict[int, str] = field(default_factory=dict)
    _now: _Now | None = None
    _shapes: dict[int, int] = field(default_factory=dict)
    _shown: dict[tuple[_Shape, frozenset[_Shape]], int] = field(default_factory=dict)

    def follow(self, conn: Connection, table: LakeTable) -> None:
        """Bring everything in step with the catalog, as `conn` sees it in one transaction."""
        self.table = table

        def look_up(id: int) -> DataFile:
            return data_file_by_id(conn, self.lake, table, id)

        before, facts = self.facts, read_facts(conn, self.lake, table, self.facts)
        facts = with_shapes(self.lake, facts, self._shapes, look_up)
        now = masks(self.lake, facts, self._sources, look_up)
        since = self._first_change(conn, before, facts, now)
        self.facts, self._masks = facts, now
        if since is not None:
            kept = bisect_left([point.snapshot for point in self.points], since)
            del self.points[kept:]
        if before is not None and before.columns is not facts.columns:
            self._now = None
            self._shown.clear()
        self._continue(conn, facts)
        if self.shelf.is_due:
            self._forget(facts)

    # -- what has changed ------------------------------------------------------------------------------------

    def _first_change(
        self, conn: Connection, before: Facts | None, facts: Facts, now: Mapping[int, Mask]
    ) -> int | None:
        """The first snapshot whose list is not as it was; None if all are."""
        mapped = mappings(conn, self.lake, {f.mapping_id for f in facts.files.values() if f.mapping_id is not None})
        head = facts.columns.at(facts.moments[-1].id)
        self.mapping, untold = name_mapping(facts.columns.ever(head), mapped.values())

        def shown() -> set[int]:
            older = {_Shape(facts.columns.at(at)) for at in {file.shape for file in facts.files.values()}}
            fields = show(head, [each.columns for each in older], self.version, untold).fields
            return {field["id"] for field in fields}

        found = specs(conn, self.lake, self.table.id, head, shown)
        shape = [(id, spec.id, [(f.id, f.transform, f.source) for f in spec.fields]) for id, spec in found.items()]
        if before is None or shape != self._shape or untold != self._untold:
            self._shape, self._untold, self.specs = shape, frozenset(untold), found
            self._placed.clear()
            self._shown.clear()
            self._manifests.clear()
            self._beside.clear()
            return -1
        concerned = []
        for id in before.files.keys() | facts.files.keys():
            old, new = before.files.get(id), facts.files.get(id)
            if old is new or old == new:
                continue
            if old is not None and new is not None and _same_rows(old, new):
                ends = [end for end in (old.end, new.end) if end is not None]
                concerned.append(min(ends, default=new.begin))
            else:
                concerned.append(min(file.begin for file in (old, new) if file is not None))
        for id in self._masks.keys() | now.keys():
            if self._masks.get(id) is not now.get(id):
                at = first_difference(self._masks.get(id), now.get(id))
                if at is not None:
                    concerned.append(at)
        return min(concerned, default=None)

    # -- the lists -------------------------------------------------------------------------------------------

    def _continue(self, conn: Connection, facts: Facts) -> None:
        """Make the points from the last one that holds to the newest snapshot."""
        breaks = self._breaks(facts)
        listed = [moment.id for moment in facts.moments]
        wanted = sorted({breaks[max(0, bisect_right(breaks, id) - 1)] for id in listed})
        # Of points whose snapshots have expired nothing is left, and others may stand for them.
        good = 0
        while good < len(self.points) and good < len(wanted) and self.points[good].snapshot == wanted[good]:
            good += 1
        del self.points[good:]
        rest = wanted[good:]
        if not rest:
            return
        last = self.points[-1] if self.points else None
        now = self._now if self._now is not None and self._now.point is last else _Now.at(last, facts)
        self._now = None
        past = last.snapshot if last else -1
        begins = sorted((file.begin, id) for id, file in facts.files.items() if file.begin > past)
        ends = sorted((file.end, id) for id, file in facts.files.items() if file.end is not None and file.end > past)
        masked = set(self._masks)
        # All at once: a question for each snapshot would take most of the time.
        self._read(conn, facts, {id for _, id in begins})
        for at in rest:
            past = last.snapshot if last else -1
            new = [id for _, id in begins[bisect_left(begins, (past + 1,)) : bisect_left(begins, (at + 1,))]]
            added = [id for id in new if (end := facts.files[id].end) is None or end > at]
            gone = [
                id for _, id in ends[bisect_left(ends, (past + 1,)) : bisect_left(ends, (at + 1,))] if id in now.owner
            ]
            self._regroup(facts, now, added, gone)
            schema = self._schema(facts, at, frozenset(each for each, count in now.shapes.items() if count))
            last = self._point(conn, facts, at, now, schema, added, gone, last, masked)
            self.points.append(last)
        now.point = last
        self._now = now

    def _breaks(self, facts: Facts) -> list[int]:
        """Where the table may change: files that come and go, masks, columns."""
        found = set(facts.columns.marks)
        for file in facts.files.values():
            found.add(file.begin)
            if file.end is not None:
                found.add(file.end)
        for mask in self._masks.values():
            found.update(mask.breaks())
        return sorted(at for at in found if at >= 0)

    def _regroup(self, facts: Facts, now: _Now, added: list[int], gone: list[int]) -> None:
        for id in gone:
            now.shapes[_Shape(facts.columns.at(facts.files[id].shape))] -= 1
        for group in {now.owner[id] for id in gone}:
            rest = without(group, gone)
            now.replace([group], [Group(group.spec, rest)] if rest else [])
        for id in gone:
            del now.owner[id]
        if not added:
            return
        for old, new in mergers(now.groups):
            now.replace(old, [new])
        by_spec: dict[int, list[int]] = defaultdict(list)
        for id in sorted(added, key=lambda id: (facts.files[id].begin, id)):
            now.shapes[_Shape(facts.columns.at(facts.files[id].shape))] += 1
            by_spec[spec_of(facts.files[id], self.specs).id].append(id)
        for spec, ids in sorted(by_spec.items()):
            parts = [Group(spec, tuple(ids[i : i + LARGEST])) for i in range(0, len(ids), LARGEST)]
            now.replace([], parts)

    def _schema(self, facts: Facts, at: int, older: frozenset[_Shape]) -> int:
        columns = facts.columns.at(at)
        key = _Shape(columns), older
        if key not in self._shown:
            shown = show(columns, [each.columns for each in older], self.version, self._untold)
            same = (n for n, known in enumerate(self.schemas) if known == shown)
            number = next(same, None)
            if number is None:
                number = len(self.schemas)
                self.schemas.append(shown)
            self._shown[key] = number
        return self._shown[key]

    def _point(
        self,
        conn: Connection,
        facts: Facts,
        at: int,
        now: _Now,
        schema: int,
        added: list[int],
        gone: list[int],
        last: Point | None,
        masked: set[int],
    ) -> Point:
        groups = now.groups
        states = {group: keys for group in groups if (keys := self._states(group, at, masked))}
        self._place(conn, facts, groups, states)
        self._write_deletes({key for keys in states.values() for key in keys})
        listed = [self._manifest(group, schema) for group in groups]
        listed += [self._delete_manifest(group, keys, schema) for group, keys in states.items()]
        if last is not None and list(last.manifests) == listed:
            address = last.list_uri
        else:
            data = avro.write_manifest_list(listed, self.version, at, last.snapshot if last else None)
            address, _ = self.shelf.put("list", data, "avro")
        totals = self._totals(facts, last.totals if last else None, added, gone, states)
        return Point(at, tuple(groups), tuple(listed), address, schema, totals)

    def _states(self, group: Group, at: int, masked: set[int]) -> tuple[Key, ...]:
        if not masked:
            return ()
        found = (self._masks[id].key(at) for id in sorted(masked.intersection(group.files)))
        return tuple(key for key in found if key is not None)

    def _totals(
        self,
        facts: Facts,
        former: Totals | None,
        added: list[int],
        gone: list[int],
        states: Mapping[Group, tuple[Key, ...]],
    ) -> Totals:
        new = [facts.files[id] for id in added]
        old = [facts.files[id] for id in gone]
        files, rows, size = (former.files, former.rows, former.bytes) if former else (0, 0, 0)
        deletes = [self._deletes[key] for keys in states.values() for key in keys]
        first = former.first_row_id + former.added_rows if former else 0
        starts = [f.row_id_start for f in new if f.row_id_start is not None and f.row_id_start >= first]
        return Totals(
            files + len(new) - len(old),
            rows + sum(f.rows for f in new) - sum(f.rows for f in old),
            size + sum(f.size for f in new) - sum(f.size for f in old),
            len(deletes),
            sum(each.count for each in deletes),
            len(new),
            sum(f.rows for f in new),
            len(old),
            min(starts, default=first),
        )

    # -- what is written -------------------------------------------------------------------------------------

    def _place(
        self, conn: Connection, facts: Facts, groups: Iterable[Group], states: Mapping[Group, tuple[Key, ...]]
    ) -> None:
        """Read what the manifests that are about to be written say of their files."""
        needed = {id for group in groups if group not in self._manifests for id in group.files}
        for group, keys in states.items():
            if keys and (group, keys) not in self._beside:
                needed.update(key[0] for key in keys)
        self._read(conn, facts, needed)

    def _read(self, conn: Connection, facts: Facts, ids: set[int]) -> None:
        missing = {id for id in ids if id not in self._placed}
        if missing:
            self._placed |= place_files(
                conn, self.lake, self.table, facts, missing, self.specs, self.shelf, self.version
            )
            self._rows |= {id: self._placed[id].uri for id in missing if id < 0}

    def _manifest(self, group: Group, schema: int) -> Manifest:
        known = self._manifests.get(group)
        if known is not None:
            return known
        placed = [self._placed[id] for id in group.files]
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
        self._manifests[group] = made
        return made

    def _delete_manifest(self, group: Group, keys: tuple[Key, ...], schema: int) -> Manifest:
        known = self._beside.get((group, keys))
        if known is not None:
            return known
        listed = []
        for key in keys:
            placed, deletes = self._placed[key[0]], self._deletes[key]
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
        made = self._write_manifest(listed, avro.DELETES, self._placed[keys[0][0]].spec, schema, None)
        self._beside[group, keys] = made
        return made

    def _write_manifest(
        self, listed: list[_Listed], content: int, spec: Spec, schema: int, first_row_id: int | None
    ) -> Manifest:
        entries = [avro.encode_entry(each.status, each.sequence, each.record) for each in listed]
        data = avro.write_manifest(entries, self.version, content, spec, self.schemas[schema].as_json(schema))
        address, size = self.shelf.put("manifest", data, "avro")
        added = [each.rows for each in listed if each.status == avro.ADDED]
        existing = [each.rows for each in listed if each.status == avro.EXISTING]
        sequences = [each.sequence for each in listed]
        return Manifest(
            address, size, spec.id, content, max(sequences), min(sequences), len(added), sum(added), len(existing),
            sum(existing), first_row_id,
        )  # fmt: skip

    def _write_deletes(self, keys: set[Key]) -> None:
        """Make the lists of unseen positions that are not there yet."""
        for key in keys - self._deletes.keys():
            mask, begin = self._masks[key[0]], self._begin(key[0])
            if key[1] < 0:
                assert mask.direct is not None
                file, since = mask.direct, max(mask.direct_from, begin)
                self._deletes[key] = Deletes(uri(file.path), file.size, file.count, since)
                continue
            address, positions, since = self._placed[key[0]].uri, mask.positions(key[1]), max(key[1], begin)
            if self.version >= 3:
                # One file each: PyIceberg takes all vectors of a file, also those that another snapshot's list means.
                data, vector = write_puffin(address, positions)
                written, size = self.shelf.put("deletes", data, "puffin")
                self._deletes[key] = Deletes(written, size, len(positions), since, vector.offset, vector.length)
            else:
                written, size = self.shelf.put("deletes", _position_deletes(address, positions), "data")
                self._deletes[key] = Deletes(written, size, len(positions), since)

    def _begin(self, id: int) -> int:
        assert self.facts is not None
        return self.facts.files[id].begin

    def _forget(self, facts: Facts) -> None:
        """Keep what the points use, and tell maintenance."""
        used_manifests = {manifest for point in self.points for manifest in point.manifests}
        self._manifests = {group: made for group, made in self._manifests.items() if made in used_manifests}
        self._beside = {key: made for key, made in self._beside.items() if made in used_manifests}
        if len(self._placed) > KEPT:
            self._placed.clear()
        used = {key for _, keys in self._beside for key in keys}
        self._deletes = {key: made for key, made in self._deletes.items() if key in used}
        self._rows = {id: address for id, address in self._rows.items() if id in facts.inlined}
        self.shelf.keep(self._generated())

    def _generated(self) -> Iterator[str]:
        """The files that the metadata needs."""
        yield from {point.list_uri for point in self.points}
        yield from {made.path for made in self._manifests.values()}
        yield from {made.path for made in self._beside.values()}
        yield from {made.uri for key, made in self._deletes.items() if key[1] >= 0}
        yield from self._rows.values()


class _Shape:
    """Columns that are counted by what they are, not compared: a history gives the same ones for the same shape."""

    __slots__ = ("columns",)

    def __init__(self, columns: tuple[LakeColumn, ...]) -> None:
        self.columns = columns

    def __hash__(self) -> int:
        return id(self.columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape) and other.columns is self.columns


@dataclass(frozen=True, slots=True)
class _Listed:
    """An entry of a manifest."""

    status: int
    sequence: int
    rows: int
    record: bytes


@dataclass
class _Now:
    """The live files while the lists are made, in their groups."""

    point: Point | None
    groups: list[Group]
    owner: dict[int, Group]
    shapes: Counter[_Shape]

    @classmethod
    def at(cls, point: Point | None, facts: Facts) -> _Now:
        groups = list(point.groups) if point else []
        owner = {id: group for group in groups for id in group.files}
        return cls(point, groups, owner, Counter(_Shape(facts.columns.at(facts.files[id].shape)) for id in owner))

    def replace(self, old: Collection[Group], new: Sequence[Group]) -> None:
        gone = set(old)
        self.groups = [group for group in self.groups if group not in gone] + list(new)
        for group in new:
            self.owner.update(dict.fromkeys(group.files, group))


def _same_rows(old: File, new: File) -> bool:
    """Whether a file only lives to another snapshot than before."""
    return (old.begin, old.partial_max, old.rows) == (new.begin, new.partial_max, new.rows)


def _position_deletes(path: str, positions: Ints) -> bytes:
    target = io.BytesIO()
    names = pa.repeat(pa.scalar(path, pa.string()), len(positions))
    table = pa.table([names, pa.array(positions, pa.int64())], schema=_POSITIONS)
    pq.write_table(table, target, compression="zstd", store_schema=False)
    return target.getvalue()
