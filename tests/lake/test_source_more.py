"""Lake sources in other settings: outer joins, the clock, another role, a catalog in another database, explain."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.errors import RunnelError
from runnel.server.embedded import EmbeddedServer
from tests.lake.duck import Duck

Check = Callable[..., None]


@pytest.mark.slow
def test_joins_the_clock_and_another_role(
    duck: Callable[..., Duck], data_path: str, client: runnel.Client, db: psycopg.Connection, check: Check
) -> None:
    lake = duck(data_path).run("CREATE TABLE o (id INTEGER, c INTEGER, at_ TIMESTAMPTZ, tags VARCHAR[], doc JSON)")
    lake.run("CREATE TABLE p (id INTEGER, price DECIMAL(9,3), since DATE, key UUID, raw BLOB, span INTERVAL)")
    lake.run(
        "INSERT INTO o SELECT i, i % 4, now() - INTERVAL (i) HOUR, ['a', 'b' || i], '[' || i || ']' FROM range(60) r(i)"
    )
    lake.run(
        "INSERT INTO p SELECT i, i * 1.5, DATE '2024-01-01' + i::INTEGER, uuid(), 'x'::BLOB, INTERVAL (i) DAY "
        "FROM range(6) r(i)"
    )
    client.attach_lake("lake", catalog_schema="ducklake")
    db.execute("CREATE ROLE ann; GRANT pgtrickle_user TO ann")
    db.execute("CREATE SCHEMA ann AUTHORIZATION ann")
    try:
        with pytest.raises(psycopg.Error, match="permission denied"):
            as_ann(db, "SELECT pgtrickle.create_stream_table('ann.hers', 'SELECT c FROM lake.o')")
        db.execute("GRANT USAGE ON SCHEMA lake TO ann")
        db.execute("GRANT SELECT ON lake.o, lake.p TO ann")
        as_ann(
            db,
            "SELECT pgtrickle.create_stream_table('ann.hers', "
            "'SELECT o.c, count(*) AS n, sum(p.price) AS s FROM lake.o LEFT JOIN lake.p ON p.id = o.c GROUP BY 1')",
        )
        client.create_stream_table("day", "SELECT id, c FROM lake.o WHERE at_ > now() - interval '1 day'")
        client.create_stream_table("outer_", "SELECT p.*, o.id AS o FROM lake.p FULL JOIN lake.o ON o.id = p.id")
        client.create_stream_table("tags", "SELECT t.tag, count(*) AS n, max((o.doc ->> 0)::int) AS m FROM lake.o, "
                                           "jsonb_array_elements_text(o.tags) AS t (tag) GROUP BY 1")  # fmt: skip
        check("ann.hers", "day", "outer_", "tags")
        for change in (
            "DELETE FROM p WHERE id IN (1, 5)",
            "INSERT INTO o SELECT i, i % 4, now(), ['n'], '[7]' FROM range(100, 130) r(i)",
            "UPDATE o SET c = 2, tags = ['a'] WHERE id % 9 = 0",
            "INSERT INTO p VALUES (1, 9.125, NULL, NULL, NULL, NULL), "
            "(40, 0.5, DATE '1999-12-31', uuid(), '\\xFF'::BLOB, INTERVAL 1 MONTH)",
        ):
            lake.run(change)
            check("ann.hers", "day", "outer_", "tags")
        db.execute("REVOKE SELECT ON lake.p FROM ann")
        lake.run("DELETE FROM o WHERE id = 3")
        with pytest.raises(RunnelError, match="permission denied"):
            client.refresh("ann.hers")
        explained = client.explain("outer_")
        assert "lake table lake.p" in explained
        assert "only files that may hold the id are opened" in explained
        assert "ducklake:lake.main.o " in explained
        assert "CREATE INDEX" not in explained
    finally:
        for name in ("ann.hers", "day", "outer_", "tags"):
            client.drop_stream_table(name)
        db.execute("DROP OWNED BY ann CASCADE")
        db.execute("DROP ROLE ann")


def as_ann(db: psycopg.Connection, statement: str) -> None:
    db.execute("SET ROLE ann")
    try:
        db.execute(statement.encode())
    finally:
        db.execute("RESET ROLE")


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with which the engine can seal a connection string; must be there before it starts."""
    monkeypatch.setenv("RUNNEL_ENCRYPTION_KEY", "a key that nobody else has got")


def test_a_catalog_in_another_database(
    key: None, server: EmbeddedServer, data_path: str, client: runnel.Client, db: psycopg.Connection, check: Check
) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE elsewhere")
    there = make_conninfo(server.dsn, dbname="elsewhere")
    try:
        with Duck(there, data_path, schema="cat") as lake:
            lake.run("CREATE TABLE t (id INTEGER, v VARCHAR)")
            lake.run("INSERT INTO t SELECT i, 'v' || i % 3 FROM range(50) r(i)")
            client.attach_lake("far", catalog_schema="cat", dsn=there)
            db.execute("CREATE TABLE here (v text PRIMARY KEY, w integer)")
            db.execute("INSERT INTO here VALUES ('v0', 10), ('v1', 11)")
            query = "SELECT h.w, count(*) AS n FROM far.t JOIN here h USING (v) GROUP BY 1"
            client.create_stream_table("both_", query, schedule="100ms")
            check("both_")
            lake.run("INSERT INTO t SELECT i, 'v1' FROM range(50, 80) r(i)").run("DELETE FROM t WHERE id < 9")
            db.execute("UPDATE here SET w = 12 WHERE v = 'v0'")
            check("both_")
            lake.run("INSERT INTO t VALUES (1000, 'v1')")
            deadline = 200
            while db.execute("SELECT n FROM both_ WHERE w = 11").fetchall() != [(45,)]:
                deadline -= 1
                assert deadline, "a lake elsewhere is looked at every second"
                db.execute("SELECT pg_sleep(0.1)")
            client.drop_stream_table("both_")
            client.detach_lake("far")
    finally:
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute("DROP DATABASE elsewhere WITH (FORCE)")


def test_names_longer_than_postgres_keeps_stay_apart(
    duck: Callable[..., Duck], data_path: str, client: runnel.Client, db: psycopg.Connection, check: Check
) -> None:
    writer = duck(data_path)
    same = "ü" * 40
    for i, end in enumerate(("one", "two")):
        writer.run(f'CREATE TABLE "{same}_{end}" (id INTEGER)').run(f'INSERT INTO "{same}_{end}" VALUES ({i})')
    client.attach_lake("lake", catalog_schema="ducklake")
    for i, end in enumerate(("one", "two")):
        client.create_stream_table(f"s_{end}", f'SELECT id FROM lake.main."{same}_{end}"', schedule="1h")
        check(f"s_{end}")
        assert db.execute(f"SELECT id FROM s_{end}".encode()).fetchall() == [(i,)]
    # And the other way round: a published name is as long as it is in PostgreSQL, and more.
    client.create_stream_table(f'"{same[:31]}"', "SELECT id FROM s_two", schedule="1h", sink="ducklake")
    assert writer.rows(f'SELECT id FROM "{same[:31]}"') == [(1,)]
