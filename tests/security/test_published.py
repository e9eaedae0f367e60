"""Publishing reads an owner's rows with the owner's rights, too: in the refresh, and in Spark's tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from tests.conftest import running_engine
from tests.lake.duck import Duck
from tests.sampling import sampled
from tests.security import trap

TYPES = (
    "CREATE TYPE g.pair AS (a int, d g.dom); "
    "CREATE FUNCTION g.show(g.pair) RETURNS text LANGUAGE plpgsql IMMUTABLE AS "
    "$$ BEGIN PERFORM g.spring(); RETURN 'pair ' || ($1).a; END $$; "
    "CREATE CAST (g.pair AS text) WITH FUNCTION g.show(g.pair) AS ASSIGNMENT"
)


@pytest.fixture
def published(dsn: str, db: psycopg.Connection, spark: object, tmp_path: Path) -> Iterator[psycopg.Connection]:
    """A guest whose stream tables can be published to a lake."""
    trap.lay(db)
    with (
        running_engine(dsn, spark, home=tmp_path / "home", data_path=f"{tmp_path}/lake/"),  # type: ignore[arg-type]
        psycopg.connect(make_conninfo(dsn, user=trap.ROLE), autocommit=True) as guest,
    ):
        trap.enter(guest)
        yield guest
    db.execute("ALTER ROLE sec_guest NOSUPERUSER")


@pytest.mark.parametrize("mode", sampled(["merge", "append", "replace"], every=3))
def test_rows_of_an_ordinary_role_are_published_with_its_rights(
    mode: str, published: psycopg.Connection, db: psycopg.Connection, dsn: str
) -> None:
    published.execute(TYPES)
    published.execute(
        "SELECT pgtrickle.create_stream_table('g.st', 'SELECT id, g.same(x) AS x, x::g.dom AS d, "
        "ROW(x, 1)::g.pair AS p FROM g.t', '@yearly', sink => 'ducklake', ducklake_sink_mode => %s)",
        (mode,),
    )
    with runnel.connect(dsn) as client:
        for _ in range(2):
            published.execute(
                "UPDATE g.t SET x = x + 1 WHERE id < 5; DELETE FROM g.t WHERE id = (SELECT max(id) FROM g.t)"
            )
            client.refresh("g.st")
        assert client.verify("g.st").ok
    seen = trap.counts(db)
    assert seen.visits > 0
    assert trap.harmless(seen), seen
    row = db.execute(
        "SELECT row_count, last_error FROM pgtrickle.pgt_sinks JOIN pgtrickle.pgt_stream_tables USING (pgt_id)"
    ).fetchone()
    assert row is not None and row[0] > 0 and row[1] is None


@pytest.mark.slow
def test_tasks_publish_a_large_table_with_its_owners_rights(
    published: psycopg.Connection, db: psycopg.Connection, dsn: str
) -> None:
    published.execute(TYPES)
    published.execute("INSERT INTO g.t SELECT i, i % 9 FROM generate_series(1000, 121000) i")
    published.execute(
        "CREATE FUNCTION g.seldom(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN IF $1 % 10000 = 0 THEN PERFORM g.spring(); END IF; RETURN $1; END $$"
    )
    published.execute(
        "SELECT pgtrickle.create_stream_table('g.st', 'SELECT g.seldom(id) AS id, x FROM g.t', '@yearly', "
        "sink => 'ducklake')"
    )
    published.execute("DELETE FROM g.t WHERE id BETWEEN 2000 AND 2010")
    with runnel.connect(dsn) as client:
        client.refresh("g.st")
        assert client.verify("g.st").ok
    seen = trap.counts(db)
    assert seen.visits > 0
    assert trap.harmless(seen), seen
    lake = db.execute("SELECT row_count FROM pgtrickle.pgt_sinks").fetchone()
    here = db.execute("SELECT count(*) FROM g.st").fetchone()
    assert lake == here


def test_tasks_read_a_lake_table_with_the_rights_of_the_stream_tables_owner(
    dsn: str, db: psycopg.Connection, spark: object, tmp_path: Path
) -> None:
    """Where PostgreSQL evaluates an expression over rows of a lake, a task hands it the rows, and commits nothing."""
    trap.lay(db)
    (tmp_path / "lake").mkdir()
    with (
        contextlib.closing(Duck(dsn, f"{tmp_path}/lake/")) as duck,
        running_engine(dsn, spark, tasks_above=1),  # type: ignore[arg-type]
        psycopg.connect(make_conninfo(dsn, user=trap.ROLE), autocommit=True) as guest,
        runnel.connect(dsn) as client,
    ):
        trap.enter(guest)
        duck.run("CREATE TABLE o (id INTEGER, x INTEGER)").run("INSERT INTO o SELECT i, i % 5 FROM range(50) r(i)")
        client.attach_lake("lake", catalog_schema="ducklake")
        db.execute("GRANT USAGE ON SCHEMA lake TO sec_guest; GRANT SELECT ON lake.o TO sec_guest")
        guest.execute(
            "SELECT pgtrickle.create_stream_table('g.st', 'SELECT id, g.same(x) AS x FROM lake.o', '@yearly')"
        )
        duck.run("INSERT INTO o SELECT i, i % 5 FROM range(100, 150) r(i)")
        client.refresh("g.st")
        assert client.verify("g.st").ok
    seen = trap.counts(db)
    db.execute("ALTER ROLE sec_guest NOSUPERUSER")
    assert seen.visits > 0
    assert trap.harmless(seen), seen
