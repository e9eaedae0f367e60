"""What the end-to-end tests share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import psycopg

import runnel

Check = Callable[..., None]
T = TypeVar("T")


class Stream(Protocol):
    """The fixture `stream`."""

    def __call__(self, name: str, query: str, mode: str = ..., schedule: str = ...) -> None: ...


def rows(db: psycopg.Connection, query: str) -> list[tuple[Any, ...]]:
    """All rows of a query, in its own order."""
    return db.execute(query.encode()).fetchall()


def value(db: psycopg.Connection, query: str) -> Any:
    """The one value of a query."""
    found = db.execute(query.encode()).fetchone()
    assert found is not None, query
    return found[0]


def script(db: psycopg.Connection, text: str) -> None:
    """Run several statements, each in its own transaction."""
    for statement in text.split(";"):
        if statement.strip():
            db.execute(statement.encode())


def eventually(probe: Callable[[], T], seconds: float = 20.0, *, what: str = "it never happened") -> T:
    """Ask again and again until the answer is truthy."""
    deadline = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what} (last answer: {answer!r})"
        time.sleep(0.02)


def last_refresh(client: runnel.Client, name: str) -> runnel.client.Refresh:
    """The newest line of a stream table's history."""
    return client.history(name, 1)[0]


def drop_schema(conn: psycopg.Connection, name: str) -> None:
    """Drop a schema with all in it, stream tables first; a refresh under way may hold us up."""
    conn.execute("SET lock_timeout = '20s'")
    for attempt in range(5):
        try:
            conn.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())
            return
        except (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
            if attempt == 4:
                raise


def leftovers(db: psycopg.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Everything Runnel may leave in a database, and every relation, trigger and privilege of the user's."""
    return {
        "relations": rows(
            db,
            "SELECT n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' ORDER BY 1, 2, 3",
        ),
        "triggers": rows(db, "SELECT tgrelid::regclass::text, tgname FROM pg_trigger ORDER BY 1, 2"),
        "functions": rows(
            db,
            "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
            "WHERE n.nspname LIKE 'pgtrickle%' ORDER BY 1",
        ),
        "types": rows(
            db,
            "SELECT n.nspname, t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace "
            "WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' ORDER BY 1, 2",
        ),
        "stream tables": rows(db, "SELECT pgt_id, pgt_name, status FROM pgtrickle.pgt_stream_tables ORDER BY 1"),
        "dependencies": rows(db, "SELECT pgt_id, source_relid FROM pgtrickle.pgt_dependencies ORDER BY 1, 2"),
        "tracking": rows(db, "SELECT source_relid, columns::text FROM pgtrickle.pgt_change_tracking ORDER BY 1"),
        "open requests": rows(db, "SELECT kind FROM pgtrickle.pgt_requests WHERE status IN ('PENDING', 'RUNNING')"),
    }
