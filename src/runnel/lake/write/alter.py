"""A table's definition changed as a whole, within a draft snapshot: columns by id, partitions, names, comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from runnel.lake.format.model import LakeColumn, LakeTable
from runnel.lake.format.statements import Row
from runnel.lake.write.commit import Draft
from runnel.lake.write.inline import follow_schema
from runnel.lake.write.tables import check_names, current, note_schema_version, quoted, require_free, schema_row

Key = tuple[int, str]
"""A column and how its values are partitioned: `identity`, `year`, `bucket(8)`."""


def set_columns(
    draft: Draft, table: LakeTable, columns: Sequence[LakeColumn], defaults: Mapping[int, str] | None = None
) -> LakeTable:
    """Give a table these columns, told from the old ones by their ids. The caller knows that types are only widened.

    `defaults` are the values of new rows, by column, where they are not NULL.
    """
    if tuple(columns) == table.columns and not defaults:
        return table
    check_names(columns)
    known = _rows(draft, table.id)
    wanted = {row[0]: row for row in _wanted(columns, None, known, defaults or {})}
    ended = [id for id, row in known.items() if wanted.get(id) != row]
    draft.change(
        len(ended),
        "UPDATE {lake}.ducklake_column SET end_snapshot = %s WHERE table_id = %s AND column_id = ANY(%s) "
        "AND end_snapshot IS NULL",
        (draft.id, table.id, ended),
    )
    draft.run_many(
        "INSERT INTO {lake}.ducklake_column (column_id, begin_snapshot, table_id, column_order, column_name, "
        "column_type, initial_default, default_value, nulls_allowed, parent_column, default_value_type, "
        "default_value_dialect) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 'duckdb')",
        [(row[0], draft.id, table.id, *row[1:]) for id, row in wanted.items() if known.get(id) != row],
    )
    altered = replace(table, columns=tuple(columns))
    note_schema_version(draft, table.id)
    follow_schema(draft, altered)
    draft.announce(f"altered_table:{table.id}")
    return altered


def set_partition(draft: Draft, table: LakeTable, keys: Sequence[Key]) -> int:
    """Partition the files that are written from now on; without keys not at all. Returns the partition's id."""
    draft.run(
        "UPDATE {lake}.ducklake_partition_info SET end_snapshot = %s WHERE table_id = %s AND end_snapshot IS NULL",
        (draft.id, table.id),
    )
    id = draft.new_catalog_id()
    draft.run("INSERT INTO {lake}.ducklake_partition_info VALUES (%s, %s, %s, NULL)", (id, table.id, draft.id))
    draft.run_many(
        "INSERT INTO {lake}.ducklake_partition_column VALUES (%s, %s, %s, %s, %s)",
        [(id, table.id, index, column, transform) for index, (column, transform) in enumerate(keys)],
    )
    note_schema_version(draft, table.id)
    draft.announce(f"altered_table:{table.id}")
    return id


def rename_table(draft: Draft, table: LakeTable, name: str) -> None:
    """Give a table another name in its schema; its files stay where they are."""
    schema = schema_row(draft, table.schema)
    assert schema is not None
    if name.lower() != table.name.lower():
        require_free(draft, schema[0], table.schema, name)
    draft.run(
        "INSERT INTO {lake}.ducklake_table "
        "SELECT table_id, table_uuid, %s, NULL, schema_id, %s, path, path_is_relative FROM {lake}.ducklake_table "
        "WHERE table_id = %s AND end_snapshot IS NULL",
        (draft.id, name, table.id),
    )
    draft.change(
        1,
        "UPDATE {lake}.ducklake_table SET end_snapshot = %s WHERE table_id = %s AND end_snapshot IS NULL "
        "AND begin_snapshot < %s",
        (draft.id, table.id, draft.id),
    )
    draft.schema_changed()
    draft.announce(f"created_table:{quoted(table.schema)}.{quoted(name)}")


def drop_schema(draft: Draft, schema_id: int) -> None:
    """End a schema that the caller knows to be empty."""
    draft.change(
        1,
        "UPDATE {lake}.ducklake_schema SET end_snapshot = %s WHERE schema_id = %s AND end_snapshot IS NULL",
        (draft.id, schema_id),
    )
    draft.schema_changed()
    draft.announce(f"dropped_schema:{schema_id}")


def set_column_comments(draft: Draft, table: LakeTable, comments: Mapping[int, str | None]) -> None:
    """Set or remove the comments of columns."""
    ids = list(comments)
    draft.run(
        "UPDATE {lake}.ducklake_column_tag SET end_snapshot = %s WHERE table_id = %s AND column_id = ANY(%s) "
        "AND key = 'comment' AND end_snapshot IS NULL",
        (draft.id, table.id, ids),
    )
    draft.run_many(
        "INSERT INTO {lake}.ducklake_column_tag VALUES (%s, %s, %s, NULL, 'comment', %s)",
        [(table.id, id, draft.id, text) for id, text in comments.items() if text is not None],
    )
    draft.schema_changed()
    draft.announce(f"altered_table:{table.id}")


def _rows(draft: Draft, table_id: int) -> dict[int, Row]:
    """The live rows of a table's columns by id, in the order of `_wanted`."""
    rows = current(
        draft,
        "SELECT column_id, column_order, column_name, column_type, initial_default, default_value, nulls_allowed, "
        "parent_column, default_value_type, begin_snapshot, end_snapshot FROM {lake}.ducklake_column "
        "WHERE table_id = %s",
        (table_id,),
    )
    return {row[0]: tuple(row[:-1]) for row in rows}


def _wanted(
    columns: Sequence[LakeColumn], parent: int | None, known: Mapping[int, Row], defaults: Mapping[int, str]
) -> Iterator[Row]:
    orders = _orders(columns, known)
    for column in columns:
        old = known.get(column.id)
        default = defaults.get(column.id, "NULL") if old is None else old[5]
        kind = ("" if column.children else "literal") if old is None else old[8]
        yield (
            column.id, orders[column.id], column.name, column.type, column.initial_default, default,
            column.nulls_allowed, parent, kind,
        )  # fmt: skip
        yield from _wanted(column.children, column.id, known, defaults)


def _orders(columns: Iterable[LakeColumn], known: Mapping[int, Row]) -> dict[int, int]:
    """Places of columns that share a parent: as they were, if that gives the wanted order."""
    orders = {column.id: known[column.id][1] if column.id in known else column.id for column in columns}
    listed = list(orders)
    if sorted(listed, key=lambda id: (orders[id], id)) == listed:
        return orders
    return {id: place for place, id in enumerate(listed, 1)}
