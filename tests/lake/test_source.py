"""Lake tables as sources: stream tables over what DuckDB writes."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

import runnel
from tests.lake.duck import Duck

Check = Callable[..., None]


@pytest.fixture
def lake(duck: Callable[..., Duck], data_path: str, client: runnel.Client, db: psycopg.Connection) -> Duck:
    """A lake made by DuckDB and attached as `lake`."""
    writer = duck(data_path)
    writer.run("CREATE TABLE events (id INTEGER, kind VARCHAR, amount DECIMAL(10,2), ts TIMESTAMP, ok BOOLEAN)")
    db.execute("SELECT pgtrickle.attach_ducklake('lake', catalog_schema => 'ducklake')")
    return writer


INSERT = (
    "INSERT INTO events SELECT i, 'k' || (i % 7), (i % 100) / 3.0, TIMESTAMP '2024-01-01' + INTERVAL (i) MINUTE, "
    "CASE WHEN i % 5 = 0 THEN NULL ELSE i % 2 = 0 END FROM range({}, {}) r(i)"
)


def test_groups_over_a_lake_table(lake: Duck, db: psycopg.Connection, client: runnel.Client, check: Check) -> None:
    lake.run(INSERT.format(0, 500))
    client.create_stream_table(
        "by_kind", "SELECT kind, count(*) AS n, sum(amount) AS total, max(ts) AS last FROM lake.events GROUP BY 1"
    )
    check("by_kind")
    lake.run(INSERT.format(500, 505))
    check("by_kind")
    lake.run("DELETE FROM events WHERE id % 3 = 0")
    check("by_kind")
    lake.run("UPDATE events SET amount = amount + 1, kind = 'k1' WHERE id % 11 = 0")
    check("by_kind")
    expected = lake.bag("SELECT kind, count(*), sum(amount)::DECIMAL(38,2) FROM events GROUP BY 1")
    assert lake.bag("SELECT 1 WHERE false") == {}
    rows = db.execute("SELECT kind, n, total FROM by_kind").fetchall()
    assert dict.fromkeys(rows, 1) == expected
    actions = [r.action for r in client.history("by_kind")]
    assert actions.count("DIFFERENTIAL") >= 3
    assert set(actions) == {"INITIAL", "DIFFERENTIAL"}


def test_a_lake_table_joined_with_a_table(
    lake: Duck, db: psycopg.Connection, client: runnel.Client, check: Check
) -> None:
    db.execute("CREATE TABLE kinds (kind text PRIMARY KEY, label text)")
    db.execute("INSERT INTO kinds SELECT 'k' || i, 'label ' || i FROM generate_series(0, 4) i")
    lake.run(INSERT.format(0, 300))
    client.create_stream_table(
        "labelled",
        "SELECT k.label, count(*) AS n, sum(e.amount) AS total FROM lake.main.events e JOIN kinds k ON k.kind = e.kind "
        "WHERE e.ok GROUP BY 1",
    )
    client.create_stream_table(
        "missing", "SELECT e.id, k.label FROM lake.events e LEFT JOIN kinds k ON k.kind = e.kind WHERE e.id < 50"
    )
    check("labelled", "missing")
    lake.run(INSERT.format(300, 340))
    db.execute("INSERT INTO kinds VALUES ('k5', 'five')")
    db.execute("DELETE FROM kinds WHERE kind = 'k0'")
    check("labelled", "missing")
    lake.run("DELETE FROM events WHERE id BETWEEN 10 AND 30")
    db.execute("UPDATE kinds SET label = 'new' WHERE kind = 'k1'")
    check("labelled", "missing")
    frontier = db.execute("SELECT frontier FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'labelled'").fetchone()
    assert frontier is not None
    assert frontier[0]["ducklake:lake.main.events"] == lake.head()
    assert frontier[0]["postgres"]
