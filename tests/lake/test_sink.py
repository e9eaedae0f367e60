"""A stream table with a sink: DuckDB shows what PostgreSQL shows, refresh by refresh."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import runnel
from tests.lake.duck import Duck
from tests.lake.places import Place
from tests.lake.published import Published

PER_KIND = "SELECT kind, count(*) AS n, sum(amount) AS total, min(note) AS first FROM sales GROUP BY kind"
ROWS = "SELECT id, kind, amount, note FROM sales WHERE amount > 0"


@pytest.fixture
def sales(db: psycopg.Connection) -> psycopg.Connection:
    db.execute("CREATE TABLE sales (id int PRIMARY KEY, kind text, amount numeric(10,2), note text)")
    db.execute("INSERT INTO sales SELECT i, 'k' || i % 5, i, CASE WHEN i % 3 = 0 THEN NULL ELSE 'n' || i END "
               "FROM generate_series(1, 50) i")  # fmt: skip
    return db


@pytest.fixture
def place(dsn: str, data_path: str, client: runnel.Client, db: psycopg.Connection) -> Place:
    """A lake in a folder, known to a running engine."""
    made = Place(dsn, data_path)
    made.attach(db)
    return made


@pytest.fixture
def lake(place: Place) -> Iterator[Duck]:
    with place.duck() as duck:
        yield duck


def steps(db: psycopg.Connection) -> Iterator[str]:
    """Inserts, updates, deletes, a row that comes and goes, everything gone, everything back."""
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


@pytest.mark.parametrize("mode", ["merge", "append", "replace"])
def test_duckdb_shows_what_postgresql_shows(
    mode: str, sales: psycopg.Connection, place: Place, lake: Duck, client: runnel.Client
) -> None:
    tables = []
    for name, query in (("per_kind", PER_KIND), ("rows", ROWS)):
        client.create_stream_table(name, query, schedule="1h", sink="ducklake", ducklake_sink_mode=mode)
        tables.append(Published(name, mode, sales))
        tables[-1].observe(lake)
    for _ in steps(sales):
        client.refresh()
        for table in tables:
            table.observe(lake)
    for table in tables:
        assert len(table.history) >= 7
        table.check_history(lake)
        table.check_provenance()
    place.check(sales)
