"""Reading and acting for whoever asks.

Every statement of the page runs under the role of its caller, so what is shown and done is what that role may see and
do. No code of users runs in these sessions: they read the catalog, and hand calls to the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from runnel.http.callers import Caller

Connection = psycopg.Connection[Any]
Row = dict[str, Any]


@contextmanager
def speaking_for(conn: Connection, caller: Caller, *, acting: bool = False) -> Iterator[Connection]:
    """A transaction under the caller's role.

    Reading, names are found in pg_catalog alone: in another schema somebody could put a function that would run here.
    `acting`, the engine is told to look for names without a schema in public, too.
    """
    with conn.transaction():
        if acting:
            conn.execute("SET LOCAL search_path = pg_catalog, public")
        if not caller.is_engine:
            conn.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(caller.role)))
        yield conn


def rows(conn: Connection, query: str, values: Mapping[str, Any] | None = None) -> list[Row]:
    """All rows of a query, by column."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), values).fetchall()


def only(conn: Connection, query: str, values: Mapping[str, Any] | None = None) -> Row | None:
    """The first row of a query."""
    found = rows(conn, query, values)
    return found[0] if found else None
