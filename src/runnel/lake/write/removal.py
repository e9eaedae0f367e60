"""Rows that leave a table, within a draft snapshot: whole files, positions of files, rows in the catalog.

Before the lock it is found out what was deleted in a file already, and a delete file is written with the number that
the snapshot will probably have. Under the lock the file is written again if it has another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg

from runnel.lake.format.catalog import inlined_deletes
from runnel.lake.format.model import DataFile, DeleteFile, Lake, LakeTable, WrittenFile
from runnel.lake.read.input import Tally
from runnel.lake.read.reader import NEVER, FileScan, deletions
from runnel.lake.store.storage import open_store
from runnel.lake.write.commit import Draft
from runnel.lake.write.deletions import Deletions, Ints, write_delete_file
from runnel.lake.write.files import end_data_file, replace_delete_file
from runnel.lake.write.inline import end_inlined_rows


@dataclass(frozen=True, slots=True)
class Former:
    """What was deleted in a data file already."""

    file: DataFile
    old: DeleteFile | None
    listed: Deletions
    """What is in its delete file."""
    every: Ints
    """All positions, those in the catalog too."""
    is_inlined: bool
    """Whether some are in the catalog."""


@dataclass(slots=True)
class Removal:
    """What is to go."""

    lake: Lake
    table: LakeTable
    ended: list[int] = field(default_factory=list)
    """Files that go whole."""
    positions: list[tuple[Former, Ints]] = field(default_factory=list)
    row_ids: list[int] = field(default_factory=list)
    """Rows in the catalog."""
    uploaded: list[str] = field(default_factory=list)
    _written: tuple[int, dict[int, WrittenFile]] = (-1, {})

    @property
    def is_empty(self) -> bool:
        return not (self.ended or self.positions or self.row_ids)

    def remove(self, former: Former, positions: Ints) -> None:
        """Delete positions (ascending) of a file that are not deleted yet; with the last of them the file goes."""
        if not len(positions):
            return
        # A file with deletes in the catalog cannot end: its last rows are deleted one by one.
        if len(positions) + len(former.every) == former.file.record_count and not former.is_inlined:
            self.ended.append(former.file.id)
        else:
            self.positions.append((former, positions))

    def remove_all(self, former: Former) -> None:
        """Delete all that is left in a file."""
        every = np.arange(former.file.record_count, dtype=np.int64)
        if former.is_inlined:
            self.remove(former, np.setdiff1d(every, former.every))
        else:
            self.ended.append(former.file.id)

    def write(self, number: int) -> dict[int, WrittenFile]:
        """Write the delete files for a snapshot of this number, once."""
        if self._written[0] != number:
            store = open_store(self.table.path, self.lake.options)
            made = {}
            for former, positions in self.positions:
                every = former.listed | Deletions.at(positions, number)
                file = made[former.file.id] = write_delete_file(
                    store, self.table.path, former.file.path, every, encrypt=self.lake.encrypted
                )
                self.uploaded.append(self.table.path + file.path)
            self._written = number, made
        return self._written[1]

    def apply(self, draft: Draft, table: LakeTable) -> None:
        """Write the catalog's rows."""
        for id in self.ended:
            end_data_file(draft, table, id)
        if self.row_ids:
            end_inlined_rows(draft, table, self.row_ids)
        written = self.write(draft.id)
        for former, _ in self.positions:
            replace_delete_file(draft, table, former.file.id, former.old, written[former.file.id])

    def discard(self) -> None:
        """Remove what was written for a commit that did not happen."""
        paths, self.uploaded = self.uploaded, []
        open_store(self.table.path, self.lake.options).delete(paths)


def former(lake: Lake, file: DataFile, deletes: Sequence[DeleteFile], inlined: Sequence[tuple[int, int]]) -> Former:
    """Read what was deleted in a file: by its live delete file, and in the catalog (positions with snapshots)."""
    live = [each for each in deletes if each.end is None]
    scan = FileScan(file, (), NEVER, deletes=tuple(live), options=lake.options)
    listed = Deletions(*deletions(scan, Tally()))
    kept = np.array([position for position, _ in inlined], dtype=np.int64)
    return Former(file, live[0] if live else None, listed, np.union1d(listed.positions, kept), bool(inlined))


def formers(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table: LakeTable,
    files: Sequence[DataFile],
    deletes: Sequence[DeleteFile],
) -> list[Former]:
    """The same of several files, as a connection sees them."""
    kept = inlined_deletes(conn, lake, table.id, int(NEVER) - 1, [file.id for file in files])
    return [
        former(lake, file, [each for each in deletes if each.data_file_id == file.id], kept.get(file.id, ()))
        for file in files
    ]
