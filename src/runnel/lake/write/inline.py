"""Inlined rows: small changes kept in tables of the catalog itself instead of Parquet, within a draft snapshot.

A lake table's inlined rows are in `ducklake_inlined_data_<table>_<schema version>`, one per shape of the table. Deleted
positions of data files may be kept in `ducklake_inlined_delete_<table>`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runnel.lake.format.model import ColumnStats, LakeColumn, LakeTable
from runnel.lake.format.types import NESTED, TIMESTAMPS, decimal_bounds, stat_text
from runnel.lake.write.commit import Draft, conflict
from runnel.lake.write.files import add_rows
from runnel.model.names import quote

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMN: dict[str, str] = {
    "boolean": "boolean",
    "int8": "smallint", "int16": "smallint", "int32": "integer", "int64": "bigint", "int128": "varchar",
    "uint8": "integer", "uint16": "integer", "uint32": "bigint", "uint64": "varchar", "uint128": "varchar",
    "float32": "real", "float64": "double precision",
    "date": "varchar", "time": "time", "timetz": "timetz", "timestamptz": "varchar", "interval": "interval",
    "varchar": "bytea", "json": "bytea", "blob": "bytea", "uuid": "uuid",
}  # fmt: skip

_WRITABLE = frozenset(_COLUMN) - {"int128", "uint128", "timetz", "interval"} | frozenset(TIMESTAMPS)


def can_inline(table: LakeTable) -> bool:
    """Whether rows of this table can be written inline: nested values and a few rare types go to Parquet only."""
    return all(column.type in _WRITABLE or decimal_bounds(column.type) for column in table.columns)


def inline_rows(draft: Draft, table: LakeTable, rows: pa.Table, stats: Mapping[int, ColumnStats]) -> int:
    """Add rows to the catalog itself. Returns the first row id; the others follow in order.

    `rows` has the table's columns in order; `stats` are theirs, as for a file.
    """
    name = _writable_table(draft, table)
    (start,) = add_rows(draft, table, [rows.num_rows], [stats])
    columns = [
        [None if value is None else encode(value) for value in rows.column(index).to_pylist()]
        for index, encode in enumerate(_encoder(column) for column in table.columns)
    ]
    places = ", ".join(["%s"] * (2 + len(columns)))
    names = ", ".join(["row_id", "begin_snapshot", *(_name(column) for column in table.columns)])
    draft.run_many(
        f"INSERT INTO {{lake}}.{_escaped(name)} ({names}) VALUES ({places})",
        [(start + place, draft.id, *values) for place, values in enumerate(zip(*columns, strict=True))],
    )
    draft.announce(f"inlined_insert:{table.id}")
    return start


def end_inlined_rows(draft: Draft, table: LakeTable, row_ids: Sequence[int]) -> None:
    """Delete inlined rows; every one of them must be there."""
    left = len(row_ids)
    for name in _inlined_tables(draft, table.id):
        left -= len(
            draft.run(
                f"UPDATE {{lake}}.{_escaped(name)} SET end_snapshot = %s "
                "WHERE row_id = ANY(%s) AND end_snapshot IS NULL RETURNING row_id",
                (draft.id, list(row_ids)),
            )
        )
    if left:
        raise conflict(draft.lake, f"{left} inlined rows of table {table.name} were changed by another writer")
    draft.announce(f"inlined_delete:{table.id}")


def inline_deletes(draft: Draft, table: LakeTable, positions: Mapping[int, Sequence[int]]) -> None:
    """Delete positions of data files without writing a delete file; none of them may be deleted already.

    Announced as deletes of every kind: by `inlined_delete` alone neither DuckDB's deletes nor its compaction would
    notice, and one of the two would be lost.
    """
    name = f"ducklake_inlined_delete_{table.id}"
    if draft.run("SELECT to_regclass(%s)", (f"{quote(draft.lake.schema)}.{name}",)) == [(None,)]:
        draft.run(f"CREATE TABLE IF NOT EXISTS {{lake}}.{name} (file_id BIGINT, row_id BIGINT, begin_snapshot BIGINT)")
        draft.run(f"ALTER TABLE {{lake}}.{name} REPLICA IDENTITY FULL")
    draft.run_many(
        f"INSERT INTO {{lake}}.{name} VALUES (%s, %s, %s)",
        [(file, position, draft.id) for file, found in positions.items() for position in found],
    )
    draft.announce(f"inserted_into_table:{table.id}", f"deleted_from_table:{table.id}", f"inlined_delete:{table.id}")


def follow_schema(draft: Draft, table: LakeTable) -> None:
    """After a change of columns: a table that has inlined rows gets an inlined table of the new shape."""
    if _inlined_tables(draft, table.id):
        _create(draft, table)


def inlined_type(column: LakeColumn) -> str:
    """The PostgreSQL type in which a column's inlined values are kept."""
    bounds = decimal_bounds(column.type)
    if bounds is not None:
        return f"numeric({bounds[0]},{bounds[1]})"
    if column.type in NESTED or column.type in TIMESTAMPS:
        return "varchar"
    return _COLUMN[column.type]


def _writable_table(draft: Draft, table: LakeTable) -> str:
    """The inlined table of the table's present shape; made now if there is none."""
    names = _inlined_tables(draft, table.id)
    return names[-1] if names else _create(draft, table)


def _create(draft: Draft, table: LakeTable) -> str:
    draft.schema_changed()
    name = f"ducklake_inlined_data_{table.id}_{draft.schema_version}"
    columns = "".join(f", {_name(column)} {inlined_type(column)}" for column in table.columns)
    draft.run(f"DROP TABLE IF EXISTS {{lake}}.{name}")
    draft.run(f"CREATE TABLE {{lake}}.{name} (row_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT{columns})")
    draft.run(f"ALTER TABLE {{lake}}.{name} REPLICA IDENTITY FULL")
    draft.run(
        "DELETE FROM {lake}.ducklake_inlined_data_tables WHERE table_id = %s AND schema_version = %s",
        (table.id, draft.schema_version),
    )
    draft.run(
        "INSERT INTO {lake}.ducklake_inlined_data_tables VALUES (%s, %s, %s)", (table.id, name, draft.schema_version)
    )
    return name


def _inlined_tables(draft: Draft, table_id: int) -> list[str]:
    """Oldest shape first."""
    text = "SELECT schema_version, table_name FROM {lake}.ducklake_inlined_data_tables WHERE table_id = %s"
    found = {*draft.committed(text, (table_id,)), *draft.run(text, (table_id,))}
    return [name for _, name in sorted(found)]


def _encoder(column: LakeColumn) -> Callable[[Any], Any]:
    if column.type in {"varchar", "json"}:
        return lambda value: value.encode()
    if column.type in {"date", "timestamptz", "time"} or column.type in TIMESTAMPS:
        return lambda value: stat_text(value, column.type)
    if column.type == "uint64":
        return str
    return lambda value: value


def _name(column: LakeColumn) -> str:
    return quote(column.name).replace("%", "%%")


def _escaped(name: str) -> str:
    return quote(name).replace("%", "%%")
