"""Shorthands for tests of the catalog."""

from __future__ import annotations

from typing import Any

import psycopg

from runnel.catalog import store
from runnel.catalog.rows import Definition, Dependency


def oid_of(db: psycopg.Connection, name: str) -> int:
    row = db.execute("SELECT %s::regclass::oid::int8", (name,)).fetchone()
    assert row is not None
    return int(row[0])


def capture(db: psycopg.Connection, table: str, *columns: str) -> int:
    oid = oid_of(db, table)
    db.execute("SELECT pgtrickle._capture_install(%s::oid, %s)", (oid, list(columns)))
    return oid


def changes(db: psycopg.Connection, oid: int) -> list[tuple[Any, ...]]:
    """(weight, captured columns by attnum...) of every buffered row, sorted as text."""
    names = [f"c{c.attnum}" for c in store.change_tracking(db)[oid].columns]
    listed = "".join(f", {n}" for n in names)
    rows = db.execute(f"SELECT pgt_w{listed} FROM pgtrickle_changes.changes_{oid}").fetchall()  # type: ignore[arg-type]
    return sorted(rows, key=repr)


def clear(db: psycopg.Connection, oid: int) -> None:
    db.execute(f"DELETE FROM pgtrickle_changes.changes_{oid}")  # type: ignore[arg-type]


def stream_table(db: psycopg.Connection, name: str, source: str, *columns: str, status: str = "ACTIVE") -> int:
    """Record a stream table over some columns of a source, with capture, as the engine would."""
    with db.transaction():
        db.execute(f"CREATE TABLE {name} ()")  # type: ignore[arg-type]
        source_oid = capture(db, source, *columns)
        types = dict(db.execute("SELECT name, type FROM pgtrickle._columns(%s)", (source_oid,)).fetchall())
        definition = Definition(
            original_query="SELECT", defining_query="SELECT", schedule="1s", refresh_mode="AUTO",
            effective_mode="DIFFERENTIAL", settings={},
        )  # fmt: skip
        pgt_id = store.insert_stream_table(
            db,
            relid=oid_of(db, name),
            schema="public",
            name=name,
            owner=10,
            definition=definition,
            status=status,
        )
        row = db.execute("SELECT pgtrickle._relation_name(%s)", (source_oid,)).fetchone()
        assert row is not None
        dependency = Dependency(
            pgt_id=pgt_id, source_relid=source_oid, source_type="TABLE", source_name=row[0],
            columns_used=columns, column_types=tuple(types[c] for c in columns),
        )  # fmt: skip
        store.replace_dependencies(db, pgt_id, [dependency])
    return pgt_id


def state_of(db: psycopg.Connection, pgt_id: int) -> tuple[str, str | None]:
    found = store.load_stream_table(db, pgt_id)
    assert found is not None
    return found.status, found.last_error
