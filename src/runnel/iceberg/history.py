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

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.iceberg import avro
from runnel.iceberg.avro import Manifest
from runnel.iceberg.entries import data_file_by_id
from runnel.iceberg.facts import Facts, File, Moment, read_facts
from runnel.iceberg.groups import Group
from runnel.iceberg.live import Live, Shape
from runnel.iceberg.manifests import Manifests
from runnel.iceberg.masks import Key, Mask, first_difference, masks
from runnel.iceberg.partitions import Spec, specs
from runnel.iceberg.schema import Shown, name_mapping, show
from runnel.iceberg.shapes import with_shapes
from runnel.iceberg.shelf import Shelf
from runnel.iceberg.standing import Standing
from runnel.lake.format.catalog import mappings
from runnel.lake.format.model import DataFile, Lake, LakeTable

Connection = psycopg.Connection[Any]


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


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """A snapshot as JSON, and what it was made of."""

    time: int
    parent: int | None
    point: Point
    text: str

    def still_holds(self, time: int, parent: Moment | None, point: Point) -> bool:
        return self.point is point and self.time == time and self.parent == (None if parent is None else parent.id)


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
    told: dict[int, Told] = field(default_factory=dict)
    """Snapshots as JSON, kept by those who make it."""
    _masks: dict[int, Mask] = field(default_factory=dict)
    _masked: dict[Group, tuple[Mask, ...]] = field(default_factory=dict)
    """The masks of a group's files."""
    _sources: dict[int, tuple[object, Mask]] = field(default_factory=dict)
    _untold: frozenset[int] = frozenset()
    _shape: object = None
    _made: Manifests = field(init=False)
    _now: tuple[Point | None, Live] | None = None
    """The live files at the last point."""
    _shapes: dict[int, int] = field(default_factory=dict)
    _shown: dict[tuple[Shape, frozenset[Shape]], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made = Manifests(self.lake, self.version, self.shelf, self.schemas)

    def follow(self, conn: Connection, table: LakeTable) -> None:
        """Bring everything in step with the catalog, as `conn` sees it in one transaction."""
        self.table = table

        def look_up(id: int) -> DataFile:
            return data_file_by_id(conn, self.lake, table, id)

        before, facts = self.facts, read_facts(conn, self.lake, table, self.facts)
        facts = with_shapes(self.lake, facts, self._shapes, look_up)
        now = masks(self.lake, facts, self._sources, look_up, as_files=self.version < 3)
        since = self._first_change(conn, before, facts, now)
        self.facts, self._masks = facts, now
        self._masked.clear()
        newest = self.points[-1] if self.points else None
        if since is not None:
            kept = bisect_left([point.snapshot for point in self.points], since)
            del self.points[kept:]
        if before is not None and before.columns is not facts.columns:
            self._now = None
            self._shown.clear()
        self._continue(conn, facts, newest)
        self.shelf.settle()
        if self.shelf.is_due:
            self._forget(facts)

    def standing(self, conn: Connection, metadata: Mapping[str, Any], partition: int | None) -> Standing:
        """The head, for a commit that starts from it."""
        facts, point = self.facts, self.points[-1]
        assert facts is not None
        at = facts.moments[-1].id
        states = {group: keys for group in point.groups if (keys := self._states(group, at))}
        live = {id for group in point.groups for id in group.files}
        made = self._made
        made.read(conn, self.table, facts, self.specs, live)
        self.shelf.settle()
        return Standing(
            self.lake,
            self.table,
            self.version,
            self.shelf.location,
            at,
            facts,
            metadata,
            self.specs,
            partition,
            {made.placed[id].uri: id for id in live},
            {made.of_group(group).path: group.files for group in point.groups},
            {made.beside(group, keys).path: keys for group, keys in states.items()},
            {(made.deletes[key].uri, made.deletes[key].offset): key for keys in states.values() for key in keys},
        )

    # -- what has changed ------------------------------------------------------------------------------------

    def _first_change(
        self, conn: Connection, before: Facts | None, facts: Facts, now: Mapping[int, Mask]
    ) -> int | None:
        """The first snapshot whose list is not as it was; None if all are."""
        mapped = mappings(conn, self.lake, facts.mappings)
        head = facts.columns.at(facts.moments[-1].id)
        self.mapping, untold = name_mapping(facts.columns.ever(head), mapped.values())

        def shown() -> set[int]:
            older = {Shape(facts.columns.at(at)) for at in {file.shape for file in facts.files.values()}}
            fields = show(head, [each.columns for each in older], self.version, untold).fields
            return {field["id"] for field in fields}

        found = specs(conn, self.lake, self.table.id, head, shown)
        shape = [(id, spec.id, [(f.id, f.transform, f.source) for f in spec.fields]) for id, spec in found.items()]
        if before is None or shape != self._shape or untold != self._untold:
            self._shape, self._untold, self.specs = shape, frozenset(untold), found
            self._shown.clear()
            self._made.clear()
            return -1
        concerned = []
        for id in before.files.keys() | facts.files.keys() if facts.changed is None else facts.changed:
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

    def _continue(self, conn: Connection, facts: Facts, newest: Point | None) -> None:
        """Make the points from the last one that holds to the newest snapshot; `newest` was the last one before."""
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
        if self._now is not None and self._now[0] is last:
            now = self._now[1]
        else:
            now = Live.of(last.groups if last else (), facts)
        self._now = None
        past = last.snapshot if last else -1
        # What has not changed neither begins nor ends after what was the newest point.
        ids = facts.files if last is None or last is not newest or facts.changed is None else facts.changed
        files = [facts.files[id] for id in ids if id in facts.files]
        begins = sorted((file.begin, file.id) for file in files if file.begin > past)
        ends = sorted((file.end, file.id) for file in files if file.end is not None and file.end > past)
        # All at once: a question for each snapshot would take most of the time.
        self._made.read(conn, self.table, facts, self.specs, {id for _, id in begins})
        for at in rest:
            past = last.snapshot if last else -1
            new = [id for _, id in begins[bisect_left(begins, (past + 1,)) : bisect_left(begins, (at + 1,))]]
            added = [id for id in new if (end := facts.files[id].end) is None or end > at]
            gone = [
                id for _, id in ends[bisect_left(ends, (past + 1,)) : bisect_left(ends, (at + 1,))] if id in now.owner
            ]
            now.move(facts, self.specs, added, gone)
            schema = self._schema(facts, at, now.shapes)
            last = self._point(conn, facts, at, now.groups, schema, added, gone, last)
            self.points.append(last)
        self._now = last, now

    def _breaks(self, facts: Facts) -> list[int]:
        """Where the table may change: files that come and go, masks, columns."""
        found = {*facts.columns.marks, *facts.marks}
        for file in (facts.files[id] for id in facts.inlined):
            found.add(file.begin)
            if file.end is not None:
                found.add(file.end)
        for mask in self._masks.values():
            found.update(mask.breaks())
        return sorted(at for at in found if at >= 0)

    def _schema(self, facts: Facts, at: int, older: frozenset[Shape]) -> int:
        columns = facts.columns.at(at)
        key = Shape(columns), older
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
        groups: list[Group],
        schema: int,
        added: list[int],
        gone: list[int],
        last: Point | None,
    ) -> Point:
        states = {}
        if self._masks:
            states = {group: keys for group in groups if (keys := self._states(group, at))}
        self._made.read(conn, self.table, facts, self.specs, self._made.unread(groups, states))
        listed = self._made.write(facts, self._masks, groups, states, schema)
        if last is not None and list(last.manifests) == listed:
            address = last.list_uri
        else:
            data = avro.write_manifest_list(listed, self.version, at, last.snapshot if last else None)
            address, _ = self.shelf.put("list", data, "avro")
        totals = self._totals(facts, last.totals if last else None, added, gone, states)
        return Point(at, tuple(groups), tuple(listed), address, schema, totals)

    def _states(self, group: Group, at: int) -> tuple[Key, ...]:
        found = self._masked.get(group)
        if found is None:
            ids = sorted(self._masks.keys() & set(group.files))
            found = self._masked[group] = tuple(self._masks[id] for id in ids)
        return tuple(key for mask in found if (key := mask.key(at)) is not None)

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
        deletes = [self._made.deletes[key] for keys in states.values() for key in keys]
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

    def _forget(self, facts: Facts) -> None:
        """Keep what the points use, and tell maintenance."""
        self._made.forget(facts, {manifest for point in self.points for manifest in point.manifests})
        self.shelf.keep(self._generated())

    def _generated(self) -> Iterator[str]:
        """The files that the metadata needs."""
        yield from {point.list_uri for point in self.points}
        yield from self._made.generated()


def _same_rows(old: File, new: File) -> bool:
    """Whether a file only lives to another snapshot than before."""
    return (old.begin, old.partial_max, old.rows) == (new.begin, new.partial_max, new.rows)
