"""A database with a guest who has laid a trap, and an engine at work on it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from tests.security import trap


@pytest.fixture
def guest(dsn: str, db: psycopg.Connection, engine: runnel.Engine) -> Iterator[psycopg.Connection]:
    """A session of an ordinary role that owns a schema and a table."""
    trap.lay(db)
    with psycopg.connect(make_conninfo(dsn, user=trap.ROLE), autocommit=True) as conn:
        trap.enter(conn)
        yield conn
    db.execute("ALTER ROLE sec_guest NOSUPERUSER")
