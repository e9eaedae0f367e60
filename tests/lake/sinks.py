"""What tests of sinks share: a table of sales, a lake that a running engine knows, a DuckDB client of it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import runnel
from tests.lake.compare import assert_equal, duck_bag, pg_bag
from tests.lake.duck import Duck
from tests.lake.places import Place

PER_KIND = "SELECT kind, count(*) AS n, sum(amount) AS total, min(note) AS first FROM sales GROUP BY kind"
ROWS = "SELECT id, kind, amount, note FROM sales WHERE amount > 0"


@pytest.fixture
def sales(db: psycopg.Connection) -> psycopg.Connection:
    """A table with fifty rows."""
    db.execute("CREATE TABLE sales (id int PRIMARY KEY, kind text, amount numeric(10,2), note text)")
    db.execute(
        "INSERT INTO sales SELECT i, 'k' || i % 5, i, CASE WHEN i % 3 = 0 THEN NULL ELSE 'n' || i END "
        "FROM generate_series(1, 50) i"
    )
    return db


@pytest.fixture
def place(dsn: str, data_path: str, client: runnel.Client, db: psycopg.Connection) -> Place:
    """A lake in a folder, known to a running engine."""
    made = Place(dsn, data_path)
    made.attach(db)
    return made


@pytest.fixture
def lake(place: Place) -> Iterator[Duck]:
    """A DuckDB client of the lake."""
    with place.duck() as duck:
        yield duck


def steps(db: psycopg.Connection) -> Iterator[str]:
    """Inserts, updates, deletes, everything gone, everything back, equal rows."""
    for change in (
        "INSERT INTO sales VALUES (100, 'k1', 5.50, 'new'), (101, NULL, 1, NULL)",
        "UPDATE sales SET amount = amount + 1 WHERE id % 7 = 0",
        "DELETE FROM sales WHERE kind = 'k2'",
        "UPDATE sales SET kind = 'k9', note = upper(note) WHERE id BETWEEN 10 AND 30",
        "DELETE FROM sales",
        "INSERT INTO sales SELECT i, 'k' || i % 3, i * 1.5, 'x' FROM generate_series(1, 20) i",
        "DELETE FROM sales WHERE id > 5; INSERT INTO sales VALUES (6, 'k0', 9, 'x'), (7, 'k0', 9, 'x')",
    ):
        db.execute(change.encode())
        yield change


def same(db: psycopg.Connection, duck: Duck, name: str) -> None:
    """DuckDB and PostgreSQL show the same rows."""
    assert_equal(duck_bag(db, duck, name), pg_bag(db, name), name)
