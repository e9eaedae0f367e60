"""Typed access to the outboxes of stream tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from runnel.errors import UserError
from runnel.ports.sink import Result

Connection = psycopg.Connection[Any]

LOAD = """
SELECT pgt_id, outbox_name, retention_hours, inline_threshold, columns, relid::int8 FROM tide.tide_outbox_config
WHERE pgt_id IS NOT NULL
"""
# One that was detached is taken up again, if it is of the same owner.
ATTACH = """
INSERT INTO tide.tide_outbox_config AS c (outbox_name, owner, retention_hours, inline_threshold, pgt_id, relid)
SELECT %(name)s, t.owner, %(hours)s, %(rows)s, t.pgt_id, t.pgt_relid FROM pgtrickle.pgt_stream_tables t
WHERE t.pgt_id = %(pgt_id)s
ON CONFLICT (outbox_name) DO UPDATE SET retention_hours = excluded.retention_hours,
    inline_threshold = excluded.inline_threshold, pgt_id = excluded.pgt_id, relid = excluded.relid, columns = NULL
WHERE c.owner = excluded.owner AND c.pgt_id IS NULL
"""
DETACH = "UPDATE tide.tide_outbox_config SET pgt_id = NULL, relid = NULL, columns = NULL WHERE pgt_id = %s"
DELETE = "DELETE FROM tide.tide_outbox_config WHERE pgt_id = %s"
SHAPE = "UPDATE tide.tide_outbox_config SET columns = %s, definition_version = %s, relid = %s WHERE pgt_id = %s"
ABANDONED = """
SELECT pgt_id FROM tide.tide_outbox_config c
WHERE pgt_id IS NOT NULL AND NOT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables t WHERE t.pgt_id = c.pgt_id)
"""
NAMES = "SELECT outbox_name FROM tide.tide_outbox_config"
NOTIFY = "SELECT pg_notify('tide_outbox_new', %s)"


@dataclass(frozen=True, slots=True)
class Attached:
    """The outbox of a stream table."""

    name: str
    retention_hours: int
    rows: int
    """At most so many rows are in one message."""
    columns: list[list[str]] | None = None
    """[name, type, lake type] of the rows published last; None: nothing is published yet."""
    relid: int | None = None
    """The table, by which rights are told; another one after the stream table was given other columns."""


def load(conn: Connection) -> dict[int, Attached]:
    return {int(pgt_id): Attached(*rest) for pgt_id, *rest in conn.execute(LOAD)}


def attach(conn: Connection, pgt_id: int, attached: Attached) -> None:
    values = {"name": attached.name, "hours": attached.retention_hours, "rows": attached.rows, "pgt_id": pgt_id}
    if not conn.execute(ATTACH, values).rowcount:
        raise taken(attached.name)


def taken(name: str) -> UserError:
    return UserError(
        f'outbox "{name}" already exists, and is of others', hint="Drop it: tide.outbox_drop()", sqlstate="42710"
    )


def detach(conn: Connection, pgt_id: int) -> None:
    conn.execute(DETACH, (pgt_id,))


def delete(conn: Connection, pgt_id: int) -> None:
    conn.execute(DELETE, (pgt_id,))


def save_shape(conn: Connection, result: Result, columns: list[list[str]]) -> None:
    conn.execute(SHAPE, (Jsonb(columns), result.definition_version, result.relid, result.id))


def abandoned(conn: Connection) -> list[int]:
    """Outboxes of stream tables that were dropped behind the engine's back."""
    return [int(row[0]) for row in conn.execute(ABANDONED)]


def notify(conn: Connection, name: str) -> None:
    """Wake the relay, at COMMIT."""
    conn.execute(NOTIFY, (name,))
