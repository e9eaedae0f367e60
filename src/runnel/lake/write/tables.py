"""Schemas, tables and their columns, created and changed within a draft snapshot."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from runnel.errors import UserError
from runnel.lake.format.model import Lake, LakeColumn, LakeTable
from runnel.lake.format.statements import Row
from runnel.lake.format.types import NESTED
from runnel.lake.write.commit import Draft, conflict

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_RESERVED = frozenset({"row_id", "begin_snapshot", "end_snapshot"})


def column(name: str, type: str, *children: LakeColumn, nulls_allowed: bool = True) -> LakeColumn:
    """A column that has no id yet: `create_table` and `add_column` give it one."""
    return LakeColumn(id=0, name=name, type=type, nulls_allowed=nulls_allowed, children=children)


def current(draft: Draft, text: str, params: Sequence[Any]) -> list[Row]:
    """Rows that are live for the draft: committed by anybody, or written earlier in the same transaction.

    The statement's last column is end_snapshot. A row is over as soon as either view of the catalog says so.
    """
    over: dict[Row, bool] = {}
    for *identity, end in (*draft.committed(text, params), *draft.run(text, params)):
        key = tuple(identity)
        over[key] = over.get(key, False) or end is not None
    return [row for row, ended in over.items() if not ended]


def ensure_schema(draft: Draft, name: str) -> int:
    """The id of a schema of the lake, which is created if need be."""
    found = schema_row(draft, name)
    if found is not None:
        return int(found[0])
    schema_id = draft.new_catalog_id()
    id = uuid.uuid4()
    draft.run(
        "INSERT INTO {lake}.ducklake_schema VALUES (%s, %s, %s, NULL, %s, %s, true)",
        (schema_id, id, draft.id, name, folder(name, str(id))),
    )
    draft.schema_changed()
    draft.announce(f"created_schema:{quoted(name)}")
    return schema_id


def find_table(draft: Draft, schema: str, name: str) -> LakeTable | None:
    """A table as the draft sees it now."""
    found = schema_row(draft, schema)
    if found is None:
        return None
    schema_id, _, schema_path, schema_relative = found
    rows = current(
        draft,
        "SELECT table_id, begin_snapshot, table_uuid, path, path_is_relative, end_snapshot FROM {lake}.ducklake_table "
        "WHERE schema_id = %s AND table_name = %s",
        (schema_id, name),
    )
    if not rows:
        return None
    table_id, _, table_uuid, path, relative = rows[0]
    base = _join(draft.lake, schema_path, schema_relative)
    return LakeTable(
        id=table_id,
        uuid=str(table_uuid),
        schema=schema,
        name=name,
        path=f"{base}{path}" if relative else path,
        columns=columns_of(draft, table_id),
    )


def columns_of(draft: Draft, table_id: int) -> tuple[LakeColumn, ...]:
    """A table's columns as the draft sees them now."""
    rows = current(
        draft,
        "SELECT column_order, column_id, begin_snapshot, column_name, column_type, nulls_allowed, initial_default, "
        "parent_column, end_snapshot FROM {lake}.ducklake_column WHERE table_id = %s",
        (table_id,),
    )

    def below(parent: int | None) -> tuple[LakeColumn, ...]:
        return tuple(
            LakeColumn(id, name, type, nulls, initial, below(id) if type in NESTED else ())
            for _, id, _, name, type, nulls, initial, owner in sorted(rows, key=lambda row: (row[0], row[1]))
            if owner == parent
        )

    return below(None)


def create_table(
    draft: Draft, schema: str, name: str, columns: Sequence[LakeColumn], *, id: uuid.UUID | None = None
) -> LakeTable:
    """Create a table. Columns get their ids here, depth first from 1; with an `id` for the table they have theirs."""
    schema_id = ensure_schema(draft, schema)
    require_free(draft, schema_id, schema, name)
    check_names(columns)
    numbered = tuple(columns) if id is not None else number(columns, 1)[0]
    table_id, id = draft.new_catalog_id(), id or uuid.uuid4()
    path = folder(name, str(id))
    draft.run(
        "INSERT INTO {lake}.ducklake_table VALUES (%s, %s, %s, NULL, %s, %s, %s, true)",
        (table_id, id, draft.id, schema_id, name, path),
    )
    _insert_columns(draft, table_id, numbered, None)
    note_schema_version(draft, table_id)
    draft.announce(f"created_table:{quoted(schema)}.{quoted(name)}")
    found = schema_row(draft, schema)
    assert found is not None
    base = _join(draft.lake, found[2], found[3])
    return LakeTable(table_id, str(id), schema, name, f"{base}{path}", numbered)


def drop_table(draft: Draft, table: LakeTable) -> None:
    """End a table and everything in it; older snapshots still show it."""
    draft.change(
        1,
        "UPDATE {lake}.ducklake_table SET end_snapshot = %s WHERE table_id = %s AND end_snapshot IS NULL",
        (draft.id, table.id),
    )
    for part in ("partition_info", "column", "column_tag", "data_file", "delete_file", "sort_info"):
        draft.run(
            f"UPDATE {{lake}}.ducklake_{part} SET end_snapshot = %s WHERE table_id = %s AND end_snapshot IS NULL",
            (draft.id, table.id),
        )
    end_tags(draft, table.id)
    live = "SELECT data_file_id, end_snapshot FROM {lake}.ducklake_data_file WHERE table_id = %s"
    if current(draft, live, (table.id,)):
        raise conflict(draft.lake, f"another writer added files to table {table.name}")
    draft.schema_changed()
    draft.announce(f"dropped_table:{table.id}")


def add_column(draft: Draft, table: LakeTable, added: LakeColumn) -> LakeTable:
    """Add a column at the end; rows written before have `initial_default` there, or NULL."""
    check_names((added,))
    if any(known.name.lower() == added.name.lower() for known in table.columns):
        raise UserError(f"lake table {table.name} already has a column {added.name}")
    text = "SELECT coalesce(max(column_id), 0) FROM {lake}.ducklake_column WHERE table_id = %s"
    highest = max(rows[0][0] for rows in (draft.committed(text, (table.id,)), draft.run(text, (table.id,))))
    numbered, _ = number((added,), highest + 1)
    _insert_columns(draft, table.id, numbered, None)
    return _altered(draft, replace(table, columns=(*table.columns, *numbered)))


def drop_column(draft: Draft, table: LakeTable, name: str) -> LakeTable:
    """End a column and what is nested in it."""
    dropped = _column(table, name)
    ids = [each.id for each in _all((dropped,))]
    draft.change(
        len(ids),
        "UPDATE {lake}.ducklake_column SET end_snapshot = %s WHERE table_id = %s AND column_id = ANY(%s) "
        "AND end_snapshot IS NULL",
        (draft.id, table.id, ids),
    )
    return _altered(draft, replace(table, columns=tuple(each for each in table.columns if each.id != dropped.id)))


def rename_column(draft: Draft, table: LakeTable, name: str, to: str) -> LakeTable:
    """Rename a column; files find it by its id."""
    check_names((column(to, "int32"),))
    return _replace_column(draft, table, replace(_column(table, name), name=to))


def widen_column(draft: Draft, table: LakeTable, name: str, type: str) -> LakeTable:
    """Give a column a wider type; old files are cast when they are read. The caller knows that the type is wider."""
    return _replace_column(draft, table, replace(_column(table, name), type=type))


def folder(name: str, id: str) -> str:
    """The folder of a schema or table: its name if that is harmless in a path, else its uuid.

    >>> folder("orders", "1f"), folder("a/b", "1f")
    ('orders/', '1f/')
    """
    return f"{name if _PLAIN.fullmatch(name) else id}/"


def quoted(name: str) -> str:
    """A name in a snapshot's list of changes.

    >>> quoted('we"ird')
    '"we""ird"'
    """
    return '"' + name.replace('"', '""') + '"'


def _join(lake: Lake, path: str, relative: bool) -> str:
    return f"{lake.data_path}{path}" if relative else path


def schema_row(draft: Draft, name: str) -> Row | None:
    """A schema's id, begin, path and whether that is relative."""
    rows = current(
        draft,
        "SELECT schema_id, begin_snapshot, path, path_is_relative, end_snapshot FROM {lake}.ducklake_schema "
        "WHERE schema_name = %s",
        (name,),
    )
    return rows[0] if rows else None


def require_free(draft: Draft, schema_id: int, schema: str, name: str) -> None:
    """Tables and views share one set of names, and DuckDB does not tell upper from lower case."""
    for kind in ("table", "view"):
        text = (
            f"SELECT {kind}_id, begin_snapshot, end_snapshot FROM {{lake}}.ducklake_{kind} "
            f"WHERE schema_id = %s AND lower({kind}_name) = lower(%s)"
        )
        if current(draft, text, (schema_id, name)):
            raise UserError(
                f"lake {draft.lake.name} already has a {kind} {schema}.{name}",
                hint="Drop it there, or choose another name.",
            )


def check_names(columns: Iterable[LakeColumn]) -> None:
    """Refuse names that DuckLake keeps for itself, or cannot tell apart."""
    names: set[str] = set()
    for each in columns:
        low = each.name.lower()
        if low in _RESERVED or low.startswith("_ducklake_internal_"):
            raise UserError(
                f"a lake table cannot have a column {each.name}: DuckLake uses that name itself",
                hint="Give the column another name in the query.",
            )
        if low in names:
            raise UserError(
                f"a lake table cannot have two columns {each.name}: DuckDB does not tell upper from lower case",
                hint="Give one of them another name in the query.",
            )
        names.add(low)


def _column(table: LakeTable, name: str) -> LakeColumn:
    for each in table.columns:
        if each.name == name:
            return each
    raise UserError(f"lake table {table.name} has no column {name}")


def _all(columns: Iterable[LakeColumn]) -> Iterable[LakeColumn]:
    for each in columns:
        yield each
        yield from _all(each.children)


def number(columns: Sequence[LakeColumn], next_id: int) -> tuple[tuple[LakeColumn, ...], int]:
    """Columns with ids, depth first, and the next id."""
    numbered = []
    for each in columns:
        children, after = number(each.children, next_id + 1)
        numbered.append(replace(each, id=next_id, children=children))
        next_id = after
    return tuple(numbered), next_id


def _insert_columns(draft: Draft, table_id: int, columns: Sequence[LakeColumn], parent: int | None) -> None:
    draft.run_many(
        "INSERT INTO {lake}.ducklake_column VALUES (%s, %s, NULL, %s, %s, %s, %s, %s, %s, %s, %s, %s, 'duckdb')",
        [_column_row(draft, table_id, each, parent) for each in columns],
    )
    for each in columns:
        _insert_columns(draft, table_id, each.children, each.id)


def _column_row(draft: Draft, table_id: int, each: LakeColumn, parent: int | None) -> Row:
    return (
        each.id,
        draft.id,
        table_id,
        each.id,
        each.name,
        each.type,
        each.initial_default,
        "NULL",
        each.nulls_allowed,
        parent,
        "" if each.children else "literal",
    )


def _replace_column(draft: Draft, table: LakeTable, new: LakeColumn) -> LakeTable:
    """End the column's row and write one with the same id and place."""
    [(order, default, kind)] = draft.run(
        "SELECT column_order, default_value, default_value_type FROM {lake}.ducklake_column "
        "WHERE table_id = %s AND column_id = %s AND end_snapshot IS NULL",
        (table.id, new.id),
    ) or [(new.id, "NULL", "literal")]
    draft.change(
        1,
        "UPDATE {lake}.ducklake_column SET end_snapshot = %s WHERE table_id = %s AND column_id = %s "
        "AND end_snapshot IS NULL",
        (draft.id, table.id, new.id),
    )
    row = list(_column_row(draft, table.id, new, None))
    row[3], row[7], row[10] = order, default, kind
    draft.run(
        "INSERT INTO {lake}.ducklake_column VALUES (%s, %s, NULL, %s, %s, %s, %s, %s, %s, %s, %s, %s, 'duckdb')", row
    )
    columns = tuple(new if each.id == new.id else each for each in table.columns)
    return _altered(draft, replace(table, columns=columns))


def _altered(draft: Draft, table: LakeTable) -> LakeTable:
    from runnel.lake.write.inline import follow_schema

    note_schema_version(draft, table.id)
    follow_schema(draft, table)
    draft.announce(f"altered_table:{table.id}")
    return table


def note_schema_version(draft: Draft, table_id: int) -> None:
    """Compaction looks here for the files that share a schema; one row per table and snapshot."""
    draft.schema_changed()
    draft.run(
        "INSERT INTO {lake}.ducklake_schema_versions SELECT %s, %s, %s WHERE NOT EXISTS "
        "(SELECT 1 FROM {lake}.ducklake_schema_versions WHERE begin_snapshot = %s AND table_id = %s)",
        (draft.id, draft.schema_version, table_id, draft.id, table_id),
    )


def end_tags(draft: Draft, object_id: int) -> None:
    draft.run(
        "UPDATE {lake}.ducklake_tag SET end_snapshot = %s WHERE object_id = %s AND end_snapshot IS NULL",
        (draft.id, object_id),
    )
