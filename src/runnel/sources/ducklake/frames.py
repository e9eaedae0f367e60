"""Leaves over a lake table as Spark's tasks read and compute them, whole or what changed.

Spark computes what `runnel.sparksql` can say in its words. Where it cannot, each task lets PostgreSQL compute its
files' rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from runnel.lake.format.types import NESTED
from runnel.lake.read.changes import ChangeSet
from runnel.lake.read.scan import FileScan, Scan
from runnel.model.names import Name, quote
from runnel.model.types import Column
from runnel.plan.stage import Leaf, Relation
from runnel.ports.rows import FileColumn, FileRows, Frame, Query, leaf_schema, weight_name
from runnel.ports.source import Reading
from runnel.sources.arrow import pg_types
from runnel.sources.ducklake.reads import LakeIo, LakeReads, scanned_rows
from runnel.sources.ducklake.ref import LakeRef
from runnel.sources.statements import WEIGHT, Buffer, after_query, buffer_rows, delta_query
from runnel.spark.ducklake.files import LakeFiles
from runnel.spark.ducklake.leaves import WEIGHT as CARRIED
from runnel.spark.ducklake.leaves import changes_frame, computed, netted, rows_frame, together, told_apart
from runnel.spark.ducklake.through_postgres import TABLE, Through, through_frame, through_rows
from runnel.sparksql.duckdb import KNOWN, said
from runnel.sparksql.translate import Around, Translation, Untranslated, is_moment, translate, values
from runnel.sparksql.values import INT_DIGITS, Untranslatable, Value

_UNEQUAL = NESTED | {"interval", "timetz", "geometry", "variant"}
"""Types whose values Spark does not tell apart as PostgreSQL does."""
_NOTHING = ("CAST(NULL AS BOOLEAN) AS nothing",)


@dataclass
class LakeFrames:
    """One lake table during one refresh, for tasks."""

    reading: Reading
    reads: LakeReads
    io: LakeIo
    ref: LakeRef
    relation: Relation
    _translated: dict[tuple[Leaf, int], Translation | Untranslated] = field(default_factory=dict)

    # -- whole reads -----------------------------------------------------------------------------------------

    def whole(self, leaf: Leaf, names: Sequence[str], scan: Scan) -> Frame:
        """A leaf now."""
        self.io.count(scan)
        found = self.translated(leaf, names, scan)
        if isinstance(found, Untranslated):
            query = after_query(leaf, Name("pg_temp", TABLE).sql(), self.reading.clock)
            return through_frame(self.reading.spark, self._through(leaf, query, names, weighted=False), *_work(scan))
        rows = rows_frame(self.reading.spark, scan, self.reads.history(self.ref), names)
        return computed(rows, found.at(self.reading.clock.now), found.columns or _NOTHING)

    def files(self, leaf: Leaf, names: Sequence[str], read: Scan | ChangeSet) -> FileRows | None:
        """A leaf now, or what changed in it, for DuckDB; None if it does not know a word of it.

        It looks at conditions in whichever order it likes, so none of them may fail.
        """
        if leaf.may_raise or self._unlike(names) is not None:
            return None
        around = self._around(names, [read])
        known = values(leaf, self.relation.columns, around)
        if isinstance(known, Untranslated):
            return None
        places = {name: f"c{i}" for i, name in enumerate(names)}
        try:
            columns = tuple(_file_column(value, places, around) for value in known[0])
            filters = tuple(said(sql, places) for sql in known[1])
        except Untranslatable:
            return None

        def files() -> LakeFiles:
            self.io.count(read)
            if isinstance(read, Scan):
                return LakeFiles(read.columns, read.files, read.inlined)
            new, rest = told_apart(read)
            return LakeFiles(read.columns, (*new, *rest), read.inlined, weighted=True)

        if isinstance(read, Scan):
            return FileRows(columns, filters, False, scanned_rows(read), files)
        return FileRows(columns, filters, True, read.most_rows, files)

    def moved(self, leaf: Leaf, names: Sequence[str], scan: Scan) -> Frame | None:
        """The rows that the clock may have moved in or out, as they are; None if only PostgreSQL can tell."""
        found, clock = self.translated(leaf, names, scan), self.reading.clock
        if isinstance(found, Untranslated) or clock.before is None:
            return None
        self.io.count(scan)
        rows = rows_frame(self.reading.spark, scan, self.reads.history(self.ref), names)
        parts = [
            " AND ".join([*found.at(since), f"({found.leaves(until)})"])
            for since, until in ((clock.now, clock.before), (clock.before, clock.now))
        ]
        return computed(rows, [f"({parts[0]}) OR ({parts[1]})"], ["*"])

    # -- changes ---------------------------------------------------------------------------------------------

    def offers(self, leaf: Leaf, names: Sequence[str], changes: ChangeSet, scan: Scan | None) -> bool:
        """Whether tasks can read what changed in a leaf.

        What the clock moved is found by Spark alone. And before an expression could fail on a row that came and went,
        Spark must see that the two are the same.
        """
        if leaf.clock_filters and isinstance(self.translated(leaf, names, changes, scan), Untranslated):
            return False
        return not leaf.may_raise or not any(c.type in _UNEQUAL for c in changes.columns)

    def changed(self, leaf: Leaf, names: Sequence[str], changes: ChangeSet, scan: Scan | None) -> Frame:
        """What changed in a leaf, with weights; `scan` is the whole table where the clock moves rows."""
        self.io.count(changes)
        found = self.translated(leaf, names, changes, scan)
        if isinstance(found, Untranslated):
            return self._changed_through(leaf, names, changes)
        spark, history, clock = self.reading.spark, self.reads.history(self.ref), self.reading.clock
        rows = changes_frame(spark, changes, history, names)
        if leaf.may_raise:
            rows = netted(rows, names)
        weight = weight_name(leaf.id)
        if scan is None or not leaf.clock_filters:
            return computed(rows, found.filters, [*found.columns, f"`{CARRIED}` AS {weight}"])
        assert clock.before is not None, "only what was read before has a delta"
        self.io.count(scan)
        parts = [computed(rows, found.at(clock.before), [*found.columns, f"`{CARRIED}` AS {weight}"])]
        whole = rows_frame(spark, scan, history, names)
        for sign, since, until in ((1, clock.now, clock.before), (-1, clock.before, clock.now)):
            conditions = [*found.at(since), found.leaves(until)]
            parts.append(computed(whole, conditions, [*found.columns, f"{sign}L AS {weight}"]))
        return together(parts)

    # -- who computes ----------------------------------------------------------------------------------------

    def translated(
        self, leaf: Leaf, names: Sequence[str], *read: Scan | ChangeSet | None
    ) -> Translation | Untranslated:
        """The leaf in Spark's words, over values as the statistics of what is read know them."""
        key = leaf, len(read)
        if key not in self._translated:
            self._translated[key] = self._translate(leaf, names, [each for each in read if each is not None])
        return self._translated[key]

    def _translate(
        self, leaf: Leaf, names: Sequence[str], read: Sequence[Scan | ChangeSet]
    ) -> Translation | Untranslated:
        unlike = self._unlike(names)
        if unlike is not None:
            return unlike
        clock = self.reading.clock
        if leaf.clock_filters and not (is_moment(clock.before) and is_moment(clock.now)):
            return Untranslated(leaf.clock_filters[0])
        return translate(leaf, self.relation.columns, self._around(names, read))

    def _unlike(self, names: Sequence[str]) -> Untranslated | None:
        """What others do not read as PostgreSQL does."""
        fields = [f for f in self.ref.fields if f.name in names]
        finest = next((f.name for f in fields if f.type == "timestamp_ns"), None)
        if finest is not None:
            # PostgreSQL rounds to microseconds, Spark's reader cuts.
            return Untranslated(quote(finest))
        return None if self.reads.locale.utf8 else Untranslated("the encoding of the database")

    def _around(self, names: Sequence[str], read: Sequence[Scan | ChangeSet]) -> Around:
        columns = read[0].columns
        files: list[FileScan] = [spec for each in read for spec in each.files]
        inlined = pa.concat_tables([each.inlined.select(list(range(len(columns)))) for each in read])
        known = self.reads.ranges(self.ref, columns, files, inlined)
        ranges = {name: known[c.id] for name, c in zip(names, columns, strict=True) if c.id in known}
        return Around(self.reading.settings, self.reads.locale.bytewise, ranges)

    # -- through PostgreSQL ----------------------------------------------------------------------------------

    def _changed_through(self, leaf: Leaf, names: Sequence[str], changes: ChangeSet) -> Frame:
        values = {name: quote(name).replace("%", "%%") for name in sorted(leaf.uses)}
        buffer = Buffer(buffer_rows(values, WEIGHT, f"FROM {Name('pg_temp', TABLE).sql()}"), {})
        query = delta_query(leaf, buffer, "", self.reading.clock)
        if not leaf.may_raise:
            return through_frame(self.reading.spark, self._through(leaf, query, names, weighted=True), *_work(changes))
        rows = netted(changes_frame(self.reading.spark, changes, self.reads.history(self.ref), names), names)
        return through_rows(rows, replace(self._through(leaf, query, names, weighted=True), places=None))

    def _through(self, leaf: Leaf, query: Query, names: Sequence[str], *, weighted: bool) -> Through:
        owner = self.reading.as_owner
        schema = leaf_schema(leaf, weight=weighted)
        types = {c.name: c.type for c in self.relation.columns}
        columns = [f"{quote(name)} {types[name].sql}" for name in names]
        text = owner.select_sql(owner.merged(query.text, query.params or {"none": None}), pg_types(schema))
        places = None
        if weighted:
            columns.append(f"{WEIGHT} int8")
            places = (*range(len(names)), len(names) + 2)
        return Through(self.reading.dsn, tuple(columns), text, owner.settings, self.reading.role, schema, places)


def _file_column(value: Value, places: Mapping[str, str], around: Around) -> FileColumn:
    if value.type == "null":
        return FileColumn("NULL", "null")
    # A date must look as it does in PostgreSQL: of the years 1 to 9999, in the usual style.
    if value.type not in KNOWN or (value.type == "date" and not (value.usual and around.iso)):
        raise Untranslatable
    digits = value.digits or INT_DIGITS.get(value.type, 0)
    return FileColumn(said(value.sql, places), value.type, digits, value.scale)


def _work(read: Scan | ChangeSet) -> tuple[list[list[FileScan]], pa.Table]:
    """What tasks read: a file each, and what is here already."""
    return [[spec] for spec in read.files], read.inlined


def columns_of(relation: Relation, names: Sequence[str]) -> list[Column]:
    """Columns of a stand-in by their names."""
    by_name = {c.name: c for c in relation.columns}
    return [by_name[name] for name in names]
