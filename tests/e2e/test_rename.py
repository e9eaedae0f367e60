"""Stream tables and sources under other names and in other schemas; and stream tables with other columns."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import runnel
from tests.e2e.helpers import Check, Stream, drop_schema, eventually, rows, script, value
from tests.sampling import sampled

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, a int, b text);
CREATE TABLE u (id int PRIMARY KEY, x int);
INSERT INTO t SELECT i, i, 'b' || i FROM generate_series(1, 5) i;
INSERT INTO u SELECT i, i FROM generate_series(1, 5) i;
CREATE VIEW v AS SELECT id, a FROM t WHERE a > 1
"""
QUERIES = {
    "plain": "SELECT id, a FROM t",
    "joined": "SELECT t.id, u.x, (SELECT max(a) FROM t) AS m FROM u LEFT JOIN t ON t.id = u.id",
    "aliased": "SELECT x.id, y.a FROM t x, t AS y WHERE x.id = y.id",
    "over_view": "SELECT sum(a) AS s FROM v",
    "nested": "WITH w AS (SELECT a, count(*) AS n FROM t GROUP BY a) "
    "SELECT w.a, w.n FROM w WHERE a IN (SELECT a FROM t)",
}


def state(db: psycopg.Connection, name: str) -> tuple[str, str]:
    (found,) = rows(
        db,
        "SELECT status, coalesce(last_error, '') FROM pgtrickle.pgt_stream_tables "
        f"WHERE pgt_relid = '{name}'::regclass",
    )
    return found[0], found[1]


@pytest.fixture
def other(db: psycopg.Connection, schema: str) -> Iterator[str]:
    """A second schema."""
    name = f"{schema} elsewhere"
    db.execute(f'CREATE SCHEMA "{name}"'.encode())
    yield name
    drop_schema(db, f'"{name}"')


@pytest.mark.parametrize(
    "ddl",
    sampled(
        [
            'ALTER TABLE t RENAME TO "T two"',
            'ALTER TABLE t SET SCHEMA "OTHER"',
            "ALTER TABLE t RENAME TO t_old; ALTER TABLE u RENAME TO t; ALTER TABLE t_old RENAME TO u",
        ],
        every=3,
    ),
)
def test_a_renamed_source_is_followed(
    ddl: str, other: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES)
    oid = value(db, "SELECT 't'::regclass::oid")
    for name, query in QUERIES.items():
        stream(name, query)
    script(db, ddl.replace("OTHER", other))
    now = value(db, f"SELECT pgtrickle._relation_name({oid})")
    db.execute(f"INSERT INTO {now} VALUES (6, 60, 'six')".encode())
    for name in QUERIES:
        check(name)
        assert state(db, name) == ("ACTIVE", ""), name
    assert sorted(rows(db, "SELECT id FROM plain")) == [(i,) for i in range(1, 7)], "the same table as before"
    db.execute(f"UPDATE {now} SET a = a + 1".encode())
    for name in QUERIES:
        check(name)
        assert client.history(name)[0].action == "DIFFERENTIAL", name


def test_a_renamed_schema_is_followed(
    other: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    db.execute(f'CREATE TABLE "{other}".t (id int, a int)'.encode())
    stream(f'"{other}".first', f'SELECT a, count(*) AS n FROM "{other}".t GROUP BY a')
    stream("second", f'SELECT sum(n) AS n FROM "{other}".first')
    db.execute(f'ALTER SCHEMA "{other}" RENAME TO "{other}2"'.encode())
    try:
        db.execute(f'INSERT INTO "{other}2".t VALUES (1, 1), (2, 1)'.encode())
        check("second", f'"{other}2".first')
        assert value(db, "SELECT n FROM second") == 2
        assert {r[0] for r in rows(db, "SELECT status FROM pgtrickle.pgt_status()")} == {"ACTIVE"}
    finally:
        db.execute(f'ALTER SCHEMA "{other}2" RENAME TO "{other}"'.encode())


def test_a_renamed_stream_table_goes_on(
    other: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES)
    stream("s", "SELECT id % 2 AS k, sum(a) AS a FROM t GROUP BY 1", schedule="1s")
    stream("reader", "SELECT max(a) AS m FROM s")
    db.execute('ALTER TABLE s RENAME TO "New name"')
    db.execute("UPDATE t SET a = 100 WHERE id = 1")
    check('"New name"', "reader")
    with pytest.raises(runnel.RunnelError, match="does not exist"):
        client.refresh("s")
    db.execute(f'ALTER TABLE "New name" SET SCHEMA "{other}"'.encode())
    db.execute("UPDATE t SET a = 1000 WHERE id = 1")
    moved = f'"{other}"."New name"'
    eventually(lambda: value(db, f"SELECT max(a) FROM {moved}") == 1008, what="the schedule goes on")
    check(moved, "reader")
    assert value(db, "SELECT m FROM reader") == 1008
    client.alter_stream_table(moved, query="SELECT id % 2 AS k, sum(a) + 1 AS a FROM t GROUP BY 1")
    check(moved, "reader")
    client.drop_stream_table("reader")
    client.drop_stream_table(moved)
    assert value(db, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass") == 0


def test_readers_follow_other_columns(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES)
    stream("s", "SELECT id, a, b FROM t")
    stream("reads_a", "SELECT sum(a) AS s FROM s")
    stream("reads_b", "SELECT id, b FROM s")
    stream("above", "SELECT s + 1 AS s FROM reads_a")
    client.alter_stream_table("s", query="SELECT a::bigint * 2 AS a, id FROM t")
    for name in ("reads_a", "above"):
        check(name)
        assert state(db, name) == ("ACTIVE", "")
    assert (value(db, "SELECT s FROM reads_a"), value(db, "SELECT s FROM above")) == (30, 31)
    status, error = state(db, "reads_b")
    assert status == "ERROR" and 'column "b"' in error, error
    script(db, "INSERT INTO t VALUES (6, 6, 'six'); DELETE FROM t WHERE id = 1")
    check("s", "reads_a", "above")
    assert client.history("above")[0].action == "DIFFERENTIAL"
    client.alter_stream_table("s", query="SELECT b, a, id FROM t")
    client.resume("reads_b")
    check("s", "reads_a", "reads_b", "above")
    db.execute("UPDATE t SET b = 'other'")
    check("reads_b")
    assert client.history("reads_b")[0].action == "DIFFERENTIAL"
