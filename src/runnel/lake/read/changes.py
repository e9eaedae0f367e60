"""The change feed: which rows came and went between two snapshots, from only the files that were added or touched.

Merging and rewriting files and flushing inlined rows change nothing and show nothing. An update is a deletion and an
insertion with the same row id and snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa

from runnel.errors import UserError
from runnel.lake.format.catalog import (
    DATA_FILE,
    DELETE_FILE,
    data_file,
    delete_file,
    inlined_deletes,
    oldest,
    query,
    table_by_id,
)
from runnel.lake.format.model import Lake, LakeColumn, LakeTable
from runnel.lake.read.inlined import inlined_changes
from runnel.lake.read.input import Tally
from runnel.lake.read.reader import FileScan, scan_files
from runnel.lake.read.scan import _NO_FILE, choose_columns, describe

_MOVED = frozenset({"rewrite_delete", "merge_adjacent", "compacted_table"})
_DELETED = frozenset({"deleted_from_table", "inlined_delete"})


class Expired(UserError):
    """The lake no longer knows what changed: snapshots of the window were removed."""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The changes in (after, to]: `read_changes` gives them as rows with `rowid`, `snapshot_id` and `weight`."""

    table: LakeTable
    """As it is at `to`."""
    after: int
    to: int
    columns: tuple[LakeColumn, ...]
    files: tuple[FileScan, ...]
    inlined: pa.Table

    @property
    def schema(self) -> pa.Schema:
        return self.inlined.schema

    @property
    def is_empty(self) -> bool:
        """Whether it is known, without opening a file, that nothing changed."""
        return not self.files and not self.inlined.num_rows

    def only(self, names: Sequence[str]) -> ChangeSet:
        """The same changes with some of the columns."""
        places = {column.name: place for place, column in enumerate(self.columns)}
        columns = tuple(self.columns[places[name]] for name in names)
        extra = range(len(self.columns), self.inlined.num_columns)
        files = tuple(replace(spec, columns=columns) for spec in self.files)
        return replace(
            self, columns=columns, files=files, inlined=self.inlined.select([*(places[n] for n in names), *extra])
        )

    @property
    def most_rows(self) -> int:
        """No more rows than this have changed, as far as the catalog can tell."""
        return int(self.inlined.num_rows) + sum(_most_rows(spec, self.after, self.to) for spec in self.files)

    @property
    def told_rows(self) -> int:
        """How many rows the catalog says have changed; those that may only have been moved are not among them."""
        return int(self.inlined.num_rows) + sum(_told_rows(spec, self.after, self.to) for spec in self.files)


def plan_changes(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table_id: int,
    after: int,
    to: int,
    columns: Sequence[str] | None = None,
    *,
    net: bool = True,
) -> ChangeSet:
    """What changed in a table in (after, to], with its columns as they are at `to`.

    `net` leaves out rows that came and went within the window. Raises `Expired` when the window is no longer known.
    """
    table = table_by_id(conn, lake, table_id, to)
    if table is None:
        raise UserError(f"The lake {lake.name} has no table with id {table_id} at snapshot {to}.")
    chosen = choose_columns(table, columns)
    first_new_file, hidden = _window(conn, lake, table_id, after, to)
    rows = query(
        conn,
        lake,
        f"SELECT {DELETE_FILE} FROM {{lake}}.ducklake_delete_file"
        " WHERE table_id = %(table)s AND delete_file_id >= %(new)s AND begin_snapshot <= %(to)s",
        table=table_id,
        new=first_new_file,
        to=to,
    )
    deleted_in = {row[1] for row in rows}
    deleted_in |= inlined_deletes(conn, lake, table_id, to, after=after).keys()
    files = query(
        conn,
        lake,
        f"SELECT {DATA_FILE} FROM {{lake}}.ducklake_data_file WHERE table_id = %(table)s AND begin_snapshot <= %(to)s"
        " AND (begin_snapshot > %(after)s AND (partial_max IS NOT NULL OR begin_snapshot <> ALL(%(hidden)s))"
        " OR partial_max > %(after)s"
        " OR end_snapshot > %(after)s AND end_snapshot <= %(to)s AND end_snapshot <> ALL(%(hidden)s)"
        " OR data_file_id = ANY(%(deleted)s)) ORDER BY data_file_id",
        table=table_id,
        after=after,
        to=to,
        hidden=sorted(hidden),
        deleted=sorted(deleted_in),
    )
    candidates = [data_file(table, row) for row in files]
    pattern = FileScan(_NO_FILE, chosen, to, after=after, net=net, hidden=hidden)
    specs = describe(conn, lake, table, candidates, pattern)
    if specs:
        ids = [file.id for file in candidates]
        kept = inlined_deletes(conn, lake, table_id, to, ids)
        by_file = defaultdict(list)
        # All of a file's delete files, ended ones included: the first deletion of a position counts.
        for row in query(
            conn,
            lake,
            f"SELECT {DELETE_FILE} FROM {{lake}}.ducklake_delete_file"
            " WHERE table_id = %(table)s AND data_file_id = ANY(%(files)s)",
            table=table_id,
            files=ids,
        ):
            by_file[row[1]].append(delete_file(table, row))
        specs = [
            replace(spec, deletes=tuple(by_file[spec.file.id]), inlined_deletes=tuple(kept.get(spec.file.id, ())))
            for spec in specs
        ]
    inlined = inlined_changes(conn, lake, table_id, chosen, after, to, net=net, hidden=hidden)
    return ChangeSet(table, after, to, chosen, tuple(specs), inlined)


def read_changes(changes: ChangeSet, tally: Tally | None = None) -> pa.Table:
    """All changes, here and now: the columns, then rowid, snapshot_id and weight."""
    return pa.Table.from_batches(_batches(changes, tally), changes.schema)


def _batches(changes: ChangeSet, tally: Tally | None) -> Iterator[pa.RecordBatch]:
    yield from scan_files(changes.files, tally)
    yield from (batch for batch in changes.inlined.to_batches() if batch.num_rows)


def _most_rows(spec: FileScan, after: int, to: int) -> int:
    file = spec.file
    newest = file.begin if file.partial_max is None else file.partial_max
    if newest > after or (file.end is not None and after < file.end <= to):
        return file.record_count
    return min(file.record_count, sum(delete.count for delete in spec.deletes) + len(spec.inlined_deletes))


def _told_rows(spec: FileScan, after: int, to: int) -> int:
    file = spec.file
    if file.partial_max is not None:
        # Rows of several snapshots were brought together here, whenever they came.
        return 0
    if file.begin > after or (file.end is not None and after < file.end <= to):
        return file.record_count
    deleted = sum(delete.count for delete in spec.deletes if after < delete.begin <= to)
    return min(file.record_count, deleted + sum(after < snapshot <= to for _, snapshot in spec.inlined_deletes))


def _window(
    conn: psycopg.Connection[Any], lake: Lake, table_id: int, after: int, to: int
) -> tuple[int, frozenset[int]]:
    """The first file id that did not exist at `after`, and the snapshots that only moved rows."""
    if after >= to:
        return 1 << 62, frozenset()
    rows = query(
        conn,
        lake,
        """SELECT snapshot_id, next_file_id, regexp_replace(changes_made, '"([^"]|"")*"', '', 'g')"""
        " FROM {lake}.ducklake_snapshot LEFT JOIN {lake}.ducklake_snapshot_changes USING (snapshot_id)"
        " WHERE snapshot_id >= %(after)s AND snapshot_id <= %(to)s ORDER BY snapshot_id",
        after=after,
        to=to,
    )
    new = None
    if rows and rows[0][0] == after:
        new = int(rows[0][1])
        rows = rows[1:]
    elif rows and rows[0][0] == after + 1 and not _says(rows[0], _DELETED, table_id):
        # The first snapshot of the window deleted nothing, so nothing is lost with the one before it.
        new = 0
    # What a snapshot deleted is kept as long as the one before it exists; and only one that exists tells whether it
    # added rows or moved them.
    if new is None or len(rows) < to - after:
        raise Expired(
            f"Changes of lake {lake.name} after snapshot {after} are no longer known: "
            f"snapshots between {after} and {to} have expired (the oldest one is {oldest(conn, lake)}).",
            hint="Read the whole table instead, and keep snapshots longer (ducklake_expire_snapshots).",
        )
    return new, frozenset(row[0] for row in rows if _says(row, _MOVED, table_id))


def _says(row: tuple[Any, ...], verbs: frozenset[str], table_id: int) -> bool:
    """Whether a snapshot did one of these things to the table. Names are cut out: they may look like anything."""
    return any(entry in (row[2] or "").split(",") for entry in (f"{verb}:{table_id}" for verb in verbs))
