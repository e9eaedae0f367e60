"""Bad input is refused at creation, in PostgreSQL's own words where it has them, and nothing is left behind."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

import runnel
from tests.e2e.helpers import Stream, leftovers, rows, script, value

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, k text, v numeric(10,2), at timestamptz DEFAULT now());
INSERT INTO t SELECT i, 'k' || i % 3, i FROM generate_series(1, 9) i;
CREATE FUNCTION noise(int) RETURNS float8 LANGUAGE sql VOLATILE AS 'SELECT random()';
CREATE TABLE taken (x int);
CREATE TEMP TABLE scratch (x int);
"""

BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "syntax": ({"query": "SELEC id FROM t"}, "42601", 'syntax error at or near "SELEC"'),
    "two statements": ({"query": "SELECT id FROM t; DROP TABLE t"}, "42601", "multiple commands"),
    "not a query": ({"query": "DELETE FROM t"}, "42601", "syntax error"),
    "empty": ({"query": "  "}, "22023", "is empty"),
    "unknown column": ({"query": "SELECT nope FROM t"}, "42703", 'column "nope" does not exist'),
    "unknown table": ({"query": "SELECT 1 AS x FROM nope"}, "42P01", 'relation "nope" does not exist'),
    "unknown function": ({"query": "SELECT nope(id) AS x FROM t"}, "42883", "function nope(integer) does not exist"),
    "type error": ({"query": "SELECT id + k AS x FROM t"}, "42883", "operator does not exist: integer + text"),
    "bad literal": ({"query": "SELECT id FROM t WHERE v = 'abc'"}, "22P02", "invalid input syntax for type numeric"),
    "ungrouped": ({"query": "SELECT k, v, count(*) FROM t GROUP BY k"}, "42803", "must appear in the GROUP BY clause"),
    "same column twice": ({"query": "SELECT k, k FROM t"}, "42701", 'column "k" specified more than once'),
    "parameter": ({"query": "SELECT id FROM t WHERE id = $1"}, "42P02", "there is no parameter $1"),
    "volatile": ({"query": "SELECT id, random() AS r FROM t"}, "0A000", "random"),
    "own volatile": ({"query": "SELECT noise(id) AS r FROM t"}, "0A000", "noise"),
    "clock_timestamp": ({"query": "SELECT id FROM t WHERE at < clock_timestamp()"}, "0A000", "clock_timestamp"),
    "unordered limit": ({"query": "SELECT id FROM t LIMIT 3"}, "0A000", "LIMIT without ORDER BY"),
    "inner unordered limit": (
        {"query": "SELECT count(*) AS n FROM (SELECT id FROM t LIMIT 3) x"},
        "0A000",
        "LIMIT without ORDER BY",
    ),
    "division by zero": ({"query": "SELECT id, 1 / (id - 1) AS x FROM t"}, "22012", "division by zero"),
    "existing table": ({"name": "taken"}, "42P07", "already exists"),
    "bad schema": ({"name": "no_such_schema.x"}, "3F000", 'schema "no_such_schema" does not exist'),
    "bad name": ({"name": "a.b.c"}, "42602", "invalid name"),
    "schedule": ({"schedule": "every now and then"}, "22023", "invalid schedule"),
    "zero schedule": ({"schedule": "0s"}, "22023", "invalid schedule"),
    "cron": ({"schedule": "99 * * * *"}, "22023", "invalid schedule"),
    "mode": ({"refresh_mode": "SOMETIMES"}, "22023", "invalid refresh_mode"),
    "immediate": ({"refresh_mode": "IMMEDIATE"}, "0A000", "IMMEDIATE is not supported"),
    "cdc_mode": ({"cdc_mode": "smoke"}, "22023", "invalid cdc_mode"),
    "no WAL to decode": ({"cdc_mode": "wal"}, "55000", "cannot be captured from the WAL: wal_level is replica"),
    "temporary table": ({"query": "SELECT x FROM pg_temp.scratch"}, "", "scratch"),
}


def test_bad_input_is_refused_and_leaves_nothing(db: psycopg.Connection, client: runnel.Client) -> None:
    script(db, TABLES)
    before = leftovers(db)
    good = {"name": "result", "query": "SELECT id, v FROM t", "schedule": "@yearly", "refresh_mode": "AUTO"}
    for case, (change, state, message) in BAD.items():
        with pytest.raises(runnel.RunnelError) as refused:
            client.create_stream_table(**{**good, **change})
        assert message in refused.value.message, case
        assert state in ("", refused.value.sqlstate), f"{case}: {refused.value.sqlstate}"
    assert leftovers(db) == before
    for n in range(3):
        db.execute("UPDATE t SET v = v + 1 WHERE id = 1")
        assert value(db, "SELECT v FROM t WHERE id = 1") == 2 + n, "writes go on as ever"


PLACES = {
    "SELECT nope FROM t": "nope",
    "SELEC id FROM t": "SELEC",
    "  \n SELECT id,\n  k + nope(id)\nFROM t;": "nope(id)",
    "SELECT id FROM t WHERE v = 'abc'": "'abc'",
    "SELECT id FROM t JOIN missing USING (id)": "missing",
    "SELECT id, 'random()', random() AS r FROM t": "random() AS r",
    "SELECT id FROM (SELECT id FROM t LIMIT 3) x ORDER BY id LIMIT 1": "LIMIT 3",
}


def pointed(detail: str | None) -> str:
    """What stands above the caret."""
    assert detail is not None
    shown, caret = detail.splitlines()[-2:]
    assert shown.startswith("LINE ")
    assert caret.strip() == "^"
    return shown[caret.index("^") :]


def test_errors_point_at_the_place_in_the_query(db: psycopg.Connection, client: runnel.Client) -> None:
    script(db, "CREATE TABLE t (id int, k text, v numeric(10,2))")
    for query, place in PLACES.items():
        with pytest.raises(runnel.RunnelError) as refused:
            client.create_stream_table("result", query, schedule="@yearly")
        assert pointed(refused.value.detail).startswith(place), (query, refused.value.detail)
    with pytest.raises(psycopg.Error) as raised:
        db.execute("SELECT pgtrickle.create_stream_table('result', E'SELECT id\nFROM nope', '@yearly')")
    assert raised.value.diag.message_detail == "At line 2, column 6:\nLINE 2: FROM nope\n             ^"


# Query -> how it is called, and what the caret points at.
UNSUPPORTED = {
    "SELECT id, now() AS seen FROM t": ("the current time as a value", "now() AS seen"),
    "SELECT t.id FROM t, u WHERE t.at + u.id * interval '1 s' < now()": ("columns of several tables", "now()"),
    "SELECT t.id FROM t LEFT JOIN u ON u.id = t.id AND t.at < now()": ("condition of an outer join", "now()"),
    "SELECT id FROM mv": ("the materialized view", "mv"),
    "SELECT relname::text FROM pg_class": ("the system catalog pg_catalog.pg_class", "pg_class"),
    "SELECT id FROM locked": ("row-level security on", "locked"),
    "SELECT id FROM t TABLESAMPLE SYSTEM (100)": ("TABLESAMPLE", "TABLESAMPLE"),
    "SELECT id FROM ONLY t": ("FROM ONLY", "FROM ONLY"),
    "SELECT id, tableoid::int AS o FROM t": ("the system column tableoid", "tableoid"),
    "SELECT id, pg_backend_pid() AS p FROM t": ("pg_backend_pid()", "pg_backend_pid()"),
    "SELECT id, t::text AS whole FROM t": ("a whole row used as a value", None),
    "SELECT t.id FROM t FULL JOIN u ON t.id = u.id AND t.k LIKE u.id::text": (
        "a FULL JOIN on a condition",
        "FULL JOIN",
    ),
    "SELECT t.id FROM t LEFT JOIN u ON EXISTS (SELECT FROM t x WHERE x.id = t.id + u.id)": ("subquery", None),
    "SELECT id FROM t ORDER BY id LIMIT (SELECT count(*) FROM u)": ("a subquery in LIMIT", None),
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SEARCH DEPTH FIRST BY n SET o "
    "SELECT n FROM r": ("SEARCH", "RECURSIVE"),
    "SELECT count(*) AS n FROM t GROUP BY CUBE (id, k, v, at, id + 1, id + 2, id + 3)": ("128 grouping sets", "CUBE"),
}


def test_constructs_without_a_rule_are_named_by_differential_and_run_full_by_auto(
    db: psycopg.Connection, client: runnel.Client
) -> None:
    script(
        db,
        "CREATE TABLE t (id int, k text, v numeric(10,2), at timestamptz DEFAULT '2020-01-01');"
        "INSERT INTO t SELECT i, 'k' || i % 2, i FROM generate_series(1, 6) i;"
        "CREATE TABLE u (id int); INSERT INTO u VALUES (2), (3); CREATE MATERIALIZED VIEW mv AS SELECT id FROM t;"
        "CREATE TABLE locked (id int); ALTER TABLE locked ENABLE ROW LEVEL SECURITY",
    )
    for number, (query, (construct, place)) in enumerate(UNSUPPORTED.items()):
        with pytest.raises(runnel.RunnelError, match="cannot be maintained incrementally") as refused:
            client.create_stream_table(f"d{number}", query, schedule="@yearly", refresh_mode="DIFFERENTIAL")
        assert construct.lower() in refused.value.message.lower(), query
        assert "'FULL'" in str(refused.value.hint)
        if place is None:
            assert "LINE" not in str(refused.value.detail), query
        else:
            assert pointed(refused.value.detail).startswith(place), (query, refused.value.detail)
        client.create_stream_table(f"a{number}", query, schedule="@yearly", refresh_mode="AUTO")
        assert "Why FULL: " in client.explain(f"a{number}")
        assert construct.lower() in client.explain(f"a{number}").lower(), query
    assert rows(db, "SELECT count(*) FROM pgtrickle.pgt_stream_tables WHERE pgt_name LIKE 'd%'") == [(0,)]
    script(db, "INSERT INTO t VALUES (7, 'k1', 70); DELETE FROM u WHERE id = 2; UPDATE t SET v = 99 WHERE id = 1")
    for number, query in enumerate(UNSUPPORTED):
        if "now()" not in query and "pg_" not in query:
            result = client.verify(f"a{number}")
            assert result.ok, (query, result)
            assert client.history(f"a{number}")[0].action == "FULL"


def test_circles_through_alter_are_refused(db: psycopg.Connection, stream: Stream, client: runnel.Client) -> None:
    script(db, "CREATE TABLE t (v int); INSERT INTO t VALUES (1)")
    stream("a", "SELECT v FROM t")
    stream("b", "SELECT v FROM a")
    stream("c", "SELECT v FROM b")
    for query in ("SELECT v FROM c", "SELECT v FROM a", "SELECT x.v FROM t x JOIN b ON b.v = x.v"):
        with pytest.raises(runnel.RunnelError, match="depend on itself") as refused:
            client.alter_stream_table("a", query=query)
        assert refused.value.sqlstate == "42P17"
    db.execute("INSERT INTO t VALUES (2)")
    client.refresh("c")
    assert rows(db, "SELECT v FROM c ORDER BY v") == [(1,), (2,)], "the refused alter broke nothing"


def test_a_caller_with_uncommitted_work_gets_a_hint_not_a_deadlock(db: psycopg.Connection, dsn: str) -> None:
    script(db, "CREATE TABLE t (v int); INSERT INTO t VALUES (1)")
    began = time.monotonic()
    with psycopg.connect(dsn) as conn:
        conn.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(psycopg.Error) as refused:
            conn.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT v FROM t', '@yearly')")
        assert "ncommit" in f"{refused.value.diag.message_primary} {refused.value.diag.message_hint}"
        assert "ommit first" in str(refused.value.diag.message_hint)
        conn.rollback()
        conn.execute("CREATE TABLE mine (v int)")
        with pytest.raises(psycopg.errors.UndefinedTable) as refused:
            conn.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT v FROM mine', '@yearly')")
        assert "ommit first" in str(refused.value.diag.message_hint)
    assert time.monotonic() - began < 10
    db.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT v FROM t', '@yearly')")
    with psycopg.connect(dsn) as conn:
        conn.execute("INSERT INTO t VALUES (3)")
        with pytest.raises(psycopg.errors.ObjectInUse, match="uncommitted changes"):
            conn.execute("SELECT pgtrickle.refresh_stream_table('s')")


@pytest.mark.slow
def test_somebody_elses_open_transaction_delays_creation_but_not_for_ever(
    db: psycopg.Connection, dsn: str, client: runnel.Client
) -> None:
    script(db, "CREATE TABLE t (v int); CREATE TABLE u (v int)")
    before = leftovers(db)
    with psycopg.connect(dsn) as writer:
        writer.execute("INSERT INTO t VALUES (1)")
        began = time.monotonic()
        with pytest.raises(runnel.RunnelError, match="could not be installed") as refused:
            client.create_stream_table("s", "SELECT t.v FROM u JOIN t ON t.v = u.v", schedule="@yearly")
        assert 5 < time.monotonic() - began < 20
        assert "try again" in str(refused.value.hint)
    assert leftovers(db) == before
    client.create_stream_table("s", "SELECT t.v FROM u JOIN t ON t.v = u.v", schedule="@yearly")


def test_without_an_engine_calls_fail_at_once_and_reads_still_work(own_database: str) -> None:
    with psycopg.connect(own_database, autocommit=True) as conn:
        for call in (
            "create_stream_table('x', 'SELECT 1 AS one')",
            "refresh_stream_table('x')",
            "drop_stream_table('x')",
            "validate_query('SELECT 1')",
        ):
            began = time.monotonic()
            with pytest.raises(psycopg.Error, match="no Runnel engine is running") as refused:
                conn.execute(f"SELECT pgtrickle.{call}".encode())
            assert time.monotonic() - began < 5
            assert "runnel up" in str(refused.value.diag.message_hint)
        assert rows(conn, "SELECT * FROM pgtrickle.pgt_status()") == []
        assert rows(conn, "SELECT * FROM pgtrickle.dependency_tree()") == []
        assert rows(conn, "SELECT * FROM pgtrickle.change_buffer_sizes()") == []
        health = dict(rows(conn, "SELECT check_name, severity FROM pgtrickle.health_check()"))
        assert health["scheduler_running"] == "ERROR"
