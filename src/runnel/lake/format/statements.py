"""Running a statement on a lake's catalog: `{lake}` in the text is the catalog's schema, all values are parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.rows import tuple_row

from runnel.model.names import quote

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

Row = tuple[Any, ...]


def identifier(*names: str) -> sql.SQL:
    """A qualified name for a statement with parameters: a per cent sign in it is no placeholder.

    >>> identifier("s", "100%").as_string()
    '"s"."100%%"'
    """
    return sql.SQL(".".join(quote(name) for name in names).replace("%", "%%"))


def execute(conn: Connection[Any], schema: str, text: str, params: Sequence[Any] = ()) -> Cursor[Row]:
    """Run one statement; whatever rows the connection usually makes, these are tuples."""
    name = quote(schema).replace("%", "%%")
    return conn.cursor(row_factory=tuple_row).execute(text.replace("{lake}", name).encode(), params)


def execute_many(conn: Connection[Any], schema: str, text: str, rows: Sequence[Sequence[Any]]) -> None:
    """Run one statement for many rows, in one round trip."""
    if rows:
        name = quote(schema).replace("%", "%%")
        conn.cursor().executemany(text.replace("{lake}", name).encode(), rows)
