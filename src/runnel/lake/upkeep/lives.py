"""Rows with their lives, taken from old files and written to new ones; on the driver or in a task.

Those that live go to one file, which carries births and row ids in columns of its own. The dead go to others, each with
a delete file that tells every row's death. Few rows are read once. Of many, first the numbers are read and then, for
each new file, the rows, so that no more than a row group of them is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runnel.lake.format.model import LakeColumn, WrittenFile
from runnel.lake.read.reader import NEVER, FileScan, versions
from runnel.lake.store.storage import Store
from runnel.lake.write.deletions import FOR_BOTH, Deletions, write_delete_file
from runnel.lake.write.parquet import ROW_ID, SNAPSHOT_ID, Form, file_name, write_file

Ints = npt.NDArray[np.int64]
Columns = tuple[LakeColumn, ...]

MOVED = "moved"
"""In the names of files that maintenance makes: only one maintenance works on a lake, so the next one knows that such
a file without a row of the catalog was left behind."""

_FEW = 100_000
"""So many rows of old files are kept in memory."""


@dataclass(frozen=True, slots=True)
class Lives:
    """Rows with their row ids, births and deaths (NEVER for those that live)."""

    columns: Columns
    parts: Callable[[], Iterable[Sequence[pa.Array]]]
    """The rows' columns, in consecutive parts; they may be read anew each time."""
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

    @property
    def names(self) -> list[str]:
        """What was uploaded."""
        return [self.file.path] if self.deletes is None else [self.file.path, self.deletes.path]


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where new files go, and what they are like."""

    store: Store
    folder: str
    compression: str
    encrypt: bool


@dataclass(frozen=True, slots=True)
class Move:
    """Files of one shape whose rows go to new ones; small, and can be pickled."""

    scans: tuple[FileScan, ...]
    columns: Columns
    shelf: Shelf
    since: int
    """What died before this snapshot nobody can ask for."""

    @property
    def rows(self) -> int:
        """How many there are, dead ones included."""
        return sum(scan.file.record_count for scan in self.scans)


def moved_name(kind: str = "") -> str:
    """A name for a file that maintenance makes."""
    return file_name(f"{MOVED}-{kind}" if kind else MOVED)


def move(task: Move) -> list[NewFile]:
    """Do it."""
    return list(write_lives(lives_of_files(task.scans, task.columns), task.shelf, task.since))


def lives_of_files(scans: Sequence[FileScan], columns: Columns) -> Lives:
    """The rows of files of one shape."""
    if sum(scan.file.record_count for scan in scans) <= _FEW:
        kept = [part for scan in scans for part in versions(scan)]
        return Lives(columns, lambda: [part[0] for part in kept], *_joined(kept))
    bare = [replace(scan, deletes=(), inlined_deletes=()) for scan in scans]
    numbers = [part for scan in scans for part in versions(replace(scan, columns=()))]
    return Lives(columns, lambda: (part[0] for scan in bare for part in versions(scan)), *_joined(numbers))


def write_lives(lives: Lives, shelf: Shelf, since: int) -> Iterator[NewFile]:
    """Write rows to a live file and to dead ones. What died before snapshot `since` nobody can ask for."""
    alive = lives.died == NEVER
    yield from _write(lives, shelf, np.flatnonzero(alive), dead=False)
    # A row that came and went in one snapshot was never there.
    dead = np.flatnonzero(~alive & (lives.died >= since) & (lives.died > lives.born))
    # One file must not hold two versions of a row: DuckDB's change feed would mix them up.
    for part in _apart(dead, lives.ids[dead]):
        yield from _write(lives, shelf, part, dead=True)


def _write(lives: Lives, shelf: Shelf, places: Ints, *, dead: bool) -> Iterator[NewFile]:
    if not len(places):
        return
    born, died = lives.born[places], lives.died[places]
    partial = int(born.min()) != int(born.max())
    form = Form(lives.columns, shelf.compression, shelf.encrypt)
    file = write_file(shelf.store, shelf.folder, form, _batches(lives, places, partial), moved_name())
    deletes = None
    if dead:
        # All deaths, the last one too: of rows that go with their whole file, DuckDB tells the snapshot of birth.
        deletes = write_delete_file(
            shelf.store,
            shelf.folder,
            shelf.folder + file.path,
            Deletions(np.arange(len(died), dtype=np.int64), died),
            encrypt=shelf.encrypt,
            name=moved_name(FOR_BOTH),
        )
    yield NewFile(
        file, int(born.min()), int(born.max()) if partial else None, deletes, (int(died.min()), int(died.max()))
    )


def _batches(lives: Lives, places: Ints, partial: bool) -> Iterator[pa.RecordBatch]:
    """The rows at these places (ascending), with their row ids and, if these differ, their births."""
    names = [str(place) for place in range(len(lives.columns))]
    start = 0
    for arrays in lives.parts():
        end = start + len(arrays[0])
        chosen = places[slice(*np.searchsorted(places, (start, end)))]
        if len(chosen):
            rows = pa.RecordBatch.from_arrays(list(arrays), names=names)
            if len(chosen) < rows.num_rows:
                rows = rows.take(pa.array(chosen - start))
            rows = rows.append_column(ROW_ID, pa.array(lives.ids[chosen], pa.int64()))
            yield rows.append_column(SNAPSHOT_ID, pa.array(lives.born[chosen], pa.int64())) if partial else rows
        start = end


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


def _joined(parts: Sequence[tuple[list[pa.Array], Ints, Ints, Ints]]) -> tuple[Ints, Ints, Ints]:
    """Row ids, births and deaths."""
    if not parts:
        return (nothing := np.empty(0, dtype=np.int64)), nothing, nothing
    ids, born, died = zip(*((part[1], part[2], part[3]) for part in parts), strict=True)
    return np.concatenate(ids), np.concatenate(born), np.concatenate(died)
