"""Keeping a lake in shape: merge small files, flush inlined rows, rewrite files with many deletes, remove old files.

Safe beside readers and other writers: what they see does not change, and files go only after a time of grace.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from psycopg.conninfo import make_conninfo
from psycopg.errors import LockNotAvailable

from runnel.catalog.sessions import connect
from runnel.errors import RunnelError
from runnel.lake.format.catalog import ColumnHistory, data_files, delete_files, head, inlined_deletes, oldest, tables
from runnel.lake.format.model import DataFile, Lake, LakeColumn, LakeTable
from runnel.lake.format.statements import Row, execute
from runnel.lake.read.inlined import inlined_versions
from runnel.lake.read.input import Tally
from runnel.lake.read.reader import deletions
from runnel.lake.upkeep import sweep
from runnel.lake.upkeep.compact import MOVED, Change, Workshop, lives_of_files, lives_of_inlined, scans_of, state_of
from runnel.lake.write.deletions import Deletions, write_delete_file
from runnel.lake.write.parquet import can_write

if TYPE_CHECKING:
    from psycopg import Connection

MEGABYTE = 1024 * 1024
LOCK_TIMEOUT = "2s"


@dataclass(frozen=True, slots=True)
class Settings:
    """When a table's files are worth the work."""

    small_file: int = 16 * MEGABYTE
    """Files below this size are merged ..."""
    min_files: int = 5
    """... when so many of them can become one ..."""
    target_size: int = 32 * MEGABYTE
    """... of at most about this size. Its rows are in memory for a moment, which takes several times as much."""
    deleted_share: float = 0.3
    """A file is rewritten when at least this part of its rows is deleted."""
    flush_rows: int = 1
    """Inlined rows and deletes are flushed when there are so many of them."""
    grace: dt.timedelta = dt.timedelta(hours=1)
    """How long a file that is no longer needed stays for those who still read it."""
    orphan_grace: dt.timedelta = dt.timedelta(hours=24)
    """How old a file must be that no catalog row knows: others may be about to commit it."""
    compression: str = "zstd"


@dataclass(slots=True)
class Report:
    """What was done."""

    flushed_rows: int = 0
    flushed_deletes: int = 0
    merged_files: int = 0
    new_files: int = 0
    removed_files: int = 0
    removed_orphans: int = 0
    tables: list[str] = field(default_factory=list)
    """Those that changed, as schema.name."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Tables that were left alone, and why."""


def maintain(
    conn: Connection[Any],
    observer: Connection[Any],
    lake: Lake,
    settings: Settings | None = None,
    *,
    only: Collection[str] | None = None,
    pending: Collection[str] = (),
    stopping: Callable[[], bool] = lambda: False,
) -> Report:
    """Do all there is to do, table by table, each change in a transaction and a snapshot of its own.

    Both connections are in autocommit. `only` names tables as `schema.name`; `pending` are paths of files that
    somebody has uploaded and not committed yet; `stopping` is asked before each table. A table that fails is skipped;
    the others are done.
    """
    settings, report = settings or Settings(), Report()
    with _beside(observer) as guard, alone(guard, lake) as free:
        if not free:
            report.skipped["*"] = "another maintenance of the lake is at work"
            return report
        for table in tables(observer, lake, head(observer, lake)):
            name = f"{table.schema}.{table.name}"
            if stopping():
                return report
            if only is None or name in only:
                _maintain_table(Workshop(conn, observer, lake, table, settings.compression), settings, report)
        report.removed_files += sweep.remove_scheduled(conn, lake, settings.grace)
        report.removed_orphans += sweep.remove_orphans(observer, lake, settings.orphan_grace, pending, left=MOVED)
    return report


def _beside(conn: Connection[Any]) -> Connection[Any]:
    """Another session like this one: a lock lasts as long as its transaction, and the others have work to commit."""
    return connect(make_conninfo(conn.info.dsn, password=conn.info.password or None), "runnel upkeep", timeout=10)


@contextmanager
def alone(conn: Connection[Any], lake: Lake) -> Iterator[bool]:
    """Whether nobody else maintains the lake; nobody will until the block ends.

    The lock is on a table of the catalog, so only who may write to the lake can hold it; readers and writers pass it.
    The connection is used for nothing else: it holds a transaction open.
    """
    with conn.transaction():
        try:
            with conn.transaction():
                execute(conn, lake.schema, f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                execute(conn, lake.schema, "LOCK TABLE {lake}.ducklake_metadata IN SHARE UPDATE EXCLUSIVE MODE")
                execute(conn, lake.schema, "SET LOCAL lock_timeout = 0")
        except LockNotAvailable:
            yield False
        else:
            yield True


def _maintain_table(workshop: Workshop, settings: Settings, report: Report) -> None:
    name = f"{workshop.table.schema}.{workshop.table.name}"
    try:
        changed = flush(workshop, settings, report)
        changed = merge(workshop, settings, report) or changed
    except (RunnelError, pa.ArrowException) as error:
        workshop.discard()
        report.skipped[name] = " ".join(str(error).split())
        return
    if changed:
        report.tables.append(name)


def flush(workshop: Workshop, settings: Settings, report: Report) -> bool:
    """Move inlined rows and inlined deletes of a table to files."""
    lake, table, observer = workshop.lake, workshop.table, workshop.observer
    counts: list[tuple[int, int]] = []

    def prepare() -> Change | None:
        base = head(observer, lake)
        rows = [each for each in inlined_versions(observer, lake, table.id, base) if can_write(each.columns)]
        deleted = inlined_deletes(observer, lake, table.id, base)
        counts[:] = [(sum(len(each.numbers) for each in rows), sum(len(found) for found in deleted.values()))]
        if sum(counts[0]) < max(1, settings.flush_rows):
            return None
        files = [file for file in data_files(observer, lake, table, base) if file.id in deleted]
        since = oldest(observer, lake)
        new = [made for each in rows for made in workshop.write(lives_of_inlined(each), since)]
        state = state_of(observer, lake, table, [file.id for file in files])
        deletes = []
        for scan in scans_of(observer, lake, table, files, ()):
            deaths = Deletions(*deletions(scan, Tally()))
            name = workshop.name("delete")
            written = write_delete_file(
                workshop.store, table.path, scan.file.path, deaths, encrypt=lake.encrypted, name=name
            )
            deletes.append((scan.file, written, (int(deaths.snapshots.min()), int(deaths.snapshots.max()))))
        return Change(lake, table, tuple(new), state=state, deletes=tuple(deletes), inlined=tuple(rows))

    if not workshop.commit(prepare, f"flush inlined rows of {table.schema}.{table.name}"):
        return False
    report.flushed_rows += counts[0][0]
    report.flushed_deletes += counts[0][1]
    return True


def merge(workshop: Workshop, settings: Settings, report: Report) -> bool:
    """Merge a table's small files and rewrite those with many deletes, until nothing is worth it any more."""
    lake, table, observer = workshop.lake, workshop.table, workshop.observer
    done: set[int] = set()
    last: list[Change] = []

    def prepare() -> Change | None:
        last.clear()
        base = head(observer, lake)
        chosen = next((each for each in worthwhile(observer, lake, table, base, settings) if not done & each.ids), None)
        if chosen is None:
            return None
        state = state_of(observer, lake, table, sorted(chosen.ids))
        lives = lives_of_files(observer, lake, table, chosen.files, chosen.columns)
        new = tuple(workshop.write(lives, oldest(observer, lake)))
        last.append(Change(lake, table, new, chosen.files, state, partition=(chosen.partition, chosen.values)))
        return last[0]

    changed = False
    while workshop.commit(prepare, f"merge files of {table.schema}.{table.name}"):
        changed = True
        done.update(file.id for file in last[0].files)
        report.merged_files += len(last[0].files)
        report.new_files += len(last[0].new)
    return changed


@dataclass(frozen=True, slots=True)
class Bin:
    """Files of one shape and one partition that may become one."""

    files: tuple[DataFile, ...]
    columns: tuple[LakeColumn, ...]
    partition: int | None
    values: tuple[Row, ...]

    @property
    def ids(self) -> set[int]:
        return {file.id for file in self.files}


def worthwhile(conn: Connection[Any], lake: Lake, table: LakeTable, at: int, settings: Settings) -> Iterator[Bin]:
    """Files that should be merged or rewritten, in portions that fit into memory."""
    files = data_files(conn, lake, table, at)
    deleted: dict[int, int] = defaultdict(int)
    for each in delete_files(conn, lake, table, at):
        deleted[each.data_file_id] += each.count
    for id, found in inlined_deletes(conn, lake, table.id, at).items():
        deleted[id] += len(found)
    heavy = {
        file.id for file in files if deleted[file.id] and deleted[file.id] >= settings.deleted_share * file.record_count
    }
    candidates = [file for file in files if file.id in heavy or file.size < settings.small_file]
    history = ColumnHistory(conn, lake, table.id)
    values = _partition_values(conn, lake, [file.id for file in candidates if file.partition_id is not None])
    groups: dict[tuple[Any, ...], list[DataFile]] = defaultdict(list)
    for file in sorted(candidates, key=lambda file: (file.begin, file.id)):
        groups[history.at(file.begin), file.partition_id, values.get(file.id, ())].append(file)
    for (columns, partition, keys), members in groups.items():
        if not can_write(columns):
            continue
        for portion in _portions(members, settings.target_size):
            if len(portion) >= settings.min_files or any(file.id in heavy for file in portion):
                yield Bin(tuple(portion), columns, partition, keys)


def _portions(files: Sequence[DataFile], size: int) -> Iterator[list[DataFile]]:
    """Neighbours whose sizes add up to no more than the given one."""
    portion: list[DataFile] = []
    total = 0
    for file in files:
        if portion and total + file.size > size:
            yield portion
            portion, total = [], 0
        portion.append(file)
        total += file.size
    if portion:
        yield portion


def _partition_values(conn: Connection[Any], lake: Lake, files: Sequence[int]) -> dict[int, tuple[Row, ...]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for file, index, value in execute(
        conn,
        lake.schema,
        "SELECT data_file_id, partition_key_index, partition_value FROM {lake}.ducklake_file_partition_value "
        "WHERE data_file_id = ANY(%s) ORDER BY 1, 2",
        (list(files),),
    ):
        found[file].append((index, value))
    return {file: tuple(rows) for file, rows in found.items()}
