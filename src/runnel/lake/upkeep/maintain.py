"""Keeping a lake in shape: merge small files, flush inlined rows, rewrite files with many deletes, remove old files.

Safe beside readers and other writers: what they see does not change, and files go only after a time of grace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from psycopg.conninfo import make_conninfo
from psycopg.errors import LockNotAvailable

from runnel.catalog.sessions import connect
from runnel.errors import RunnelError
from runnel.lake.format.catalog import column_history, data_files, delete_files, head, inlined_deletes, oldest, tables
from runnel.lake.format.model import DataFile, Lake, LakeColumn, LakeTable
from runnel.lake.format.statements import Row, execute
from runnel.lake.upkeep import sweep
from runnel.lake.upkeep.compact import Change, Tasks, Workshop, scans_of, state_of
from runnel.lake.upkeep.flush import flush
from runnel.lake.upkeep.lives import MOVED, Move
from runnel.lake.upkeep.settings import Report, Settings
from runnel.lake.write.parquet import can_write

if TYPE_CHECKING:
    from psycopg import Connection

LOCK_TIMEOUT = "2s"


def maintain(
    conn: Connection[Any],
    observer: Connection[Any],
    lake: Lake,
    settings: Settings | None = None,
    *,
    only: Collection[str] | None = None,
    pending: Collection[str] = (),
    stopping: Callable[[], bool] = lambda: False,
    tasks: Tasks | None = None,
) -> Report:
    """Do all there is to do, table by table, each change in a transaction and a snapshot of its own.

    Both connections are in autocommit. `only` names tables as `schema.name`; `pending` are paths of files that
    somebody has uploaded and not committed yet; `stopping` is asked before each table; `tasks` move rows if there are
    many. A table that fails is skipped; the others are done.
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
                _maintain_table(Workshop(conn, observer, lake, table, settings.compression, tasks), settings, report)
        report.removed_files += sweep.remove_scheduled(conn, lake, settings.grace)
        report.removed_orphans += sweep.remove_orphans(observer, lake, settings.orphan_grace, pending, left=MOVED)
        there = {table.uuid for table in tables(observer, lake, head(observer, lake))}
        report.removed_generated += sweep.remove_generated(lake, there, settings.generated_grace)
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


def merge(workshop: Workshop, settings: Settings, report: Report) -> bool:
    """Merge a table's small files and rewrite those with many deletes, until nothing is worth it any more."""
    lake, table, observer = workshop.lake, workshop.table, workshop.observer
    done: set[int] = set()
    last: list[Change] = []

    def prepare() -> Sequence[Change]:
        last.clear()
        base, since = head(observer, lake), oldest(observer, lake)
        bins = [each for each in worthwhile(observer, lake, table, base, settings) if not done & each.ids]
        chosen = _next(bins, workshop.tasks)
        states = [state_of(observer, lake, table, sorted(each.ids)) for each in chosen]
        moves = [
            Move(tuple(scans_of(observer, lake, table, each.files, each.columns)), each.columns, workshop.shelf, since)
            for each in chosen
        ]
        for each, state, new in zip(chosen, states, workshop.move(moves), strict=True):
            last.append(Change(lake, table, new, each.files, state, partition=(each.partition, each.values)))
        return last

    changed = False
    while workshop.commit(prepare, f"merge files of {table.schema}.{table.name}"):
        changed = True
        for each in last:
            done.update(file.id for file in each.files)
            report.merged_files += len(each.files)
            report.new_files += len(each.new)
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
    """Files that should be merged or rewritten, in portions that become one file."""
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
    history = column_history(conn, lake, table.id)
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


def _next(bins: Sequence[Bin], tasks: Tasks | None) -> Sequence[Bin]:
    """What to do now: many rows in several portions side by side, few in one after the other."""
    if tasks is None or sum(file.record_count for each in bins for file in each.files) <= tasks.threshold:
        return bins[:1]
    return bins[: tasks.at_once]


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
