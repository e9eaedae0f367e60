"""Moving rows to better files without changing anything that anybody can see.

A row of a lake has a life: the snapshots of its birth and of its death, and its row id. Merging small files, flushing
inlined rows and rewriting files with many deletes are one operation: take rows with their lives from where they are,
write those that live to one file and the dead to another (`lives.py`), and let the catalog forget the old places. The
dead file ends with the snapshot that makes it. So every snapshot, and the changes between any two, read as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from runnel.lake.format.catalog import delete_files, inlined_deletes
from runnel.lake.format.model import DataFile, DeleteFile, Lake, LakeColumn, LakeTable, WrittenFile
from runnel.lake.format.statements import Row, execute
from runnel.lake.read.inlined import InlinedVersions
from runnel.lake.read.reader import NEVER, FileScan
from runnel.lake.read.scan import _NO_FILE, describe
from runnel.lake.store.storage import open_store
from runnel.lake.upkeep.lives import Move, NewFile, Shelf, move
from runnel.lake.write.commit import Draft, LakeConflict, conflict, snapshot
from runnel.lake.write.files import insert_data_file, insert_delete_file, schedule_deletion

if TYPE_CHECKING:
    from psycopg import Connection

OPTIMISTIC = 2
"""Times that files are prepared before the catalog is locked; after that, they are prepared under the lock."""


class Tasks(Protocol):
    """Others who move rows, several at once."""

    @property
    def threshold(self) -> int:
        """They are asked when there are more rows than this to move."""

    @property
    def at_once(self) -> int:
        """How many moves they do side by side."""

    def move(self, moves: Sequence[Move]) -> list[list[NewFile]]:
        """Do all of them; the new files of each."""


@dataclass(slots=True)
class Workshop:
    """A table under maintenance: its connections, its files, and what was uploaded for it so far."""

    conn: Connection[Any]
    """Not in a transaction, and READ COMMITTED: a commit looks at what is there when it has the lock."""
    observer: Connection[Any]
    lake: Lake
    table: LakeTable
    compression: str = "zstd"
    tasks: Tasks | None = None
    uploaded: list[str] = field(default_factory=list)

    @property
    def shelf(self) -> Shelf:
        """Where new files go."""
        store = open_store(self.table.path, self.lake.options)
        return Shelf(store, self.table.path, self.compression, self.lake.encrypted)

    def uploads(self, new: Iterable[NewFile]) -> tuple[NewFile, ...]:
        """Remember new files, which are removed again if they are not committed."""
        made = []
        for each in new:
            made.append(each)
            self.uploaded += [self.table.path + name for name in each.names]
        return tuple(made)

    def move(self, moves: Sequence[Move]) -> list[tuple[NewFile, ...]]:
        """Move rows to new files: by tasks if there are any, and many rows; otherwise here."""
        if self.tasks is None or sum(each.rows for each in moves) <= self.tasks.threshold:
            return [self.uploads(move(each)) for each in moves]
        return [self.uploads(new) for new in self.tasks.move(moves)]

    def commit(self, prepare: Callable[[], Sequence[Change]], message: str) -> bool:
        """Prepare changes and commit them; again if others were faster. False if there is nothing (left) to do."""
        for _ in range(OPTIMISTIC):
            changes = prepare()
            if not changes:
                return False
            try:
                with self.conn.transaction():
                    self.conn.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                    with snapshot(self.conn, self.observer, self.lake, message=message) as draft:
                        for change in changes:
                            change.apply(draft)
            except LakeConflict:
                self.discard()
            except BaseException:
                self.discard()
                raise
            else:
                self.uploaded.clear()
                return True
        return self._commit_locked(prepare, message)

    def _commit_locked(self, prepare: Callable[[], Sequence[Change]], message: str) -> bool:
        """Others write all the time: let them wait for once."""
        try:
            with self.conn.transaction():
                self.conn.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                with snapshot(self.conn, self.observer, self.lake, message=message) as draft:
                    changes = prepare()
                    if not changes:
                        raise _NothingToDo
                    for change in changes:
                        change.apply(draft)
        except _NothingToDo:
            return False
        except BaseException:
            self.discard()
            raise
        self.uploaded.clear()
        return True

    def discard(self) -> None:
        """Remove what was uploaded for a change that did not happen."""
        paths, self.uploaded = self.uploaded, []
        self.shelf.store.delete(paths)


class _NothingToDo(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Change:
    """Catalog changes that replace old places of rows by new files."""

    lake: Lake
    table: LakeTable
    new: tuple[NewFile, ...]
    files: tuple[DataFile, ...] = ()
    """Data files that go, with their delete files and inlined deletes."""
    state: frozenset[Row] = frozenset()
    """What was known of them when the new files were written; see `state_of`."""
    deletes: tuple[tuple[DataFile, WrittenFile, tuple[int, int]], ...] = ()
    """New delete files of data files that stay, with their first and last death."""
    inlined: tuple[InlinedVersions, ...] = ()
    """Inlined rows that go."""
    partition: tuple[int | None, tuple[Row, ...]] = (None, ())
    """The partition of the files, and its values by key index."""

    def apply(self, draft: Draft) -> None:
        """Write the catalog's rows; nobody can change anything while this runs."""
        touched = [file.id for file in (*self.files, *(file for file, _, _ in self.deletes))]
        if state_of(draft.conn, self.lake, self.table, touched) != self.state:
            raise conflict(self.lake, f"another writer changed files of table {self.table.name}")
        self._forget_files(draft, touched)
        for inlined in self.inlined:
            _remove_inlined(draft, self.table, inlined)
        for new in self.new:
            self._insert(draft, new)
        for file, written, deaths in self.deletes:
            insert_delete_file(
                draft, self.table, file.id, written, begin=deaths[0], end=None, partial_max=_several(deaths)
            )
        draft.stats_changed()
        # Deletes of both kinds conflict with the one or the other, inserts with none.
        draft.announce(f"merge_adjacent:{self.table.id}", f"inline_flush:{self.table.id}")

    def _insert(self, draft: Draft, new: NewFile) -> None:
        partition, values = self.partition
        end = None if new.deletes is None else draft.id
        id = insert_data_file(
            draft,
            self.table,
            new.file,
            begin=new.begin,
            end=end,
            row_id_start=None,
            partial_max=new.partial_max,
            partition_id=partition,
            partition_values=dict(values),
        )
        if new.deletes is not None:
            insert_delete_file(
                draft, self.table, id, new.deletes, begin=new.deaths[0], end=end, partial_max=_several(new.deaths)
            )

    def _forget_files(self, draft: Draft, touched: Sequence[int]) -> None:
        ids = [file.id for file in self.files]
        gone = [(file.id, file.path) for file in self.files]
        old = [row for row in self.state if row[0] == "delete"]
        gone += [(row[2], row[3]) for row in old]
        draft.change(
            len(ids),
            "DELETE FROM {lake}.ducklake_data_file WHERE data_file_id = ANY(%s) AND end_snapshot IS NULL",
            (ids,),
        )
        draft.change(
            len(old),
            "DELETE FROM {lake}.ducklake_delete_file WHERE delete_file_id = ANY(%s) AND end_snapshot IS NULL",
            ([row[2] for row in old],),
        )
        for part in ("file_column_stats", "file_variant_stats", "file_partition_value"):
            draft.run(f"DELETE FROM {{lake}}.ducklake_{part} WHERE data_file_id = ANY(%s)", (ids,))
        if any(row[0] == "inlined" for row in self.state):
            draft.run(
                f"DELETE FROM {{lake}}.ducklake_inlined_delete_{self.table.id} WHERE file_id = ANY(%s)",
                (list(touched),),
            )
        schedule_deletion(draft, gone)


def state_of(conn: Connection[Any], lake: Lake, table: LakeTable, files: Sequence[int]) -> frozenset[Row]:
    """All that can change about live data files: whether they are live, their delete files, their inlined deletes."""
    wanted = set(files)
    rows: set[Row] = set(
        execute(
            conn,
            lake.schema,
            "SELECT 'live', data_file_id FROM {lake}.ducklake_data_file "
            "WHERE data_file_id = ANY(%s) AND end_snapshot IS NULL",
            (sorted(wanted),),
        ).fetchall()
    )
    for delete in delete_files(conn, lake, table, NEVER - 1):
        if delete.data_file_id in wanted:
            rows.add(("delete", delete.data_file_id, delete.id, delete.path))
    for file, found in inlined_deletes(conn, lake, table.id, NEVER - 1, sorted(wanted)).items():
        rows.update(("inlined", file, position, born) for position, born in found)
    return frozenset(rows)


def scans_of(
    conn: Connection[Any], lake: Lake, table: LakeTable, files: Sequence[DataFile], columns: tuple[LakeColumn, ...]
) -> list[FileScan]:
    """How to read live files with all their deletions."""
    deletes: dict[int, list[DeleteFile]] = {}
    for each in delete_files(conn, lake, table, NEVER - 1):
        deletes.setdefault(each.data_file_id, []).append(each)
    inlined = inlined_deletes(conn, lake, table.id, NEVER - 1, [file.id for file in files])
    return [
        replace(
            spec, deletes=tuple(deletes.get(spec.file.id, ())), inlined_deletes=tuple(inlined.get(spec.file.id, ()))
        )
        for spec in describe(conn, lake, table, files, FileScan(_NO_FILE, columns, NEVER - 1))
    ]


def _remove_inlined(draft: Draft, table: LakeTable, inlined: InlinedVersions) -> None:
    """Take out exactly the rows that were written to a file, each as it was then."""
    rows = draft.run(
        f'DELETE FROM {{lake}}."{inlined.name}" WHERE begin_snapshot <= %s '
        "RETURNING row_id, begin_snapshot, end_snapshot",
        (max(born for _, born, _ in inlined.numbers),),
    )
    if sorted(rows, key=_order) != sorted(inlined.numbers, key=_order):
        raise conflict(draft.lake, f"another writer changed inlined rows of table {table.name}")


def _order(row: Row) -> tuple[int, ...]:
    return tuple(-1 if number is None else number for number in row)


def _several(deaths: tuple[int, int]) -> int | None:
    return deaths[1] if deaths[0] != deaths[1] else None
