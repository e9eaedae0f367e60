"""What the catalog says of a table over its whole life: its snapshots, its files and what was deleted in them.

Only numbers are read of all files; what a manifest needs to know of a file is read when it is written.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from runnel.lake.format.catalog import (
    COLUMN_HISTORY,
    DELETE_FILE,
    INLINED_TABLES,
    ColumnHistory,
    InlinedTable,
    Rows,
    delete_file,
    inlined_deletes,
    inlined_tables_of,
    query_all,
)
from runnel.lake.format.model import DeleteFile, Lake, LakeTable
from runnel.lake.format.statements import identifier

Connection = psycopg.Connection[Any]

SAID = "iceberg"
"""In what a snapshot says besides: by table, what the client said of it."""

_TOUCHED = re.compile(r'"(?:[^"]|"")*"|([a-z_]+):(\d+)')


@dataclass(frozen=True, slots=True)
class Moment:
    """A snapshot of the lake."""

    id: int
    millis: int
    """Rounded up: whoever asks for a moment in milliseconds gets what DuckDB gives for it."""
    changes: str
    said: Mapping[str, Any] | None = None
    """What clients of Iceberg said of it, by table."""

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
    late: frozenset[int]
    """Files with rows of several snapshots."""
    mappings: frozenset[int]
    """Those by which files are read."""
    marks: frozenset[int]
    """Snapshots with which files begin or end."""
    changed: frozenset[int] | None
    """The files that may be other than in the facts before; None if they have to be looked for."""


# Ids of files are handed out in the order of commits. So what is new has a greater id than all that were known; what
# was known is changed only by ending it, in a new snapshot; and whatever else happened to it, it is gone.
_QUESTIONS: tuple[LiteralString, ...] = (
    COLUMN_HISTORY,
    INLINED_TABLES,
    "SELECT max(next_row_id) FROM {lake}.ducklake_table_stats WHERE table_id = %(table)s",
    "SELECT count(*) FROM {lake}.ducklake_snapshot WHERE snapshot_id BETWEEN %(first)s AND %(last)s",
    "SELECT snapshot_id, snapshot_time, changes_made, commit_extra_info FROM {lake}.ducklake_snapshot"
    " LEFT JOIN {lake}.ducklake_snapshot_changes USING (snapshot_id)"
    " WHERE snapshot_id > %(last)s"
    " AND snapshot_id >= (SELECT min(begin_snapshot) FROM {lake}.ducklake_table WHERE table_id = %(table)s)"
    " ORDER BY snapshot_id",
    "SELECT count(*) FROM {lake}.ducklake_data_file WHERE table_id = %(table)s AND data_file_id <= %(file)s",
    "SELECT data_file_id, begin_snapshot, end_snapshot, partial_max, record_count, file_size_bytes,"
    " partition_id, mapping_id, row_id_start FROM {lake}.ducklake_data_file WHERE table_id = %(table)s"
    " AND (data_file_id > %(file)s OR end_snapshot > %(last)s)",
    "SELECT delete_file_id FROM {lake}.ducklake_delete_file WHERE table_id = %(table)s",
    f"SELECT {DELETE_FILE} FROM {{lake}}.ducklake_delete_file WHERE table_id = %(table)s"
    " AND (delete_file_id > %(delete)s OR end_snapshot > %(last)s)",
)


def read_facts(conn: Connection, lake: Lake, table: LakeTable, before: Facts | None = None) -> Facts:
    """Call it in a REPEATABLE READ transaction. Of what was read before only the news are read."""
    first, last, file, delete = 0, -1, -1, -1
    if before is not None:
        first, last, file = before.moments[0].id, before.moments[-1].id, max(before.files, default=-1)
        delete = max((each.id for files in before.deletes.values() for each in files), default=-1)
    columns_, tables, row_id, moments_then, later, files_then, files, deletes_now, deletes = query_all(
        conn, lake, _QUESTIONS, schema=lake.schema, table=table.id, first=first, last=last, file=file, delete=delete
    )
    if before is not None and (
        moments_then != [(len(before.moments),)] or files_then != [(len(before.files) - len(before.inlined),)]
    ):
        return _keep_columns(read_facts(conn, lake, table), before)
    moments = [*(before.moments if before else ()), *(_moment(*row) for row in later)]
    inlined = _inlined(conn, lake, inlined_tables_of(tables))
    news = [_file(*row) for row in files]
    every = dict(before.files) if before else {}
    for id in before.inlined if before else ():
        del every[id]
    every.update({each.id: each for each in news})
    for id, (rows, shape) in inlined.items():
        ends = [end for end in rows.ends if end is not None]
        ended = max(ends) if len(ends) == len(rows.ends) else None
        every[id] = File(id, rows.begin, ended, None, len(rows.row_ids), 0, None, None, None, shape)
    kept = inlined_deletes(conn, lake, table.id, moments[-1].id)
    made = Facts(
        moments,
        every,
        _deletes(table, before, {row[0] for row in deletes_now}, deletes),
        {id: tuple(sorted(each)) for id, each in kept.items()},
        {id: rows for id, (rows, _) in inlined.items()},
        ColumnHistory(columns_),
        int(row_id[0][0] or 0),
        frozenset(each.id for each in news if each.partial_max is not None),
        frozenset(each.mapping_id for each in news if each.mapping_id is not None),
        frozenset(mark for each in news for mark in (each.begin, each.end) if mark is not None),
        None,
    )
    if before is None:
        return made
    return _keep_columns(
        replace(
            made,
            late=before.late | made.late,
            mappings=before.mappings | made.mappings,
            marks=before.marks | made.marks,
            changed=frozenset({each.id for each in news} | before.inlined.keys() | made.inlined.keys()),
        ),
        before,
    )


def _keep_columns(facts: Facts, before: Facts) -> Facts:
    """With the same object as before if no column has changed: others are told apart by it."""
    return replace(facts, columns=before.columns) if before.columns.is_like(facts.columns) else facts


def _deletes(
    table: LakeTable, before: Facts | None, there: set[int], rows: Rows
) -> Mapping[int, tuple[DeleteFile, ...]]:
    found: dict[int, dict[int, DeleteFile]] = defaultdict(dict)
    for files in before.deletes.values() if before else ():
        for each in files:
            if each.id in there:
                found[each.data_file_id][each.id] = each
    for row in rows:
        made = delete_file(table, row)
        found[made.data_file_id][made.id] = made
    return {id: tuple(each for _, each in sorted(files.items())) for id, files in found.items()}


def _inlined(conn: Connection, lake: Lake, tables: Iterable[InlinedTable]) -> dict[int, tuple[Inlined, int]]:
    """By an id of our own: below zero, so that it is no file's, and another one for other rows."""
    found = {}
    for place in tables:
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


def _moment(id: int, time: dt.datetime, changes: str | None, extra: str | None) -> Moment:
    return Moment(id, _millis(time), changes or "", _said(extra))


def _said(extra: str | None) -> Mapping[str, Any] | None:
    if not extra or not extra.startswith(f'{{"{SAID}"'):
        return None
    try:
        found = json.loads(extra)[SAID]
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _file(id: int, begin: int, end: int | None, *rest: Any) -> File:
    partial_max, rows, size, partition, mapping, start = rest
    return File(id, begin, end, partial_max, rows, size, partition, mapping, start, shape=begin)


def _millis(time: dt.datetime) -> int:
    micros = (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    return -(-micros // 1000)
