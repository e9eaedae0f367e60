"""Rows that a lake keeps in its catalog because they were too few for a file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.rows import tuple_row

from runnel.lake.format.bounds import Wanted
from runnel.lake.format.catalog import ColumnHistory, InlinedTable, column_history, inlined_tables
from runnel.lake.format.columns import conform, default_array, found_as, from_text, interval_text
from runnel.lake.format.model import Lake, LakeColumn
from runnel.lake.format.statements import identifier
from runnel.lake.format.types import TEXTS, arrow_type, decimal_bounds
from runnel.lake.read.reader import scan_schema
from runnel.ports.sink import Conflict

# What PostgreSQL keeps as such; everything else is DuckDB's text.
_NATIVE = frozenset(
    {"boolean", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64", "blob", "time"}
)


def inlined_rows(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table_id: int,
    columns: tuple[LakeColumn, ...],
    at: int,
    *,
    row_ids: bool = False,
    wanted: Sequence[Wanted] = (),
    history: ColumnHistory | None = None,
) -> pa.Table:
    """The inlined rows that are live at a snapshot."""
    schema = scan_schema(columns, row_ids=row_ids)
    live = sql.SQL("begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s)")
    parts = []
    for numbers, arrays in _read(conn, lake, table_id, columns, live, {"at": at}, history):
        extra = [pa.array([row[0] for row in numbers], pa.int64())] if row_ids else []
        part = pa.Table.from_arrays([*arrays, *extra], schema=schema)
        for condition in wanted:
            place = next((i for i, column in enumerate(columns) if column.id == condition.column.id), None)
            mask = None if place is None else condition.mask(part.column(place))
            if mask is not None:
                part = part.filter(mask)
        parts.append(part)
    return _together(parts, schema)


def inlined_changes(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table_id: int,
    columns: tuple[LakeColumn, ...],
    after: int,
    at: int,
    *,
    net: bool = True,
    hidden: Collection[int] = (),
    history: ColumnHistory | None = None,
) -> pa.Table:
    """Inlined rows that came or went in (after, at], with rowid, snapshot_id and weight.

    A row that ended with a `hidden` snapshot has moved to a file.
    """
    schema = scan_schema(columns, changes=True)
    touched = sql.SQL(
        "(begin_snapshot > %(after)s AND begin_snapshot <= %(at)s"
        " OR end_snapshot > %(after)s AND end_snapshot <= %(at)s)"
        " AND end_snapshot IS DISTINCT FROM begin_snapshot"
    )
    parts = []
    for numbers, arrays in _read(conn, lake, table_id, columns, touched, {"after": after, "at": at}, history):
        places, ids, moments, weights = [], [], [], []
        for place, (row_id, begin, end) in enumerate(numbers):
            came = after < begin <= at
            went = end is not None and after < end <= at and end not in hidden
            if net and came and went:
                continue
            for happened, moment, weight in ((came, begin, 1), (went, end, -1)):
                if happened:
                    places.append(place)
                    ids.append(row_id)
                    moments.append(moment)
                    weights.append(weight)
        chosen = pa.array(places, pa.int64())
        extra = [pa.array(ids, pa.int64()), pa.array(moments, pa.int64()), pa.array(weights, pa.int64())]
        parts.append(pa.Table.from_arrays([*(array.take(chosen) for array in arrays), *extra], schema=schema))
    return _together(parts, schema)


def _together(parts: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """One table without empty chunks, at which some readers stop."""
    filled = [part for part in parts if part.num_rows]
    return pa.concat_tables(filled) if filled else schema.empty_table()


@dataclass(frozen=True, slots=True)
class InlinedVersions:
    """All rows of one inlined table, dead ones included, with the columns that it has."""

    name: str
    columns: tuple[LakeColumn, ...]
    numbers: list[tuple[int, int, int | None]]
    """Row id and the snapshots of birth and of death."""
    arrays: list[pa.Array]


def inlined_versions(conn: psycopg.Connection[Any], lake: Lake, table_id: int, at: int) -> list[InlinedVersions]:
    """What the inlined tables of a lake table hold, of rows born up to a snapshot. For flushing them."""
    history = column_history(conn, lake, table_id)
    born = sql.SQL("begin_snapshot <= %(at)s")
    found = []
    for inlined in inlined_tables(conn, lake, table_id):
        stored = _stored(inlined, history, at)
        columns = tuple(column for column, _ in stored.values())
        one = _read_one(conn, lake, inlined, stored, columns, born, {"at": at})
        if one is not None:
            found.append(InlinedVersions(inlined.name, columns, *one))
    return found


def _read(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table_id: int,
    columns: tuple[LakeColumn, ...],
    condition: sql.SQL,
    params: dict[str, Any],
    history: ColumnHistory | None,
) -> list[tuple[list[tuple[int, int, int | None]], list[pa.Array]]]:
    """Per inlined table with such rows: (row id, begin, end) of each, and the wanted columns."""
    found = []
    for inlined in inlined_tables(conn, lake, table_id):
        if history is None:
            history = column_history(conn, lake, table_id)
        one = _read_one(conn, lake, inlined, _stored(inlined, history, params["at"]), columns, condition, params)
        if one is not None:
            found.append(one)
    return found


def _read_one(
    conn: psycopg.Connection[Any],
    lake: Lake,
    inlined: InlinedTable,
    stored: dict[int, tuple[LakeColumn, str]],
    columns: tuple[LakeColumn, ...],
    condition: sql.SQL,
    params: dict[str, Any],
) -> tuple[list[tuple[int, int, int | None]], list[pa.Array]] | None:
    chosen = [column for column in columns if column.id in stored]
    statement = sql.SQL("SELECT row_id, begin_snapshot, end_snapshot{} FROM {} WHERE {}").format(
        sql.SQL("").join(sql.SQL(", ") + _expression(stored[c.id][0], identifier(stored[c.id][1])) for c in chosen),
        identifier(lake.schema, inlined.name),
        condition,
    )
    with conn.cursor(row_factory=tuple_row) as cursor:
        try:
            rows = cursor.execute(statement, params).fetchall()
        except psycopg.errors.UndefinedTable as error:
            # A snapshot still sees the catalog's row, but no snapshot keeps a table that is dropped.
            raise Conflict(f"lake {lake.name}: rows that its catalog held were written to files meanwhile") from error
    if not rows:
        return None
    places = {column.id: 3 + i for i, column in enumerate(chosen)}
    arrays = [
        conform(
            _array([row[places[column.id]] for row in rows], stored[column.id][0]),
            found_as(stored[column.id][0]),
            column,
        )
        if column.id in places
        else default_array(column, len(rows))
        for column in columns
    ]
    return [(row[0], row[1], row[2]) for row in rows], arrays


def _stored(inlined: InlinedTable, history: ColumnHistory, at: int) -> dict[int, tuple[LakeColumn, str]]:
    """The lake's columns in an inlined table, by id, with their names there.

    They are in the order of the lake's columns of that time; PostgreSQL may have cut their names.
    """
    columns = history.at(at if inlined.since is None else inlined.since)
    if len(columns) == len(inlined.columns):
        return {column.id: (column, name) for column, name in zip(columns, inlined.columns, strict=True)}
    return {column.id: (column, column.name) for column in columns if column.name in inlined.columns}


def _expression(column: LakeColumn, name: sql.Composable) -> sql.Composable:
    match column.type:
        case "interval":
            return sql.SQL(
                "CASE WHEN {0} IS NOT NULL THEN ARRAY[(extract(year FROM {0}) * 12 + extract(month FROM {0}))::int8,"
                " extract(day FROM {0})::int8, (extract(hour FROM {0}) * 3600000000"
                " + extract(minute FROM {0}) * 60000000 + extract(microseconds FROM {0}))::int8] END"
            ).format(name)
        case "timetz":
            return sql.SQL("timezone('UTC', {})::text").format(name)
        case "uuid":
            return sql.SQL("{}::text").format(name)
    return name


def _array(values: list[Any], column: LakeColumn) -> pa.Array:
    if column.type in TEXTS:
        return pa.array([None if value is None else value.decode() for value in values], pa.string())
    if column.type == "interval":
        return pa.array([None if value is None else interval_text(*value) for value in values], pa.string())
    if column.type in ("timetz", "uuid"):
        return pa.array(values, pa.string())
    if column.type in _NATIVE or decimal_bounds(column.type) is not None:
        return pa.array(values, arrow_type(column))
    return from_text(values, column)
