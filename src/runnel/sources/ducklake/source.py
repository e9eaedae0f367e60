"""A lake table during one refresh: what waits, rows lent to PostgreSQL, and large reads and changes for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from runnel.errors import SchemaDriftError
from runnel.lake.read.changes import ChangeSet, Expired
from runnel.lake.read.scan import Scan
from runnel.model.frontier import Version
from runnel.model.names import Name, quote
from runnel.model.types import Column
from runnel.plan.stage import Leaf, Relation
from runnel.ports.rows import FileRows, Frame, Query, Restriction, Rows
from runnel.ports.source import Pending, Reading, Source, Used
from runnel.sources.ducklake.frames import LakeFrames, columns_of
from runnel.sources.ducklake.lent import Lent
from runnel.sources.ducklake.reads import LakeIo, LakeReads, changed, scanned, scanned_rows
from runnel.sources.ducklake.ref import LakeRef
from runnel.sources.selects import key_cost, select_delta, select_rows
from runnel.sources.statements import WEIGHT, Buffer, buffer_rows, textual_columns
from runnel.spark.ducklake.tables import scan_frame
from runnel.spark.job import run

STEP = "lake"
"""The part of a refresh's time that goes into copying rows of lakes."""

TASK_ROWS, TASK_KEYS = 20_000_000, 1_000
"""A read by more keys, through more rows than this, is done by Spark's tasks; few keys leave most row groups closed."""

MANY_CHANGES = 500_000
CHANGES_PER_ROW = 2
"""More changes than this, and per row of the table more than this, and AUTO recomputes. An update of every row makes
two changes of each: tasks read those in the time of the table itself, and only what differs is written."""


@dataclass
class LakeTableSource(Source):
    """A `Source` over a table of a lake: its version is a snapshot of the lake."""

    reading: Reading
    reads: LakeReads
    lent: Lent
    io: LakeIo
    used: Used
    ref: LakeRef
    _changes: ChangeSet | None = None
    """What waits; None: nothing, or nobody knows."""
    _lent_changes: int | None = None
    """How many changes have been copied; None before they are."""
    _by_tasks: int = 0
    """How many changes tasks were asked to read, as far as the catalog tells."""
    _scans: dict[tuple[str, ...], Scan] = field(default_factory=dict)

    @property
    def relation(self) -> Relation:
        """The stand-in."""
        return self.used.relation

    @property
    def name(self) -> str:
        """Its name in frontiers."""
        return self.ref.key

    def head(self) -> Version:
        """The newest snapshot of the lake that the refresh transaction sees."""
        return self.reads.head(self.ref)

    # -- what waits ------------------------------------------------------------------------------------------

    def pending(self, since: Version | None) -> Pending:
        """What changed, from the lake's catalog alone."""
        self.reads.columns(self.ref, self.used.columns)
        if since is None:
            return Pending(recompute=f"no snapshot of lake table {self.relation.name} has been read before")
        after = int(since)
        if after > self.reads.head(self.ref):
            # Another lake has taken the place of the one that was read.
            return self._forgotten(after, None)
        try:
            waiting = self.reads.changes(self.ref, self.used.columns, after)
        except Expired as error:
            return self._forgotten(after, error)
        if waiting.is_empty:
            return Pending()
        self._changes = waiting
        return Pending(waiting.most_rows, moved=True, recompute=self._why_whole(waiting))

    def _forgotten(self, after: int, error: Expired | None) -> Pending:
        ref = self.ref
        text = (
            f"snapshot {after} of lake {ref.lake} has expired, so the changes of {ref.schema}.{ref.table} are not known"
        )
        if self.reading.forgotten == "error":
            raise SchemaDriftError(
                f"stream table {self.reading.name}: {text}",
                hint=f"Rebuild it: SELECT pgtrickle.alter_stream_table('{self.reading.name}', "
                "ducklake_expired => 'fallback').",
            ) from error
        return Pending(recompute=f"warning: {text}; recomputed")

    def _why_whole(self, waiting: ChangeSet) -> str | None:
        """Why to recompute although the changes are known: far more is gone than is there."""
        count = waiting.most_rows
        if not self.reading.automatic or count < MANY_CHANGES:
            return None
        if count <= scanned_rows(self.reads.scan(self.ref, self.used.columns[:1])) * CHANGES_PER_ROW:
            return None
        return f"{count} rows of {self.relation.name} are new or gone, more than there are twice over"

    # -- reads -----------------------------------------------------------------------------------------------

    def delta(self, leaf: Leaf, since: Version | None) -> Rows | None:  # noqa: ARG002
        """The changes and what the clock moved: copied to where PostgreSQL reads them, or by tasks if they are many."""
        changes = self._changes
        if changes is None and not leaf.clock_filters:
            return None
        count = 0 if changes is None else changes.most_rows

        def select() -> Query:
            self._lend_changes()
            relation = self._lend_moved(leaf) if leaf.clock_filters else self.relation.name.sql()
            return select_delta(self.reading, leaf, self._buffer(leaf), relation)

        if changes is None or count <= self.reading.spark.threshold:
            return Rows(count, select, copied=True)
        # A change without columns still has its weight.
        names = leaf.uses
        waiting = changes.only([c.name for c in self.reads.columns(self.ref, names)])
        scan = self._whole(names) if leaf.clock_filters else None
        if not self._frames.offers(leaf, names, waiting, scan):
            return Rows(count, select, copied=True)

        def frame() -> Frame:
            self._by_tasks = changes.told_rows
            return self._frames.changed(leaf, names, waiting, scan)

        def files() -> FileRows | None:
            self._by_tasks = changes.told_rows
            return self._frames.files(leaf, names, waiting)

        return Rows(count, select, frame=frame, files=files, copied=True)

    def read(self, leaf: Leaf, restriction: Restriction | None, keys: Sequence[int] | None = None) -> Rows:
        """The rows that may hold the keys, lent to PostgreSQL; or the whole table as Spark reads it."""

        def select() -> Query:
            return select_rows(self.reading, leaf, self._lend(leaf, restriction), restriction, keys)

        if keys is not None or (restriction is not None and self._stored_keys(leaf, restriction)):
            return Rows(0, select, copied=True)
        names = self._names(leaf)
        rows = scanned_rows(self._whole(names))
        return Rows(
            rows,
            select,
            frame=lambda: self._frames.whole(leaf, names, self._whole(names)),
            files=lambda: self._frames.files(leaf, names, self._whole(names)),
            copied=True,
        )

    def cost(self, leaf: Leaf, sql: str, keys: int) -> float:
        """As of a table without indexes."""
        return key_cost(self.reading, leaf, self.relation.name.sql(), sql, keys, indexed=False)

    @property
    def changes(self) -> int:
        """How many changes were copied; of those that tasks read, how many the catalog tells of."""
        return self._lent_changes or self._by_tasks

    def effort(self) -> Mapping[str, int]:
        """Files, bytes and rows, of all lake tables of the refresh together."""
        return self.io.as_json()

    # -- rows lent to PostgreSQL -----------------------------------------------------------------------------

    def lend(self) -> None:
        """Copy the whole table, so that PostgreSQL can evaluate the query itself.

        A column that the result does not use may have been dropped or have another type by now: it stays NULL.
        Rows need a column to travel in, so of a table of which no column is as it was, that is drift.
        """
        columns = self.relation.columns
        names = [c.name for c in columns]
        absent = set(self.reads.drifted(self.ref, names)) - set(self.used.columns)
        if len(absent) == len(names):
            absent = set()
        with self.reading.step(STEP):
            rows = scanned(self.reads.scan(self.ref, [n for n in names if n not in absent]), self.io)
            self.lent.fill(
                self.reading.conn, self.relation.lent_name, columns, rows, self.reading.role, absent=absent
            )  # fmt: skip

    def _lend_changes(self) -> int:
        """Copy the changes that wait, once for all leaves; how many."""
        if self._lent_changes is None:
            self._lent_changes = 0
            if self._changes is not None:
                with self.reading.step(STEP):
                    self._lent_changes = self.lent.fill(
                        self.reading.conn, self._delta_name, columns_of(self.relation, self.used.columns),
                        changed(self._changes, self.io), self.reading.role, weighted=True,
                    )  # fmt: skip
        return self._lent_changes

    def _buffer(self, leaf: Leaf) -> Buffer:
        """The lent changes, netted if an expression could fail on rows that came and went."""
        names = sorted(leaf.uses)
        if not self._lent_changes:
            nothing = [f"NULL::{c.type.sql} AS {_escaped(c.name)}" for c in columns_of(self.relation, names)]
            return Buffer(f"SELECT {', '.join([f'0::int8 AS {WEIGHT}', *nothing])} WHERE false", {})
        values = {name: _escaped(name) for name in names}
        textual = textual_columns(self.relation.columns)
        source = f"FROM {self._delta_name.sql()}"
        return Buffer(buffer_rows(values, WEIGHT, source, netted=leaf.may_raise, textual=textual), {})

    def _lend(self, leaf: Leaf, restriction: Restriction | None) -> str:
        """Copy the rows that a leaf's read needs; the table that holds them."""
        names = self._names(leaf)
        keys = None if restriction is None else self._stored_keys(leaf, restriction)
        scan = self.reads.scan(self.ref, names, keys) if keys else self._whole(names)
        rows = scanned(scan, self.io)
        if keys and scanned_rows(scan) > TASK_ROWS and min(map(len, keys.values())) > TASK_KEYS:
            # The keys are spread over many files: tasks look for them side by side, and few rows come back.
            self.io.count(scan)
            meter, history = self.reading.spark.meter, self.reads.history(self.ref)
            frame = scan_frame(self.reading.spark.large, scan, history, native=False, meter=meter)
            rows = iter(run(frame, meter).to_batches())
        return self._lend_rows(leaf, names, rows)

    def _lend_moved(self, leaf: Leaf) -> str:
        """Copy the rows that the clock may have moved: of a large table those that tasks find."""
        names = self._names(leaf)
        scan = self._whole(names)
        if scanned_rows(scan) > self.reading.spark.threshold:
            moved = self._frames.moved(leaf, names, scan)
            if moved is not None:
                return self._lend_rows(leaf, names, iter(run(moved, self.reading.spark.meter).to_batches()))
        return self._lend(leaf, None)

    def _lend_rows(self, leaf: Leaf, names: Sequence[str], rows: Iterator[pa.RecordBatch]) -> str:
        target = Name("pg_temp", f"pgt_lent_rows_{self.reading.table_id}_{self.relation.oid}_{leaf.id}")
        with self.reading.step(STEP):
            self.lent.fill(self.reading.conn, target, columns_of(self.relation, names), rows, self.reading.role)
        return target.sql()

    @cached_property
    def _frames(self) -> LakeFrames:
        return LakeFrames(self.reading, self.reads, self.io, self.ref, self.relation)

    # -- columns ---------------------------------------------------------------------------------------------

    @property
    def _delta_name(self) -> Name:
        return Name("pg_temp", f"pgt_lent_delta_{self.reading.table_id}_{self.relation.oid}")

    def _whole(self, names: tuple[str, ...]) -> Scan:
        """All that there is of these columns; planned once."""
        if names not in self._scans:
            self._scans[names] = self.reads.scan(self.ref, names)
        return self._scans[names]

    def _names(self, leaf: Leaf) -> tuple[str, ...]:
        """The columns to read; a row without any still counts, so there is always one."""
        return leaf.uses or (self.relation.columns[0].name,)

    def _stored_keys(self, leaf: Leaf, restriction: Restriction) -> dict[str, list[object]]:
        """The keys that fall on plain columns: only those have statistics."""
        found: dict[str, list[object]] = {}
        readable = {c.name: c for c in columns_of(self.relation, self._names(leaf))}
        for part in (restriction, *restriction.also):
            column = readable.get(leaf.plain_column(part.sql) or "")
            if column is not None and column.name not in found and _as_stored(column, part.array_type):
                found[column.name] = [*part.values, *([None] if part.include_null else [])]
        return found


def _escaped(name: str) -> str:
    """A column, in a statement with parameters."""
    return quote(name).replace("%", "%%")


def _as_stored(column: Column, compared_as: str) -> bool:
    """Whether keys mean to the lake what they mean to PostgreSQL: not where it converts the column to compare it."""
    family = column.type.family
    if family in ("date", "timestamp", "timestamptz"):
        return compared_as == family
    # A float's statistics are rounded in another way than its text.
    return family in ("int", "numeric", "text", "bool", "uuid") and compared_as != "float8"
