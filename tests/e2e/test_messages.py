"""Mistakes are answered with what was wrong and the way out, not with what they led to."""

from __future__ import annotations

import psycopg
import pytest

import runnel
from runnel.errors import RunnelError
from tests.e2e.helpers import Check, Stream, rows, script


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        ("create_stream_table(NULL, 'SELECT 1 AS one')", "name"),
        ("create_stream_table('s', NULL)", "query"),
        ("create_or_replace_stream_table(NULL, 'SELECT 1 AS one')", "name"),
        ("create_or_replace_stream_table('s', NULL)", "query"),
        ("create_stream_table_if_not_exists(NULL, 'SELECT 1 AS one')", "name"),
        ("alter_stream_table(NULL, schedule => '1s')", "name"),
        ("drop_stream_table(NULL)", "name"),
        ("refresh_stream_table(NULL)", "name"),
        ("resume_stream_table(NULL)", "name"),
        ("verify_stream_table(NULL)", "name"),
        ("explain_stream_table(NULL)", "name"),
        ("validate_query(NULL)", "query"),
        ("attach_ducklake(NULL)", "name"),
        ("detach_ducklake(NULL)", "name"),
        ("set_lake_option(NULL, 'region', 'x')", "name"),
        ("set_lake_option('lake', NULL, 'x')", "option"),
    ],
)
def test_null_is_named_by_its_argument(db: psycopg.Connection, schema: str, call: str, argument: str) -> None:
    with pytest.raises(psycopg.errors.NullValueNotAllowed, match=f'argument "{argument}" of .* must not be NULL'):
        db.execute(f"SELECT pgtrickle.{call}".encode())


@pytest.mark.parametrize("query", ["", "  \n\t", ";", "-- nothing", "/* nothing */ ;"])
def test_an_empty_query_is_called_empty(db: psycopg.Connection, schema: str, query: str) -> None:
    for function in ("create_stream_table('s', %s)", "validate_query(%s)"):
        with pytest.raises(psycopg.Error, match='argument "query" of .* is empty') as raised:
            db.execute(f"SELECT pgtrickle.{function}".encode(), (query,))
        assert "SELECT" in str(raised.value.diag.message_hint)
    with pytest.raises(psycopg.Error, match='argument "name" of .* is empty'):
        db.execute("SELECT pgtrickle.create_stream_table('', 'SELECT 1 AS one')")


def test_joins_on_names_of_catalog_objects_are_maintained(db: psycopg.Connection, stream: Stream, check: Check) -> None:
    script(
        db,
        "CREATE TABLE a (id int, r regclass, t regtype); CREATE TABLE b (r regclass, t regtype, n int);"
        "INSERT INTO a VALUES (1, 'pg_class', 'int'), (2, 'pg_type', 'text'), (3, NULL, NULL);"
        "INSERT INTO b VALUES ('pg_class', 'int', 10), ('pg_type', 'bool', 20)",
    )
    stream("joined", "SELECT a.id, b.n FROM a JOIN b ON a.r = b.r")
    stream("typed", "SELECT a.id, b.n FROM a JOIN b ON a.t = b.t")
    stream("cast_join", "SELECT a.id, b.n FROM a JOIN b ON a.r = b.r::oid::regclass WHERE a.r::oid > 0")
    assert rows(db, "SELECT * FROM joined ORDER BY 1") == [(1, 10), (2, 20)]
    script(
        db,
        "UPDATE b SET r = 'pg_proc' WHERE n = 20; INSERT INTO b VALUES ('pg_type', 'text', 30);"
        "DELETE FROM a WHERE id = 1",
    )
    check("joined", "typed", "cast_join")
    assert rows(db, "SELECT * FROM joined") == [(2, 30)]


def test_a_client_says_what_is_wrong_with_its_dsn(dsn: str) -> None:
    with pytest.raises(RunnelError, match="DSN cannot be read"):
        runnel.connect("host=x nonsense")
    with pytest.raises(RunnelError, match=r"Nothing answers at 127\.0\.0\.1, port 1\."):
        runnel.connect("host=127.0.0.1 port=1")
