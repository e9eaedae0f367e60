"""Reading the tables of lakes at one version: what they hold, and what changed since a frontier.

One object per refresh transaction. The version is the newest snapshot that the transaction sees, so lake and
PostgreSQL are read as of one moment wherever they share a database; a lake elsewhere is read as of the first look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import psycopg
import pyarrow as pa

from runnel.catalog.locale import Locale, read_locale
from runnel.errors import SchemaDriftError, UserError
from runnel.lake.attached import load_lakes
from runnel.lake.format import catalog
from runnel.lake.format.model import Lake, LakeColumn, LakeTable
from runnel.lake.format.types import duck_type
from runnel.lake.read.changes import ChangeSet, plan_changes
from runnel.lake.read.ranges import Range, value_ranges
from runnel.lake.read.scan import FileScan, Scan, Tally, plan_scan, scan_files
from runnel.sources.ducklake.catalogs import LakeCatalogs
from runnel.sources.ducklake.ref import LakeRef

Connection = psycopg.Connection[Any]
Keys = Mapping[str, Sequence[object]]


@dataclass
class LakeReads:
    """The lakes as one refresh transaction sees them."""

    conn: Connection
    catalogs: LakeCatalogs
    _heads: dict[str, int] = field(default_factory=dict)
    _tables: dict[tuple[str, int], LakeTable] = field(default_factory=dict)

    @cached_property
    def lakes(self) -> Mapping[str, Lake]:
        """All attached lakes."""
        return load_lakes(self.conn)

    def lake(self, ref: LakeRef) -> Lake:
        """The lake of a table."""
        found = self.lakes.get(ref.lake)
        if found is None:
            raise UserError(
                f"lake {ref.lake} is not attached",
                hint=f"Attach it again: SELECT pgtrickle.attach_ducklake('{ref.lake}', ...).",
            )
        return found

    def head(self, ref: LakeRef) -> int:
        """The version at which a lake is read."""
        if ref.lake not in self._heads:
            lake = self.lake(ref)
            self._heads[ref.lake] = catalog.head(self._reading(lake), lake)
        return self._heads[ref.lake]

    def table(self, ref: LakeRef) -> LakeTable:
        """The table as it is at that version."""
        key = ref.lake, ref.table_id
        if key not in self._tables:
            lake = self.lake(ref)
            found = catalog.table_by_id(self._reading(lake), lake, ref.table_id, self.head(ref))
            if found is None:
                raise SchemaDriftError(
                    f"source {ref.lake}.{ref.schema}.{ref.table}: the table was dropped from its lake",
                    hint="Change the query with pgtrickle.alter_stream_table, or drop the stream table.",
                )
            self._tables[key] = found
        return self._tables[key]

    def columns(self, ref: LakeRef, names: Sequence[str]) -> tuple[LakeColumn, ...]:
        """Columns by the names of their stand-ins; what no longer is as the query was planned for is drift."""
        for name, what in self.drifted(ref, names).items():
            raise SchemaDriftError(
                f'source {ref.lake}.{ref.schema}.{ref.table}: column "{name}" {what}',
                hint="Change the query with pgtrickle.alter_stream_table, or drop the stream table.",
            )
        fields = {f.name: f.id for f in ref.fields}
        present = {c.id: c for c in self.table(ref).columns}
        return tuple(present[fields[name]] for name in names)

    def drifted(self, ref: LakeRef, names: Sequence[str]) -> dict[str, str]:
        """Columns that no longer are as the stand-in has them, and what happened to each."""
        fields = {f.name: f for f in ref.fields}
        present = {c.id: c for c in self.table(ref).columns}
        found = {}
        for name in names:
            column = present.get(fields[name].id) if name in fields else None
            if column is None:
                found[name] = "was dropped"
            elif duck_type(column).lower() != fields[name].type:
                found[name] = f"changed its type to {column.type}"
        return found

    def changes(self, ref: LakeRef, names: Sequence[str], after: int) -> ChangeSet:
        """What changed since a snapshot; raises Expired when that can no longer be told."""
        lake = self.lake(ref)
        columns = [c.name for c in self.columns(ref, names)]
        return plan_changes(self._reading(lake), lake, ref.table_id, after, self.head(ref), columns)

    def scan(self, ref: LakeRef, names: Sequence[str], keys: Keys | None = None) -> Scan:
        """The files and inlined rows to read, without those that cannot hold one of the keys."""
        lake = self.lake(ref)
        columns = self.columns(ref, names)
        named = dict(zip(names, columns, strict=True))
        wanted = {named[k].name: v for k, v in keys.items() if k in named} if keys else None
        table = self.table(ref)
        return plan_scan(
            self._reading(lake), lake, table, self.head(ref), [c.name for c in columns], keys=wanted, bounds=None
        )

    def ranges(
        self, ref: LakeRef, columns: Sequence[LakeColumn], files: Sequence[FileScan], inlined: pa.Table
    ) -> dict[int, Range]:
        """Between which values columns lie, by field id, as far as statistics of these files tell."""
        lake = self.lake(ref)
        return value_ranges(self._reading(lake), lake, ref.table_id, columns, files, inlined)

    @cached_property
    def locale(self) -> Locale:
        """Of the database that evaluates expressions."""
        return read_locale(self.conn)

    def history(self, ref: LakeRef) -> catalog.ColumnHistory:
        """How the table's columns came to be."""
        lake = self.lake(ref)
        return catalog.column_history(self._reading(lake), lake, ref.table_id)

    def _reading(self, lake: Lake) -> Connection:
        return self.catalogs.reading(lake, self.conn)


@dataclass(slots=True)
class LakeIo:
    """What was read of lakes, for people."""

    tally: Tally = field(default_factory=Tally)
    pruned: int = 0
    inlined: int = 0

    def count(self, scan: Scan | ChangeSet) -> None:
        """A read by tasks: its files are taken to be read whole."""
        self.pruned += scan.pruned if isinstance(scan, Scan) else 0
        self.inlined += scan.inlined.num_rows
        self.tally.files += len(scan.files)
        self.tally.bytes += sum(spec.file.size for spec in scan.files)

    def as_json(self) -> dict[str, int]:
        return {
            "files": self.tally.files,
            "bytes": self.tally.bytes,
            "skipped": self.pruned,
            "inlined_rows": self.inlined,
        }


def scanned_rows(scan: Scan) -> int:
    """At most how many rows a scan yields."""
    return sum(spec.file.record_count for spec in scan.files) + int(scan.inlined.num_rows)


def scanned(scan: Scan, io: LakeIo) -> Iterator[pa.RecordBatch]:
    """The rows of a scan, on the driver."""
    io.pruned += scan.pruned
    io.inlined += scan.inlined.num_rows
    yield from scan.inlined.to_batches()
    yield from scan_files(scan.files, io.tally)


def changed(changes: ChangeSet, io: LakeIo) -> Iterator[pa.RecordBatch]:
    """Changed rows with their weight behind their columns, on the driver."""
    io.inlined += changes.inlined.num_rows
    wanted = [*range(len(changes.columns)), len(changes.columns) + 2]
    for batch in changes.inlined.to_batches():
        yield batch.select(wanted)
    for batch in scan_files(changes.files, io.tally):
        yield batch.select(wanted)
