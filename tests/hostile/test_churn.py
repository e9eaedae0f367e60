"""Stream tables come and go for months in one session: nothing of them may stay there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import runnel
from tests.conftest import running_engine
from tests.e2e.helpers import eventually, value
from tests.hostile.helpers import backend

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = {
    "groups": "SELECT grp, sum(x) AS s, max(x) AS m, count(DISTINCT id) AS d FROM items GROUP BY grp",
    "joined": "SELECT a.id, b.x FROM items a JOIN items b ON a.id = b.grp",
    "ranked": "SELECT id, rank() OVER (PARTITION BY grp ORDER BY x) AS r FROM items",
    "walk": "WITH RECURSIVE w (id) AS (SELECT 1 UNION SELECT i.id FROM w JOIN items i ON i.grp = w.id) "
    "SELECT id FROM w",
}


def temporary(db: psycopg.Connection, pid: int) -> int:
    """Temporary relations of the session that refreshes, but for the one that marks it as the engine's."""
    number = "(SELECT b.id FROM pg_stat_get_backend_idset() b(id) WHERE pg_stat_get_backend_pid(b.id) = {})"
    schema = f"(SELECT oid FROM pg_namespace WHERE nspname = 'pg_temp_' || {number.format(pid)})"
    return int(value(db, f"SELECT count(*) FROM pg_class WHERE relnamespace = {schema} AND relname <> 'pgt_mark'"))


@pytest.mark.slow
def test_temporary_tables_go_with_their_stream_table(
    dsn: str, db: psycopg.Connection, client: runnel.Client, engine: runnel.Engine
) -> None:
    db.execute("CREATE TABLE items (id int, grp int, x int)")
    db.execute("INSERT INTO items SELECT i, i % 5, i FROM generate_series(1, 50) i")
    pid = backend(db, "runnel refresh")
    counts, compiled = [], []
    for _ in range(10):
        for name, query in QUERIES.items():
            client.create_stream_table(name, query, "@yearly")
        db.execute("UPDATE items SET x = x + 1")
        for name in QUERIES:
            client.refresh(name)
        assert temporary(db, pid) > 0, "not looked for where they are"
        client.alter_stream_table("joined", query="SELECT grp, count(*) AS n FROM items GROUP BY grp")
        for name in QUERIES:
            client.drop_stream_table(name)
        counts.append(temporary(db, pid))
        compiled.append(len(engine._desk.registry.plans))
    assert counts == [0] * 10
    assert compiled == [0] * 10


@pytest.mark.slow
def test_redefinitions_leave_nothing_either(
    db: psycopg.Connection, client: runnel.Client, engine: runnel.Engine
) -> None:
    db.execute("CREATE TABLE items (id int, grp int, x int)")
    pid = backend(db, "runnel refresh")
    client.create_stream_table("one", QUERIES["groups"], "@yearly")
    counts = []
    for turn in range(5):
        for query in (QUERIES["ranked"], QUERIES["walk"], QUERIES["groups"]):
            client.alter_stream_table("one", query=query)
            db.execute("INSERT INTO items VALUES (%s, 1, 1)", (turn,))
            client.refresh("one")
        counts.append(temporary(db, pid))
    assert counts == [counts[0]] * 5
    assert len(engine._desk.registry.plans) == 1
    db.execute("DROP TABLE one")
    eventually(lambda: temporary(db, pid) == 0, 20, what="a plain DROP TABLE left temporary tables behind")


@pytest.mark.slow
def test_staging_tables_of_lakes_go_too(dsn: str, db: psycopg.Connection, spark: SparkSession, tmp_path: Path) -> None:
    db.execute("CREATE TABLE items (id int, x int)")
    db.execute("INSERT INTO items SELECT i, i FROM generate_series(1, 20) i")
    with running_engine(dsn, spark, home=tmp_path), contextlib.closing(runnel.connect(dsn)) as client:
        client.create_stream_table("published", "SELECT id, x FROM items", "@yearly", sink="ducklake")
        known = "SELECT max(relid::regclass::text) FROM pgtrickle.pgt_lake_tables"
        source = eventually(lambda: value(db, known), what="the published table has no stand-in")
        pid = backend(db, "runnel refresh")
        before = temporary(db, pid)
        for mode in ("DIFFERENTIAL", "FULL"):
            for _ in range(3):
                client.create_stream_table(
                    "reader", f"SELECT l.id, l.x FROM {source} l JOIN items i ON i.id = l.id WHERE l.x > 0",
                    "@yearly", mode,
                )  # fmt: skip
                db.execute("UPDATE items SET x = x + 1")
                client.refresh("published")
                client.refresh("reader")
                assert temporary(db, pid) > before
                client.drop_stream_table("reader")
                assert temporary(db, pid) <= before + 2
