"""Capture from the WAL, through the public surface: whatever is written, stream tables equal their queries."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

import runnel
from tests.wal.conftest import Captured

TOTALS = "SELECT k, count(*) AS n, sum(v) AS s, max(t) AS t FROM src GROUP BY k"
ROWS = "SELECT id, k, v, t FROM src"


@pytest.fixture
def src(db: psycopg.Connection, client: runnel.Client, captured: Captured) -> None:
    db.execute("CREATE TABLE src (id int PRIMARY KEY, k int, v numeric, t text, unused text)")
    db.execute("INSERT INTO src SELECT i, i % 3, i, 'x' || i FROM generate_series(1, 10) i")
    client.create_stream_table("totals", TOTALS, schedule="1s", cdc_mode="wal")
    client.create_stream_table("copied", ROWS, schedule="1s")
    captured("wal", "src")


def test_statements(db: psycopg.Connection, src: None, check: Callable[..., None]) -> None:
    assert db.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'src'::regclass").fetchone() == (0,)
    for statement in (
        "INSERT INTO src VALUES (11, 1, 1.50, NULL, 'a'), (12, NULL, NULL, E'tab\\t\\\\n', 'b')",
        "UPDATE src SET v = v + 1 WHERE id < 5",
        "UPDATE src SET id = id + 100, k = NULL WHERE id = 3",
        "UPDATE src SET unused = 'nothing that anybody reads'",
        "DELETE FROM src WHERE id IN (1, 12)",
        "INSERT INTO src VALUES (2, 9, 9, '9') ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        "MERGE INTO src USING (VALUES (2), (77)) AS n (id) ON n.id = src.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, k) VALUES (n.id, 5)",
        "TRUNCATE src",
        "INSERT INTO src SELECT i, i % 7, i, repeat('y', i % 50) FROM generate_series(1, 20000) i",
        "DELETE FROM src WHERE id % 2 = 0",
    ):
        db.execute(statement.encode())
        check("totals", "copied")
