"""Mistakes are answered with what was wrong and the way out, not with what they led to."""

from __future__ import annotations

import psycopg
import pytest

import runnel
from runnel.errors import RunnelError
from tests.e2e.helpers import Check, Stream, rows, script


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
