"""What the catalog says of a table over its whole life: its snapshots, its files and what was deleted in them.

Only numbers are read of all files; what a manifest needs to know of a file is read when it is written.
"""

from __future__ import annotations

import datetime as dt
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from runnel.lake.format.catalog import DELETE_FILE, ColumnHistory, delete_file, inlined_deletes, inlined_tables, query
from runnel.lake.format.model import DeleteFile, Lake, LakeTable
from runnel.lake.format.statements import identifier

Connection = psycopg.Connection[Any]

_TOUCHED = re.compile(r'"(?:[^"]|"")*"|([a-z_]+):(\d+)')


@dataclass(frozen=True, slots=True)
class Moment:
    """A snapshot of the lake."""

    id: int
    millis: int
    """Rounded up: whoever asks for a moment in milliseconds gets what DuckDB gives for it."""
    changes: str

    def verbs(self, table_id: int) -> set[str]:
        """What it did to a table."""
        return {found[1] for found in _TOUCHED.finditer(self.changes) if found[1] and int(found[2]) == table_id}


@dataclass(frozen=True, slots=True)
class File:
    """The numbers of a data file, or of inlined rows that are shown as one (with a negative id)."""

    id: int
    begin: int
    end: int | None
    partial_max: int | None
    rows: int
    size: int
    partition_id: int | None
    mapping_id: int | None
    row_id_start: int | None
    shape: int
    """The snapshot whose columns it has."""


@dataclass(frozen=True, slots=True)
class Inlined:
    """Rows that one snapshot put into the catalog, by place in the order of their ids."""

    table: str
    begin: int
    row_ids: tuple[int, ...]
    ends: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """A table's life, read in one snapshot of the catalog."""

    moments: Sequence[Moment]
    """The lake's snapshots in which the table is there, oldest first."""
    files: Mapping[int, File]
    deletes: Mapping[int, tuple[DeleteFile, ...]]
    """By data file; ended ones, too."""
    inlined_deletes: Mapping[int, tuple[tuple[int, int], ...]]
    inlined: Mapping[int, Inlined]
    columns: ColumnHistory
    next_row_id: int


def read_facts(conn: Connection, lake: Lake, table: LakeTable, before: Facts | None = None) -> Facts:
    """Call it in a REPEATABLE READ transaction. Of what was read before only the news are read."""
    columns = _columns(conn, lake, table, before)
    moments = _moments(conn, lake, table, before)
    last = moments[-1].id
    files = {id: file for id, file in _files(conn, lake, table, before).items() if id >= 0}
    inlined = _inlined(conn, lake, table)
    for id, (rows, shape) in inlined.items():
        ends = [end for end in rows.ends if end is not None]
        ended = max(ends) if len(ends) == len(rows.ends) else None
        files[id] = File(id, rows.begin, ended, None, len(rows.row_ids), 0, None, None, None, shape)
    kept = inlined_deletes(conn, lake, table.id, last)
    found = query(
        conn,
        lake,
        "SELECT max(next_row_id) FROM {lake}.ducklake_table_stats WHERE table_id = %(table)s",
        table=table.id,
    )
    return Facts(
        moments,
        files,
        _deletes(conn, lake, table, before),
        {id: tuple(sorted(each)) for id, each in kept.items()},
        {id: rows for id, (rows, _) in inlined.items()},
        columns,
        int(found[0][0] or 0),
    )


def _columns(conn: Connection, lake: Lake, table: LakeTable, before: Facts | None) -> ColumnHistory:
    """The same object as before if no column has changed: others are told apart by it."""
    read = ColumnHistory(conn, lake, table.id)
    return before.columns if before is not None and before.columns.is_like(read) else read


def _moments(conn: Connection, lake: Lake, table: LakeTable, before: Facts | None) -> list[Moment]:
    text = (
        "SELECT snapshot_id, snapshot_time, changes_made FROM {lake}.ducklake_snapshot"
        " LEFT JOIN {lake}.ducklake_snapshot_changes USING (snapshot_id)"
        " WHERE snapshot_id > %(after)s ORDER BY snapshot_id"
    )
    if before is not None:
        first, last = before.moments[0].id, before.moments[-1].id
        [(count,)] = query(
            conn,
            lake,
            "SELECT count(*) FROM {lake}.ducklake_snapshot WHERE snapshot_id BETWEEN %(first)s AND %(last)s",
            first=first,
            last=last,
        )
        if count == len(before.moments):
            return [*before.moments, *(_moment(*row) for row in query(conn, lake, text, after=last))]
    [(since,)] = query(
        conn, lake, "SELECT min(begin_snapshot) FROM {lake}.ducklake_table WHERE table_id = %(table)s", table=table.id
    )
    return [_moment(*row) for row in query(conn, lake, text, after=since - 1)]


# Ids of files are handed out in the order of commits. So what is new has a greater id than all that were known; what
# was known is changed only by ending it, in a new snapshot; and whatever else happened to it, it is gone.
_NEWS = "(data_file_id > %(known)s OR end_snapshot > %(last)s)"


def _files(conn: Connection, lake: Lake, table: LakeTable, before: Facts | None) -> Mapping[int, File]:
    text = (
        "SELECT data_file_id, begin_snapshot, end_snapshot, partial_max, record_count, file_size_bytes,"
        " partition_id, mapping_id, row_id_start FROM {lake}.ducklake_data_file WHERE table_id = %(table)s"
    )
    if before is not None:
        known = max(before.files, default=-1)
        old = sum(id >= 0 for id in before.files)
        [(count,)] = query(
            conn,
            lake,
            "SELECT count(*) FROM {lake}.ducklake_data_file WHERE table_id = %(table)s AND data_file_id <= %(known)s",
            table=table.id,
            known=known,
        )
        if count == old:
            news = query(conn, lake, f"{text} AND {_NEWS}", table=table.id, known=known, last=before.moments[-1].id)
            return {**before.files, **{row[0]: _file(*row) for row in news}}
    return {row[0]: _file(*row) for row in query(conn, lake, text, table=table.id)}


def _deletes(
    conn: Connection, lake: Lake, table: LakeTable, before: Facts | None
) -> Mapping[int, tuple[DeleteFile, ...]]:
    text = f"SELECT {DELETE_FILE} FROM {{lake}}.ducklake_delete_file WHERE table_id = %(table)s"
    found: dict[int, dict[int, DeleteFile]] = defaultdict(dict)
    if before is not None:
        every = [each for files in before.deletes.values() for each in files]
        known = max((each.id for each in every), default=-1)
        ids = query(
            conn,
            lake,
            "SELECT delete_file_id FROM {lake}.ducklake_delete_file WHERE table_id = %(table)s",
            table=table.id,
        )
        there = {row[0] for row in ids}
        for each in every:
            if each.id in there:
                found[each.data_file_id][each.id] = each
        text += " AND (delete_file_id > %(known)s OR end_snapshot > %(last)s)"
        rows = query(conn, lake, text, table=table.id, known=known, last=before.moments[-1].id) if there else []
    else:
        rows = query(conn, lake, text, table=table.id)
    for row in rows:
        made = delete_file(table, row)
        found[made.data_file_id][made.id] = made
    return {id: tuple(each for _, each in sorted(files.items())) for id, files in found.items()}


def _inlined(conn: Connection, lake: Lake, table: LakeTable) -> dict[int, tuple[Inlined, int]]:
    """By an id of our own: below zero, so that it is no file's, and another one for other rows."""
    found = {}
    for place in inlined_tables(conn, lake, table.id):
        version = int(place.name.rpartition("_")[2])
        statement = sql.SQL(
            "SELECT row_id, begin_snapshot, end_snapshot FROM {} WHERE end_snapshot IS DISTINCT FROM begin_snapshot"
            " ORDER BY row_id"
        ).format(identifier(lake.schema, place.name))
        by_begin: dict[int, list[tuple[int, int | None]]] = defaultdict(list)
        for row_id, begin, end in conn.execute(statement):
            by_begin[begin].append((row_id, end))
        for begin, rows in by_begin.items():
            ids, ends = zip(*rows, strict=True)
            shape = begin if place.since is None else place.since
            number = (begin << 24 | version) << 32 | zlib.crc32(repr(ids).encode())
            found[-number] = Inlined(place.name, begin, ids, ends), shape
    return found


def _moment(id: int, time: dt.datetime, changes: str | None) -> Moment:
    return Moment(id, _millis(time), changes or "")


def _file(id: int, begin: int, end: int | None, *rest: Any) -> File:
    partial_max, rows, size, partition, mapping, start = rest
    return File(id, begin, end, partial_max, rows, size, partition, mapping, start, shape=begin)


def _millis(time: dt.datetime) -> int:
    micros = (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    return -(-micros // 1000)
