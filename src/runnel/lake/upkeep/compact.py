"""Moving rows to better files without changing anything that anybody can see.

A row of a lake has a life: the snapshots of its birth and of its death, and its row id. Merging small files, flushing
inlined rows and rewriting files with many deletes are one operation: take rows with their lives from where they are,
write those that live to one file and the dead to another, and let the catalog forget the old places. The live file
carries births and row ids in columns of its own. The dead file ends with the snapshot that makes it, and has a delete
file that tells every row's death. So every snapshot, and the changes between any two, read as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runnel.lake.format.catalog import delete_files, inlined_deletes
from runnel.lake.format.model import DataFile, DeleteFile, Lake, LakeColumn, LakeTable, WrittenFile
from runnel.lake.format.statements import Row, execute
from runnel.lake.read.inlined import InlinedVersions
from runnel.lake.read.reader import NEVER, FileScan, versions
from runnel.lake.read.scan import _NO_FILE, describe
from runnel.lake.store.storage import Store, open_store
from runnel.lake.write.commit import Draft, LakeConflict, conflict, snapshot
from runnel.lake.write.deletions import Deletions, write_delete_file
from runnel.lake.write.files import insert_data_file, insert_delete_file, schedule_deletion
from runnel.lake.write.parquet import ROW_ID, SNAPSHOT_ID, Form, file_name, write_file

if TYPE_CHECKING:
    from psycopg import Connection

Ints = npt.NDArray[np.int64]

MOVED = "moved"
"""In the names of files that maintenance makes: only one maintenance works on a lake, so the next one knows that such
a file without a row of the catalog was left behind."""

OPTIMISTIC = 2
"""Times that files are prepared before the catalog is locked; after that, they are prepared under the lock."""


@dataclass(frozen=True, slots=True)
class Lives:
    """Rows with their row ids, births and deaths (NEVER for those that live)."""

    columns: tuple[LakeColumn, ...]
    rows: pa.Table
    ids: Ints
    born: Ints
    died: Ints


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that was uploaded, and its place in history."""

    file: WrittenFile
    begin: int
    partial_max: int | None
    deletes: WrittenFile | None
    """Of a dead file: all its rows."""
    deaths: tuple[int, int]
    """The first and the last of them."""


@dataclass(slots=True)
class Workshop:
    """A table under maintenance: its connections, its files, and what was uploaded for it so far."""

    conn: Connection[Any]
    """Not in a transaction, and READ COMMITTED: a commit looks at what is there when it has the lock."""
    observer: Connection[Any]
    lake: Lake
    table: LakeTable
    compression: str = "zstd"
    uploaded: list[str] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return open_store(self.table.path, self.lake.options)

    def name(self, kind: str = "") -> str:
        """A name for a file of this table, which is removed again if it is not committed."""
        name = file_name(f"{MOVED}-{kind}" if kind else MOVED)
        self.uploaded.append(self.table.path + name)
        return name

    def write(self, lives: Lives, since: int) -> Iterator[NewFile]:
        """Write rows to a live file and to dead ones. What died before snapshot `since` nobody can ask for."""
        alive = lives.died == NEVER
        yield from self._write(lives, np.flatnonzero(alive), dead=False)
        # A row that came and went in one snapshot was never there.
        dead = np.flatnonzero(~alive & (lives.died >= since) & (lives.died > lives.born))
        # One file must not hold two versions of a row: DuckDB's change feed would mix them up.
        for part in _apart(dead, lives.ids[dead]):
            yield from self._write(lives, part, dead=True)

    def _write(self, lives: Lives, places: Ints, *, dead: bool) -> Iterator[NewFile]:
        if not len(places):
            return
        born, died = lives.born[places], lives.died[places]
        rows = lives.rows.take(pa.array(places))
        rows = rows.append_column(ROW_ID, pa.array(lives.ids[places], pa.int64()))
        partial = int(born.min()) != int(born.max())
        if partial:
            rows = rows.append_column(SNAPSHOT_ID, pa.array(born, pa.int64()))
        store, encrypt = self.store, self.lake.encrypted
        form = Form(lives.columns, self.compression, encrypt)
        file = write_file(store, self.table.path, form, rows.to_batches(), self.name())
        deletes = None
        if dead:
            # All deaths, the last one too: of rows that go with their whole file, DuckDB tells the snapshot of birth.
            path, deaths = self.table.path + file.path, Deletions(np.arange(len(died)), died)
            deletes = write_delete_file(store, self.table.path, path, deaths, encrypt=encrypt, name=self.name("delete"))
        yield NewFile(
            file, int(born.min()), int(born.max()) if partial else None, deletes, (int(died.min()), int(died.max()))
        )

    def commit(self, prepare: Callable[[], Change | None], message: str) -> bool:
        """Prepare a change and commit it; again if others were faster. False if there is nothing (left) to do."""
        for _ in range(OPTIMISTIC):
            change = prepare()
            if change is None:
                return False
            try:
                with self.conn.transaction():
                    self.conn.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                    with snapshot(self.conn, self.observer, self.lake, message=message) as draft:
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

    def _commit_locked(self, prepare: Callable[[], Change | None], message: str) -> bool:
        """Others write all the time: let them wait for once."""
        try:
            with self.conn.transaction():
                self.conn.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                with snapshot(self.conn, self.observer, self.lake, message=message) as draft:
                    change = prepare()
                    if change is None:
                        raise _NothingToDo
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
        self.store.delete(paths)


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
        )
        draft.run_many(
            "INSERT INTO {lake}.ducklake_file_partition_value VALUES (%s, %s, %s, %s)",
            [(id, self.table.id, index, value) for index, value in values],
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


def lives_of_files(
    conn: Connection[Any], lake: Lake, table: LakeTable, files: Sequence[DataFile], columns: tuple[LakeColumn, ...]
) -> Lives:
    """Read files of one shape, whole."""
    parts: list[tuple[list[pa.Array], Ints, Ints, Ints]] = []
    for spec in scans_of(conn, lake, table, files, columns):
        parts += versions(spec)
    schema = pa.schema([pa.field(str(place), array.type) for place, array in enumerate(parts[0][0])])
    return Lives(
        columns,
        pa.Table.from_batches([pa.RecordBatch.from_arrays(arrays, schema=schema) for arrays, *_ in parts]),
        *(np.concatenate([part[place] for part in parts]) for place in (1, 2, 3)),
    )


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


def lives_of_inlined(inlined: InlinedVersions) -> Lives:
    schema = pa.schema([pa.field(str(place), array.type) for place, array in enumerate(inlined.arrays)])
    return Lives(
        inlined.columns,
        pa.Table.from_arrays(inlined.arrays, schema=schema),
        np.array([row_id for row_id, _, _ in inlined.numbers], dtype=np.int64),
        np.array([born for _, born, _ in inlined.numbers], dtype=np.int64),
        np.array([NEVER if died is None else died for _, _, died in inlined.numbers], dtype=np.int64),
    )


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


def _apart(places: Ints, ids: Ints) -> Iterator[Ints]:
    """Places in as many portions as are needed for no row id to be twice in one of them.

    >>> [part.tolist() for part in _apart(np.array([4, 5, 6, 7]), np.array([1, 2, 1, 1]))]
    [[4, 5], [6], [7]]
    """
    while len(places):
        _, first = np.unique(ids, return_index=True)
        first.sort()
        yield places[first]
        rest = np.ones(len(places), dtype=np.bool_)
        rest[first] = False
        places, ids = places[rest], ids[rest]


def _several(deaths: tuple[int, int]) -> int | None:
    return deaths[1] if deaths[0] != deaths[1] else None
