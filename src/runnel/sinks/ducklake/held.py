"""What a log in the lake misses while it is held back: the changes of each refresh, kept in PostgreSQL.

Only the log (mode append) needs them: a merged table is compared with its row map, a replaced one is published whole.
When the log goes on it gets the net of them: a row that came and went meanwhile never was in a good version.
"""

from __future__ import annotations

from typing import Any

import psycopg

from runnel.apply.tables import group_by_sql, grouped_value
from runnel.catalog.owner import AsOwner
from runnel.model.names import quote
from runnel.ports.sink import Result

Connection = psycopg.Connection[Any]


def table_of(pgt_id: int) -> str:
    """Where they are."""
    return f"pgtrickle_state.{quote(f'held_{pgt_id}')}"


def keep(conn: Connection, result: Result) -> None:
    """Add the changes of a refresh."""
    table = table_of(result.id)
    row = conn.execute("SELECT to_regclass(%s) IS NULL", (table,)).fetchone()
    if row is not None and row[0]:
        conn.execute(f"CREATE TABLE {table} (LIKE {result.delta})".encode())
        conn.execute("SELECT pgtrickle._without_statistics(%s::regclass)", (table,))
        conn.execute(f"GRANT SELECT ON {table} TO {quote(result.owner)}".encode())
    # Values are moved as they are: nothing of the owner's is evaluated.
    conn.execute(f"INSERT INTO {table} SELECT * FROM {result.delta}".encode())


def netted(owner: AsOwner, result: Result, *, changed: bool) -> tuple[int, int, str]:
    """What was kept and what the present refresh `changed`: rows added, rows removed, and a relation of it."""
    if changed:
        keep(owner.conn, result)
    columns = [(f"o{i}", column.type) for i, column in enumerate(result.columns)]
    items = ", ".join(f"{grouped_value(name, type_)} AS {name}" for name, type_ in columns)
    net = (
        f"(SELECT {items}, sum(w)::int8 AS w FROM {table_of(result.id)} GROUP BY {group_by_sql(columns)} "
        "HAVING sum(w) <> 0) AS net"
    )
    counted = f"SELECT coalesce(sum(w) FILTER (WHERE w > 0), 0), coalesce(-sum(w) FILTER (WHERE w < 0), 0) FROM {net}"
    ((inserted, deleted),) = owner.rows(counted, ["int8", "int8"])
    return int(inserted), int(deleted), net


def drop(conn: Connection, pgt_id: int) -> None:
    """Forget them."""
    conn.execute(f"DROP TABLE IF EXISTS {table_of(pgt_id)}".encode())
