"""Reading one data file: on the driver or in a task, plain or encrypted, as a state or as changes.

A `FileScan` says everything a reader needs to know; it is small and can be pickled. What is read is counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runnel.errors import EngineBug
from runnel.lake.duck import literal
from runnel.lake.format.bounds import Wanted
from runnel.lake.format.columns import (
    Found,
    conform,
    default_array,
    found_as,
    found_by_mapping,
    found_in_file,
    from_text,
)
from runnel.lake.format.model import DataFile, DeleteFile, LakeColumn, MappedName
from runnel.lake.format.types import HUGE, NESTED, arrow_field, duck_type
from runnel.lake.read.input import DECRYPTED, ParquetInput, Tally, decrypted, folder_value, local_path, open_parquet

ROW_ID = "_ducklake_internal_row_id"
SNAPSHOT_ID = "_ducklake_internal_snapshot_id"
ROW_ID_FIELD = 2147483540
SNAPSHOT_ID_FIELD = 2147483539

_SIDE_BY_SIDE = 8
_FEW_KEYS = 1000
NEVER = np.iinfo(np.int64).max
Ints = npt.NDArray[np.int64]
# Statistics of a footer are read as values of these types; of others as something that merely looks comparable.
_COMPARABLE = frozenset({"int8", "int16", "int32", "int64", "varchar", "date", "timestamp", "timestamptz"})


@dataclass(frozen=True, slots=True)
class FileScan:
    """What to read from one data file.

    Without `after` the rows that are live at snapshot `at` (and `rowid`, if `row_ids`). With `after` the changes in
    (after, at]: the columns, then `rowid`, `snapshot_id` and `weight` (+1 inserted, -1 deleted).
    """

    file: DataFile
    columns: tuple[LakeColumn, ...]
    at: int
    after: int | None = None
    net: bool = True
    """Of a row that came and went within the changes, say nothing."""
    row_ids: bool = False
    deletes: tuple[DeleteFile, ...] = ()
    inlined_deletes: tuple[tuple[int, int], ...] = ()
    """Position and snapshot of deletions that the catalog keeps itself."""
    hidden: frozenset[int] = frozenset()
    """Snapshots that moved rows between files and changed nothing."""
    wanted: tuple[Wanted, ...] = ()
    """Rows that are not of interest are left out where that is cheap; the caller must not rely on it."""
    mapping: tuple[MappedName, ...] | None = None
    written: tuple[LakeColumn, ...] | None = None
    """The columns as they were when the file was written; for nested ones of encrypted files."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def schema(self) -> pa.Schema:
        """What the batches look like; columns come first, whatever they are called."""
        return scan_schema(self.columns, row_ids=self.row_ids, changes=self.after is not None)


def scan_schema(columns: tuple[LakeColumn, ...], *, row_ids: bool = False, changes: bool = False) -> pa.Schema:
    """The schema of a scan's batches."""
    fields = [arrow_field(column) for column in columns]
    if row_ids or changes:
        fields.append(pa.field("rowid", pa.int64()))
    if changes:
        fields += [pa.field("snapshot_id", pa.int64()), pa.field("weight", pa.int64())]
    return pa.schema(fields)


def scan_files(specs: Sequence[FileScan], tally: Tally | None = None) -> Iterator[pa.RecordBatch]:
    """The rows or changes of several files, in their order; files of an object store are fetched side by side."""
    tally = tally if tally is not None else Tally()
    remote = [spec for spec in specs if local_path(spec.file.path) is None]
    if len(remote) < 2:
        for spec in specs:
            yield from scan_file(spec, tally)
        return

    def whole(spec: FileScan) -> tuple[list[pa.RecordBatch], Tally]:
        own = Tally()
        return list(scan_file(spec, own)), own

    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        ahead: deque[Future[tuple[list[pa.RecordBatch], Tally]]] = deque()
        waiting = iter(specs)
        while True:
            # No more than a few files are held in memory at once.
            ahead.extend(pool.submit(whole, spec) for spec in islice(waiting, _SIDE_BY_SIDE - len(ahead)))
            if not ahead:
                return
            batches, own = ahead.popleft().result()
            tally.add(own)
            yield from batches


def scan_file(spec: FileScan, tally: Tally | None = None) -> Iterator[pa.RecordBatch]:
    """The rows or changes of one file."""
    tally = tally if tally is not None else Tally()
    positions, snapshots = deletions(spec, tally)
    if spec.after is not None:
        yield from _changes(spec, spec.after, positions, snapshots, tally)
        return
    gone = positions[snapshots <= spec.at]
    partial = spec.file.partial_max is not None and spec.file.partial_max > spec.at
    for piece in _pieces(spec, tally, snapshot_ids=partial, row_ids=spec.row_ids):
        keep = np.ones(piece.length, dtype=np.bool_)
        inside = gone[(gone >= piece.start) & (gone < piece.start + piece.length)]
        keep[inside - piece.start] = False
        if partial:
            keep &= piece.inserted <= spec.at
        extra = [pa.array(piece.row_ids, pa.int64())] if spec.row_ids else []
        batch = pa.RecordBatch.from_arrays([*piece.columns, *extra], schema=spec.schema)
        if not keep.all():
            batch = batch.filter(pa.array(keep))
        batch = _of_interest(spec, batch)
        if batch.num_rows:
            yield batch


def _changes(spec: FileScan, after: int, positions: Ints, snapshots: Ints, tally: Tally) -> Iterator[pa.RecordBatch]:
    """Insertions and deletions in (after, at], from where each row of the file came and went."""
    file = spec.file
    ended = file.end if file.end is not None and file.end not in spec.hidden else NEVER
    recent = positions[(snapshots > after) & (snapshots <= spec.at)]
    partial = file.partial_max is not None
    newest = file.partial_max if file.partial_max is not None else file.begin
    may_insert = newest > after and (partial or file.begin not in spec.hidden)
    whole = may_insert or after < ended <= spec.at
    if not whole and not len(recent):
        return
    hidden = np.array(sorted(spec.hidden), dtype=np.int64)
    for piece in _pieces(spec, tally, snapshot_ids=partial, row_ids=True, only=None if whole else recent):
        last = piece.start + piece.length
        removed = np.full(piece.length, ended, dtype=np.int64)
        inside = (positions >= piece.start) & (positions < last)
        removed[positions[inside] - piece.start] = snapshots[inside]
        came = (piece.inserted > after) & (piece.inserted <= spec.at)
        if len(hidden):
            came &= ~np.isin(piece.inserted, hidden)
        went = (removed > after) & (removed <= spec.at)
        neither = (came & went) if spec.net else (came & (piece.inserted == removed))
        came, went = came & ~neither, went & ~neither
        for chosen, moment, weight in ((came, piece.inserted, 1), (went, removed, -1)):
            count = int(chosen.sum())
            if not count:
                continue
            arrays = [
                *piece.columns,
                pa.array(piece.row_ids, pa.int64()),
                pa.array(moment, pa.int64()),
                pa.repeat(pa.scalar(weight, pa.int64()), piece.length),
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=spec.schema)
            yield batch if count == piece.length else batch.filter(pa.array(chosen))


def versions(spec: FileScan, tally: Tally | None = None) -> Iterator[tuple[list[pa.Array], Ints, Ints, Ints]]:
    """All rows that a file holds, dead ones included: columns, row ids, and the snapshots of birth and of death.

    Those that live have NEVER for the second. For rewriting files, not for reading them.
    """
    tally = tally if tally is not None else Tally()
    positions, snapshots = deletions(spec, tally)
    ended = spec.file.end if spec.file.end is not None else NEVER
    for piece in _pieces(spec, tally, snapshot_ids=spec.file.partial_max is not None, row_ids=True):
        died = np.full(piece.length, ended, dtype=np.int64)
        inside = (positions >= piece.start) & (positions < piece.start + piece.length)
        died[positions[inside] - piece.start] = snapshots[inside]
        yield piece.columns, piece.row_ids, piece.inserted, died


def _of_interest(spec: FileScan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without the rows that a condition on a column that was read rules out."""
    places = {column.id: place for place, column in enumerate(spec.columns)}
    for condition in spec.wanted:
        place = places.get(condition.column.id)
        mask = None if place is None else condition.mask(batch.column(place))
        if mask is not None:
            batch = batch.filter(mask)
    return batch


def deletions(spec: FileScan, tally: Tally) -> tuple[Ints, Ints]:
    """Deleted positions, ascending, each with the first snapshot that deleted it."""
    parts = [_delete_file(file, spec.options, tally) for file in spec.deletes]
    if spec.inlined_deletes:
        inlined = np.array(spec.inlined_deletes, dtype=np.int64)
        parts.append((inlined[:, 0], inlined[:, 1]))
    if not parts:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    positions = np.concatenate([part[0] for part in parts])
    snapshots = np.concatenate([part[1] for part in parts])
    order = np.lexsort((snapshots, positions))
    positions, snapshots = positions[order], snapshots[order]
    first = np.ones(len(positions), dtype=np.bool_)
    first[1:] = positions[1:] != positions[:-1]
    return positions[first], snapshots[first]


def _delete_file(file: DeleteFile, options: Mapping[str, str], tally: Tally) -> tuple[Ints, Ints]:
    """A delete file has the path of its data file, the position and, if it was written twice, the snapshot."""
    if file.encryption_key is None:
        with open_parquet(file, options, tally) as opened:
            names = opened.parquet.schema_arrow.names
            table = opened.read(["pos", SNAPSHOT_ID] if SNAPSHOT_ID in names else ["pos"])
    else:
        with decrypted(file, options, tally) as (conn, parameters):
            table = conn.execute(f"SELECT * FROM {DECRYPTED})", parameters).to_arrow_table()
    positions = table.column("pos").to_numpy().astype(np.int64, copy=False)
    if SNAPSHOT_ID in table.column_names:
        snapshots = table.column(SNAPSHOT_ID).to_numpy().astype(np.int64, copy=False)
    else:
        snapshots = np.full(len(positions), file.begin, dtype=np.int64)
    return positions, snapshots


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some consecutive rows of a file."""

    start: int
    length: int
    columns: list[pa.Array]
    row_ids: Ints
    """Empty unless asked for."""
    inserted: Ints
    """The snapshot that made each row."""


def _pieces(
    spec: FileScan, tally: Tally, *, snapshot_ids: bool, row_ids: bool, only: Ints | None = None
) -> Iterator[_Piece]:
    """The file from its first row to its last; `only` names positions of interest, others may be left out."""
    read = _plain_pieces if spec.file.encryption_key is None else _decrypted_pieces
    for start, length, columns, stored_ids, stored_snapshots in read(spec, tally, snapshot_ids, row_ids, only):
        ids = np.empty(0, dtype=np.int64)
        if row_ids:
            ids = _ints(stored_ids) if stored_ids is not None else _counted_row_ids(spec.file, start, length)
        # Without snapshots of their own, all rows are as old as the file.
        inserted = (
            np.full(length, spec.file.begin, dtype=np.int64) if stored_snapshots is None else _ints(stored_snapshots)
        )
        yield _Piece(start, length, columns, ids, inserted)


_Raw = tuple[int, int, list[pa.Array], pa.Array | None, pa.Array | None]


def _plain_pieces(spec: FileScan, tally: Tally, snapshot_ids: bool, row_ids: bool, only: Ints | None) -> Iterator[_Raw]:
    with open_parquet(spec.file, spec.options, tally) as opened:
        stored = stored_columns(spec, opened.parquet.schema_arrow)
        internal = {name: name for name in opened.parquet.schema_arrow.names if name in (ROW_ID, SNAPSHOT_ID)}
        row_id = internal.get(ROW_ID) if row_ids else None
        snapshot_id = internal.get(SNAPSHOT_ID) if snapshot_ids else None
        if snapshot_ids and snapshot_id is None:
            raise EngineBug(f"{spec.file.path} should say which snapshot made each row, and does not.")
        needed = [stored[column.id].name for column in spec.columns if column.id in stored]
        needed += [name for name in (row_id, snapshot_id) if name is not None]
        groups = _groups(spec, opened, stored, only)
        for start, batch in opened.batches(list(dict.fromkeys(needed)), groups):
            columns = [
                conform(batch.column(stored[column.id].name), stored[column.id], column)
                if column.id in stored
                else _absent(spec, column, batch.num_rows)
                for column in spec.columns
            ]
            ids = None if row_id is None else batch.column(row_id)
            yield start, batch.num_rows, columns, ids, None if snapshot_id is None else batch.column(snapshot_id)


def stored_columns(spec: FileScan, schema: pa.Schema) -> dict[int, Found]:
    """The top-level columns of a file by id: by its field ids, by the catalog's names for it, or by its own names."""
    fields = [field for field in schema if field.name not in (ROW_ID, SNAPSHOT_ID)]
    if spec.mapping is not None:
        found = [found_by_mapping(field, spec.mapping) for field in fields]
    else:
        found = [found_in_file(field) for field in fields]
        if all(column.id is None for column in found):
            found = [found_in_file(field, trust_names=spec.columns) for field in fields]
    return {column.id: column for column in found if column.id is not None}


def _absent(spec: FileScan, column: LakeColumn, length: int) -> pa.Array:
    """A column that the file does not have: it is in the folders' names, or younger than the file."""
    for name in spec.mapping or ():
        if name.is_partition and name.column_id == column.id:
            one = from_text([folder_value(spec.file.path, name.source)], column)
            return pa.repeat(one[0], length)
    return default_array(column, length)


def _groups(spec: FileScan, opened: ParquetInput, stored: Mapping[int, Found], only: Ints | None) -> list[int]:
    """The row groups that may hold what is wanted."""
    chosen = list(range(len(opened.starts) - 1))
    if only is not None:
        touched = np.unique(np.searchsorted(np.array(opened.starts), only, side="right") - 1)
        chosen = [group for group in chosen if group in set(touched.tolist())]
    if spec.after is None:
        for condition in spec.wanted:
            found = stored.get(condition.column.id)
            if found is not None and condition.column.type in _COMPARABLE:
                chosen = [group for group in chosen if _may_hold(condition, opened.statistics(group, found.name))]
        chosen = _with_few_keys(spec, opened, stored, chosen)
    return chosen


def _with_few_keys(spec: FileScan, opened: ParquetInput, stored: Mapping[int, Found], groups: list[int]) -> list[int]:
    """Row groups in which one of a few keys occurs: their own column tells, before all others are read."""
    few = [c for c in spec.wanted if c.values is not None and len(c.values) <= _FEW_KEYS and c.column.id in stored]
    if not few or len(stored) < 2 or len(groups) < 2:
        return groups
    names = [stored[condition.column.id].name for condition in few]
    found = set()
    for start, batch in opened.batches(list(dict.fromkeys(names)), groups):
        group = bisect_right(opened.starts, start) - 1
        if group not in found and all(_occurs(c, batch.column(stored[c.column.id].name), stored) for c in few):
            found.add(group)
    return [group for group in groups if group in found]


def _occurs(condition: Wanted, array: pa.Array, stored: Mapping[int, Found]) -> bool:
    mask = condition.mask(conform(array, stored[condition.column.id], condition.column))
    return mask is None or bool(pc.any(mask).as_py())


def _may_hold(condition: Wanted, statistics: Any) -> bool:
    if statistics is None or not statistics.has_min_max or (condition.null and statistics.null_count != 0):
        return True
    return condition.may_be_within(statistics.min, statistics.max)


def _decrypted_pieces(
    spec: FileScan, tally: Tally, snapshot_ids: bool, row_ids: bool, only: Ints | None
) -> Iterator[_Raw]:
    """DuckDB finds top-level columns by field id and widens them; below them it goes by the names of that time."""
    written = {column.id: column for column in spec.written or ()}
    entries, selected, shapes = [], [], []
    for place, column in enumerate(spec.columns):
        shape = written.get(column.id, column) if column.type in NESTED else column
        default = "NULL" if column.initial_default is None else literal(column.initial_default)
        entries.append(_schema_entry(column.id, f"c{place}", duck_type(shape), default))
        selected.append(f"c{place}::VARCHAR" if column.type in HUGE else f"c{place}")
        shapes.append(found_as(shape))
    entries.append(_schema_entry(ROW_ID_FIELD, "row_id", "BIGINT", "NULL"))
    entries.append(_schema_entry(SNAPSHOT_ID_FIELD, "snapshot_id", "BIGINT", "NULL"))
    where = "" if only is None else f" WHERE file_row_number BETWEEN {int(only.min())} AND {int(only.max())}"
    selected += ["file_row_number", "row_id", "snapshot_id"]
    text = f"SELECT {', '.join(selected)} FROM {DECRYPTED}, schema=MAP {{{', '.join(entries)}}}){where}"
    with decrypted(spec.file, spec.options, tally) as (conn, parameters):
        for batch in conn.execute(text, parameters).to_arrow_reader(131_072):
            if not batch.num_rows:
                continue
            arrays = batch.columns
            columns = [conform(arrays[i], shapes[i], column) for i, column in enumerate(spec.columns)]
            positions, ids, snapshots = arrays[len(columns) :]
            has_ids = row_ids and ids.null_count == 0
            if positions[-1].as_py() - positions[0].as_py() != batch.num_rows - 1:
                raise EngineBug(f"DuckDB gives the rows of {spec.file.path} in another order than the file's.")
            if snapshot_ids and snapshots.null_count:
                raise EngineBug(f"{spec.file.path} should say which snapshot made each row, and does not.")
            yield (
                positions[0].as_py(),
                batch.num_rows,
                columns,
                ids if has_ids else None,
                snapshots if snapshot_ids else None,
            )


def _schema_entry(id: int, name: str, type: str, default: str) -> str:
    return f"{id}: {{name: '{name}', type: {literal(type)}, default_value: {default}::VARCHAR}}"


def _counted_row_ids(file: DataFile, start: int, length: int) -> Ints:
    if file.row_id_start is None:
        raise EngineBug(f"{file.path} has no row ids, and the catalog gives it none.")
    return np.arange(file.row_id_start + start, file.row_id_start + start + length, dtype=np.int64)


def _ints(array: pa.Array) -> Ints:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.int64)
