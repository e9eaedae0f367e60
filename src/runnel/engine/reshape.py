"""Give an existing stream table the columns of its new query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.apply.ddl import drop_result_index, index_result, look_away
from runnel.apply.tables import typed
from runnel.engine.definitions import Definition, as_maker, create_result
from runnel.model.names import quote
from runnel.model.types import Column
from runnel.sql.describe import relation_columns, user_error

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Reshaped:
    """Where the rows are now, and whether readers see other columns than before."""

    relid: int
    changed: bool


def reshape_result(conn: Connection, relid: int, definition: Definition) -> Reshaped:
    """Bring the table to the columns of its definition.

    Same columns: nothing to do. Other types, or new columns at the end: altered in place, and everything that refers
    to the table stays. Any other change: a new table. PostgreSQL refuses to retype or drop what views depend on.
    """
    # Types are printed as they were when the query was described.
    conn.execute("SET LOCAL search_path = pg_catalog, pg_temp")
    old, new = relation_columns(conn, relid), definition.compiled.description.columns
    if [_shape(c) for c in old] == [_shape(c) for c in new]:
        return Reshaped(relid, False)
    look_away(conn)
    try:
        if [c.name for c in old] == [c.name for c in new[: len(old)]]:
            drop_result_index(conn, definition.name.sql())
            _retype(conn, definition, [n for o, n in zip(old, new, strict=False) if _shape(o) != _shape(n)])
            for column in new[len(old) :]:
                item = typed(quote(column.name), column.type, column.collation)
                with as_maker(conn, definition) as maker:
                    maker.run(f"ALTER TABLE {definition.name.sql()} ADD COLUMN {item}")
            index_result(conn, definition.name.sql(), new)
            return Reshaped(relid, True)
        conn.execute(f"DROP TABLE {definition.name.sql()}".encode())
    except psycopg.Error as error:
        raise user_error(error) from None
    return Reshaped(create_result(conn, definition), True)


def _shape(column: Column) -> tuple[str, str, str | None]:
    return column.name, column.type.sql, column.collation


def _retype(conn: Connection, definition: Definition, columns: list[Column]) -> None:
    """Other types for some columns; rows that can be cast stay, so that a rebuild writes only what differs."""
    if not columns:
        return
    try:
        _alter_types(conn, definition, columns, "{0}::{1}")
    except (psycopg.DataError, psycopg.errors.CannotCoerce):
        with as_maker(conn, definition) as maker:
            maker.run(f"DELETE FROM {definition.name.sql()}")
        _alter_types(conn, definition, columns, "NULL::{1}")


def _alter_types(conn: Connection, definition: Definition, columns: list[Column], using: str) -> None:
    items = ", ".join(
        f"ALTER COLUMN {quote(c.name)} TYPE {typed('', c.type, c.collation)} "
        f"USING {using.format(quote(c.name), c.type.sql)}"
        for c in columns
    )
    with as_maker(conn, definition) as maker:
        maker.run(f"ALTER TABLE {definition.name.sql()} {items}")
