"""A table at a snapshot: which files to read, which to leave alone, and the rows that are in no file.

scan = plan_scan(conn, lake, table, snapshot, columns=["id", "total"], keys={"id": [7, 9]})
for file in scan.files:              # anywhere: a FileScan can be pickled
    for batch in scan_file(file): ...
scan.inlined                         # the rest, already read
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa

from runnel.errors import UserError
from runnel.lake.format.bounds import Bounds, Keys, Wanted, keeps, wanted
from runnel.lake.format.catalog import (
    column_history,
    data_files,
    delete_files,
    file_stats,
    inlined_deletes,
    mappings,
)
from runnel.lake.format.model import DataFile, Lake, LakeColumn, LakeTable
from runnel.lake.format.types import NESTED
from runnel.lake.read.inlined import inlined_rows
from runnel.lake.read.input import Tally
from runnel.lake.read.reader import FileScan, scan_file, scan_files, scan_schema

__all__ = ["FileScan", "Scan", "Tally", "plan_scan", "read_all", "scan_file", "scan_files", "scan_schema"]


@dataclass(frozen=True, slots=True)
class Scan:
    """What to read, and how much of the table that is."""

    table: LakeTable
    snapshot: int
    columns: tuple[LakeColumn, ...]
    files: tuple[FileScan, ...]
    inlined: pa.Table
    """Rows from the catalog; the same schema as the files' batches."""
    all_files: int
    """Files that the table has at the snapshot, those that need not be read included."""

    @property
    def schema(self) -> pa.Schema:
        return self.inlined.schema

    @property
    def pruned(self) -> int:
        """Files that statistics ruled out."""
        return self.all_files - len(self.files)


def plan_scan(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table: LakeTable,
    snapshot: int,
    columns: Sequence[str] | None = None,
    keys: Keys | None = None,
    bounds: Bounds | None = None,
    *,
    row_ids: bool = False,
) -> Scan:
    """What to read of a table as it was at a snapshot; `table` as it is at that snapshot.

    `keys` gives columns with the only values of interest, `bounds` with the least and the greatest (None: open). Both
    are hints: files and rows that cannot match are left out where statistics or columns that are read anyway tell.
    """
    chosen = choose_columns(table, columns)
    # Arrow cannot count rows that have no columns, so those have at least their row id.
    row_ids = row_ids or not chosen
    conditions = wanted(table.columns, keys, bounds)
    files = data_files(conn, lake, table, snapshot)
    kept = _prune(conn, lake, table, files, conditions)
    specs = describe(conn, lake, table, kept, FileScan(_NO_FILE, chosen, snapshot, wanted=conditions, row_ids=row_ids))
    if specs:
        by_file = defaultdict(list)
        for delete in delete_files(conn, lake, table, snapshot):
            by_file[delete.data_file_id].append(delete)
        inlined = inlined_deletes(conn, lake, table.id, snapshot)
        specs = [
            replace(spec, deletes=tuple(by_file[spec.file.id]), inlined_deletes=tuple(inlined.get(spec.file.id, ())))
            for spec in specs
        ]
    rest = inlined_rows(conn, lake, table.id, chosen, snapshot, row_ids=row_ids, wanted=conditions)
    return Scan(table, snapshot, chosen, tuple(specs), rest, len(files))


def read_all(scan: Scan, tally: Tally | None = None) -> pa.Table:
    """Everything a scan says, here and now."""
    return pa.Table.from_batches(_batches(scan, tally), scan.schema)


def _batches(scan: Scan, tally: Tally | None) -> Iterator[pa.RecordBatch]:
    yield from scan_files(scan.files, tally)
    yield from (batch for batch in scan.inlined.to_batches() if batch.num_rows)


def choose_columns(table: LakeTable, names: Sequence[str] | None) -> tuple[LakeColumn, ...]:
    """The table's columns of these names, in this order; all of them for None."""
    if names is None:
        return table.columns
    by_name = {column.name: column for column in table.columns}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise UserError(
            f"The lake table {table.schema}.{table.name} has no column {unknown[0]}.",
            hint=f"It has: {', '.join(by_name)}.",
        )
    return tuple(by_name[name] for name in names)


def describe(
    conn: psycopg.Connection[Any], lake: Lake, table: LakeTable, files: Sequence[DataFile], pattern: FileScan
) -> list[FileScan]:
    """A FileScan like `pattern` per file, with what the catalog knows of how the file's columns are to be found."""
    named = mappings(conn, lake, {file.mapping_id for file in files if file.mapping_id is not None})
    # An encrypted file does not tell us its field ids below the top level.
    nested = any(column.type in NESTED for column in pattern.columns)
    secret = nested and any(file.encryption_key is not None for file in files)
    history = column_history(conn, lake, table.id) if secret else None
    return [
        replace(
            pattern,
            file=file,
            mapping=None if file.mapping_id is None else named[file.mapping_id],
            written=history.at(file.begin) if history is not None and file.encryption_key is not None else None,
            options=lake.options,
        )
        for file in files
    ]


def _prune(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table: LakeTable,
    files: Sequence[DataFile],
    conditions: Sequence[Wanted],
) -> list[DataFile]:
    """The files that may hold a row of interest, by the catalog's statistics."""
    kept = list(files)
    if conditions and files:
        stats = file_stats(conn, lake, table.id, [condition.column.id for condition in conditions])
        for condition in conditions:
            known = stats[condition.column.id]
            # A file without statistics of the column may hold anything.
            kept = [file for file in kept if file.id not in known or keeps(condition, *known[file.id][:4])]
    return kept


_NO_FILE = DataFile(-1, "", 0, None, 0, 0, None, None)
