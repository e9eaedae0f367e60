"""Small refreshes that share a transaction: read once, and nobody pays for another's failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

import runnel
from runnel.catalog.owner import AsOwner
from runnel.cli.main import app
from runnel.ports.rows import Query
from runnel.refresh import leaves
from runnel.sources.arrow import read_arrow
from tests.conftest import running_engine
from tests.e2e.helpers import eventually, rows, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = {
    "counted": "SELECT k, count(*) AS n FROM t GROUP BY k",
    "summed": "SELECT k, sum(x) AS s FROM t GROUP BY k",
    "plain": "SELECT id, x FROM t WHERE x >= 0",
    "named": "SELECT d.name, count(*) AS n FROM t JOIN d ON d.k = t.k GROUP BY d.name",
    "largest": "SELECT k, max(x) AS m FROM t GROUP BY k",
}
TOGETHER = (
    "SELECT array_agg(t.pgt_name ORDER BY t.pgt_name) FROM pgtrickle.pgt_refresh_history h "
    "JOIN pgtrickle.pgt_stream_tables t USING (pgt_id) WHERE h.initiated_by = 'SCHEDULER' AND h.status = 'COMPLETED' "
    "GROUP BY h.data_timestamp HAVING count(*) > 1"
)
"""A transaction has one moment."""
FAILED = (
    "SELECT DISTINCT t.pgt_name FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables t USING (pgt_id) "
    "WHERE h.status = 'FAILED'"
)


@pytest.fixture
def one_hand(dsn: str, db: psycopg.Connection, spark: SparkSession) -> Iterator[runnel.Client]:
    """A single worker for everything, and two tables to read."""
    db.execute("CREATE TABLE t (id int, k int, x int)")
    db.execute("CREATE TABLE d (k int PRIMARY KEY, name text)")
    db.execute("INSERT INTO d SELECT k, 'name ' || k FROM generate_series(0, 9) k")
    with running_engine(dsn, spark, workers=1), runnel.connect(dsn) as client:
        yield client


def write_until(db: psycopg.Connection, enough: Callable[[], object], seconds: float = 40) -> None:
    """One row after another, for a moment and until that is so."""
    began, number = time.monotonic(), 0
    while True:
        for _ in range(50):
            db.execute("INSERT INTO t VALUES (%s, %s, %s)", (number, number % 10, number))
            number += 1
            time.sleep(0.02)
        if enough():
            return
        assert time.monotonic() - began < seconds, "it never happened"


def company(db: psycopg.Connection) -> set[str]:
    """All that were refreshed with another one."""
    return {name for (names,) in rows(db, TOGETHER) for name in names}


@pytest.mark.slow
def test_what_is_due_together_is_read_once(one_hand: runnel.Client, db: psycopg.Connection) -> None:
    for name, query in QUERIES.items():
        one_hand.create_stream_table(name, query, "100ms")
    write_until(db, lambda: company(db) == QUERIES.keys())
    assert max(len(names) for (names,) in rows(db, TOGETHER)) > 2
    assert not rows(db, FAILED)
    for name in QUERIES:
        assert one_hand.verify(name).ok
    # A crowd of changes is nobody's company, and is all there.
    db.execute("INSERT INTO t SELECT i, i % 10, i FROM generate_series(1, 5000) i")
    expected = value(db, "SELECT count(*) FROM t")
    for name in ("plain", "counted"):
        column = "count(*)" if name == "plain" else "sum(n)"
        eventually(lambda n=name, c=column: value(db, f"SELECT {c} FROM {n}") == expected, what=f"{name} is late")
    large = rows(
        db,
        "SELECT h.data_timestamp FROM pgtrickle.pgt_refresh_history h WHERE changes_read >= 5000 "
        "AND initiated_by = 'SCHEDULER' GROUP BY 1 HAVING count(*) > 1",
    )
    assert not large


@pytest.mark.slow
def test_changes_that_several_read_alike_are_read_once(
    one_hand: runnel.Client, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joins are the driver's: their changes travel, and what `t` has changed is the same for all three."""
    queries = {
        "named": "SELECT d.name, count(*) AS n FROM t JOIN d ON d.k = t.k GROUP BY d.name",
        "numbered": "SELECT d.k, d.name, count(*) AS n FROM t JOIN d ON d.k = t.k GROUP BY d.k, d.name",
        "paired": "SELECT d.name, t.k FROM t JOIN d ON d.k = t.k",
    }
    for name, query in queries.items():
        one_hand.create_stream_table(name, query, "100ms")
    read: list[str] = []

    def counted(owner: AsOwner, query: Query, schema: pa.Schema) -> pa.Table:
        if "pgtrickle_changes" in query.text:
            read.append(query.text)
        return read_arrow(owner, query, schema)

    monkeypatch.setattr(leaves, "read_arrow", counted)
    write_until(db, lambda: company(db) == queries.keys())
    refreshes = value(
        db,
        "SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE initiated_by = 'SCHEDULER' AND changes_read > 0",
    )
    assert 0 < len(read) < refreshes, f"{len(read)} reads for {refreshes} refreshes"
    assert not rows(db, FAILED)
    for name in queries:
        assert one_hand.verify(name).ok


@pytest.mark.slow
def test_one_that_fails_leaves_the_others_alone(one_hand: runnel.Client, db: psycopg.Connection) -> None:
    for name, query in QUERIES.items():
        one_hand.create_stream_table(name, query, "100ms")
    one_hand.create_stream_table("fragile", "SELECT id, 100 / (x - 177) AS y FROM t", "100ms")
    write_until(db, lambda: "fragile" in company(db) and rows(db, FAILED))
    assert rows(db, FAILED) == [("fragile",)]
    for name in QUERIES:
        assert one_hand.verify(name).ok
    assert not rows(
        db, "SELECT 1 FROM pgtrickle.pgt_stream_tables WHERE pgt_name <> 'fragile' AND last_error IS NOT NULL"
    )


@pytest.mark.slow
def test_what_writes_to_sources_of_others_is_alone(one_hand: runnel.Client, db: psycopg.Connection) -> None:
    """The trigger's rows are changes of the next moment, not of this one."""
    for name, query in QUERIES.items():
        one_hand.create_stream_table(name, query, "100ms")
    db.execute(
        "CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO public.t VALUES (-1, new.x % 10, -1); RETURN NULL; END $$"
    )
    db.execute("CREATE TRIGGER again AFTER INSERT ON plain FOR EACH ROW WHEN (new.x > 0) EXECUTE FUNCTION again()")
    write_until(db, lambda: company(db) == QUERIES.keys() - {"plain"})
    assert not rows(db, FAILED)
    for name in QUERIES:
        assert one_hand.verify(name).ok
    assert value(db, "SELECT count(*) FROM t WHERE id = -1") == value(db, "SELECT count(*) FROM t WHERE x > 0")


@pytest.mark.slow
def test_two_owners_never_share(one_hand: runnel.Client, dsn: str, db: psycopg.Connection) -> None:
    db.execute("DO $$ BEGIN CREATE ROLE crowd_other LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    db.execute("GRANT pgtrickle_user TO crowd_other")
    db.execute("GRANT SELECT ON t, d TO crowd_other")
    db.execute("GRANT CREATE ON SCHEMA public TO crowd_other")
    theirs = {"counted", "summed"}
    with runnel.connect(make_conninfo(dsn, user="crowd_other")) as other:
        for name, query in QUERIES.items():
            (other if name in theirs else one_hand).create_stream_table(name, query, "100ms")
    write_until(db, lambda: company(db) == QUERIES.keys())
    for (names,) in rows(db, TOGETHER):
        assert set(names) <= theirs or theirs.isdisjoint(names)
    for name in QUERIES:
        assert one_hand.verify(name).ok


@pytest.mark.slow
def test_a_warning_that_it_cannot_keep_up_ends_with_its_cause(
    one_hand: runnel.Client, dsn: str, db: psycopg.Connection
) -> None:
    db.execute("CREATE TABLE u (x int)")
    db.execute("CREATE TABLE s (k int)")
    for source in ("s", "t"):
        one_hand.create_stream_table(f"held_{source}", f"SELECT d.name FROM {source} JOIN d USING (k)", "100ms")
    one_hand.create_stream_table("other", "SELECT x FROM u", "100ms")
    pace = "SELECT severity FROM pgtrickle.health_check() WHERE check_name = 'keeping_up'"
    with psycopg.connect(dsn) as holder:
        # The worker waits for this lock, and so does the one that is hired because that takes long.
        holder.execute("LOCK TABLE d IN ACCESS EXCLUSIVE MODE")
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        db.execute("INSERT INTO t VALUES (1, 1, 1)")
        eventually(lambda: value(db, waiting) == 1)
        db.execute("INSERT INTO s VALUES (1)")
        eventually(lambda: value(db, waiting) == 2)
        db.execute("INSERT INTO u VALUES (1)")
        eventually(lambda: value(db, pace) == "WARN")
        told = CliRunner().invoke(app, ["status", "--dsn", dsn])
        assert "schedules stretch" in told.output, told.output
    eventually(lambda: rows(db, "SELECT x FROM other") != [])
    eventually(lambda: value(db, pace) == "OK", seconds=2)
