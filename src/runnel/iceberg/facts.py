"""What the catalog says of a table over its whole life: its snapshots, its files and what was deleted in them.

Only numbers are read of all files; what a manifest needs to know of a file is read when it is written.
"""

from __future__ import annotations

import datetime as dt
import re
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
    signature: int = 0
    """Of inlined rows: which ones these are."""


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


def read_facts(conn: Connection, lake: Lake, table: LakeTable) -> Facts:
    """Call it in a REPEATABLE READ transaction."""
    [(since,)] = query(
        conn, lake, "SELECT min(begin_snapshot) FROM {lake}.ducklake_table WHERE table_id = %(table)s", table=table.id
    )
    moments = [
        Moment(id, _millis(time), changes or "")
        for id, time, changes in query(
            conn,
            lake,
            "SELECT snapshot_id, snapshot_time, changes_made FROM {lake}.ducklake_snapshot"
            " LEFT JOIN {lake}.ducklake_snapshot_changes USING (snapshot_id)"
            " WHERE snapshot_id >= %(since)s ORDER BY snapshot_id",
            since=since,
        )
    ]
    files = {
        row[0]: _file(*row)
        for row in query(
            conn,
            lake,
            "SELECT data_file_id, begin_snapshot, end_snapshot, partial_max, record_count, file_size_bytes,"
            " partition_id, mapping_id, row_id_start FROM {lake}.ducklake_data_file WHERE table_id = %(table)s",
            table=table.id,
        )
    }
    deletes: dict[int, list[DeleteFile]] = defaultdict(list)
    for row in query(
        conn,
        lake,
        f"SELECT {DELETE_FILE} FROM {{lake}}.ducklake_delete_file WHERE table_id = %(table)s ORDER BY delete_file_id",
        table=table.id,
    ):
        deletes[row[1]].append(delete_file(table, row))
    last = moments[-1].id
    kept = inlined_deletes(conn, lake, table.id, last)
    inlined = _inlined(conn, lake, table)
    for id, (rows, shape) in inlined.items():
        ends = [end for end in rows.ends if end is not None]
        ended = max(ends) if len(ends) == len(rows.ends) else None
        files[id] = File(id, rows.begin, ended, None, len(rows.row_ids), 0, None, None, None, shape, hash(rows.row_ids))
    found = query(
        conn,
        lake,
        "SELECT max(next_row_id) FROM {lake}.ducklake_table_stats WHERE table_id = %(table)s",
        table=table.id,
    )
    return Facts(
        moments,
        files,
        {id: tuple(each) for id, each in deletes.items()},
        {id: tuple(sorted(each)) for id, each in kept.items()},
        {id: rows for id, (rows, _) in inlined.items()},
        ColumnHistory(conn, lake, table.id),
        int(found[0][0] or 0),
    )


def _inlined(conn: Connection, lake: Lake, table: LakeTable) -> dict[int, tuple[Inlined, int]]:
    """By an id of our own: below zero, so that it is no file's."""
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
            found[-(begin << 24 | version)] = Inlined(place.name, begin, ids, ends), shape
    return found


def _file(id: int, begin: int, end: int | None, *rest: Any) -> File:
    partial_max, rows, size, partition, mapping, start = rest
    return File(id, begin, end, partial_max, rows, size, partition, mapping, start, shape=begin)


def _millis(time: dt.datetime) -> int:
    micros = (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    return -(-micros // 1000)
