"""The change log of a stream table: what each of its versions changed, for the stream tables that read it."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from runnel.apply.output import output_columns
from runnel.apply.tables import StageTables, typed
from runnel.model.names import quote
from runnel.model.types import Column
from runnel.plan.stage import Stage


def create_log(conn: psycopg.Connection, pgt_id: int, columns: Sequence[Column], role: str) -> None:
    """The change log of a stream table, from its first reader on."""
    items = ", ".join(typed(f"o{i}", c.type, c.collation) for i, c in enumerate(columns))
    log = f"pgtrickle_changes.log_{pgt_id}"
    conn.execute(f"CREATE TABLE IF NOT EXISTS {log} (pgt_version int8 NOT NULL, pgt_w int8 NOT NULL, {items})".encode())
    conn.execute("SELECT pgtrickle._identify(ARRAY[%s::regclass::oid])", (log,))
    conn.execute(f"CREATE INDEX IF NOT EXISTS log_{pgt_id}_version ON {log} (pgt_version)".encode())
    conn.execute("SELECT pgtrickle._without_statistics(%s::regclass)", (log,))
    conn.execute(f"GRANT SELECT ON {log} TO {quote(role)}".encode())


def write_log(conn: psycopg.Connection, pgt_id: int, stage: Stage, tables: StageTables, version: int) -> None:
    """Append the delta to the log."""
    names = ", ".join(n for n, _ in output_columns(stage))
    conn.execute(
        f"INSERT INTO pgtrickle_changes.log_{pgt_id} (pgt_version, pgt_w, {names}) "
        f"SELECT {version}, w, {names} FROM {tables.delta}".encode()
    )


def drop_log(conn: psycopg.Connection, pgt_id: int) -> None:
    """Away with a change log that nobody can read any more."""
    conn.execute(f"DROP TABLE IF EXISTS pgtrickle_changes.log_{pgt_id}".encode())
