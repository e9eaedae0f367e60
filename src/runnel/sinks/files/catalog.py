"""Typed access to the catalog of exports: the columns of `pgt_sinks` that say where deltas go as files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.sinks.catalog import IS_ABANDONED, delete_unused

Connection = psycopg.Connection[Any]

LOAD = """
SELECT pgt_id, delta_export_path, delta_export_compression FROM pgtrickle.pgt_sinks WHERE delta_export_path IS NOT NULL
"""
COMPRESSION = "SELECT delta_export_compression FROM pgtrickle.pgt_sinks WHERE pgt_id = %s"
SAVE = """
INSERT INTO pgtrickle.pgt_sinks (
    pgt_id, sink, lake_schema, view_name, delta_export_path, delta_export_compression)
VALUES (%(pgt_id)s, 'none', %(lake_schema)s, %(view_name)s, %(path)s, %(compression)s)
ON CONFLICT (pgt_id) DO UPDATE SET
    delta_export_path = excluded.delta_export_path, delta_export_compression = excluded.delta_export_compression
"""
END = "UPDATE pgtrickle.pgt_sinks SET delta_export_path = NULL WHERE pgt_id = %s"
ABANDONED = f"SELECT pgt_id FROM pgtrickle.pgt_sinks WHERE delta_export_path IS NOT NULL AND {IS_ABANDONED}"


@dataclass(frozen=True, slots=True)
class Export:
    """Where a stream table's deltas go."""

    path: str
    """A folder, with a slash at its end."""
    compression: str


def load_exports(conn: Connection) -> dict[int, Export]:
    """All exports by stream table."""
    return {pgt_id: Export(path, compression) for pgt_id, path, compression in conn.execute(LOAD)}


def last_compression(conn: Connection, pgt_id: int | None) -> str | None:
    """The compression that is known of a stream table's exports, even of former ones."""
    row = conn.execute(COMPRESSION, (pgt_id,)).fetchone()
    return None if row is None else str(row[0])


def save_export(conn: Connection, pgt_id: int, export: Export, *, lake_schema: str, view_name: str) -> None:
    """Write an export; schema and view are those that the stream table would have in a lake."""
    values = {"pgt_id": pgt_id, "lake_schema": lake_schema, "view_name": view_name}
    conn.execute(SAVE, {**values, "path": export.path, "compression": export.compression})


def end_export(conn: Connection, pgt_id: int) -> None:
    """Export no more; files that are there belong to their readers."""
    conn.execute(END, (pgt_id,))
    delete_unused(conn, pgt_id)


def abandoned_exports(conn: Connection) -> list[int]:
    """Stream tables that were dropped behind the engine's back, and are still to be exported."""
    return [int(row[0]) for row in conn.execute(ABANDONED.encode())]
