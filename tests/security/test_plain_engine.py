"""An engine that is no superuser: its owners' code reads nothing that only the engine may read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

import runnel
from tests.conftest import running_engine
from tests.security import trap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from runnel.server.embedded import EmbeddedServer


@pytest.fixture
def plain(server: EmbeddedServer) -> Iterator[str]:
    """A database that belongs to an ordinary role, which runs the engine in it."""
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("CREATE ROLE sec_engine LOGIN CREATEROLE")
        conn.execute("CREATE DATABASE sec_plain OWNER sec_engine")
    yield make_conninfo(server.dsn, dbname="sec_plain", user="sec_engine")
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("DROP DATABASE sec_plain WITH (FORCE)")
        conn.execute("DROP ROLE sec_engine")


def ask(conn: psycopg.Connection, kind: str, role: str, **args: Any) -> Any:
    """What a SQL function asks of the engine; without a superuser dblink wants a password, and here there is none."""
    row = conn.execute(
        "INSERT INTO pgtrickle.pgt_requests (kind, args, role, caller_pid, settings) "
        "VALUES (%s, %s, %s, pg_backend_pid(), '{}') RETURNING request_id",
        (kind, Jsonb(args), role),
    ).fetchone()
    assert row is not None
    conn.execute("SELECT pg_notify('pgtrickle_request', %s)", (str(row[0]),))
    until = time.monotonic() + 60
    while time.monotonic() < until:
        answer = conn.execute(
            "SELECT status, result, error FROM pgtrickle.pgt_requests WHERE request_id = %s", (row[0],)
        ).fetchone()
        assert answer is not None
        if answer[0] in ("DONE", "FAILED"):
            assert answer[0] == "DONE", answer[2]
            return answer[1]
        time.sleep(0.02)
    raise AssertionError("no answer")


def test_the_owners_code_has_the_owners_rights_only(plain: str, server: EmbeddedServer, spark: SparkSession) -> None:
    admin = make_conninfo(server.dsn, dbname="sec_plain")
    with running_engine(plain, spark), psycopg.connect(admin, autocommit=True) as db:
        trap.lay(db)
        db.execute("GRANT sec_guest TO sec_engine")
        db.execute("CREATE TABLE vault (v int); GRANT SELECT ON vault TO sec_engine")
        with psycopg.connect(make_conninfo(admin, user=trap.ROLE), autocommit=True) as guest:
            trap.enter(guest)
            guest.execute(
                "CREATE FUNCTION g.peek(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN "
                "PERFORM g.spring(); IF has_table_privilege('public.vault', 'SELECT') THEN "
                "PERFORM nextval('g.escapes'); END IF; RETURN $1; END $$; GRANT TRIGGER ON g.t TO sec_engine; "
                "GRANT USAGE ON SCHEMA g TO sec_engine"
            )
            with psycopg.connect(plain, autocommit=True) as engine:
                query = "SELECT a.k, g.peek(count(*)::int) AS n FROM (SELECT x % 2 AS k FROM g.t) a GROUP BY a.k"
                ask(engine, "create", trap.ROLE, name="g.st", query=query, schedule="@yearly")
                guest.execute("INSERT INTO g.t VALUES (100, 1), (101, 2)")
                assert ask(engine, "refresh", trap.ROLE, name="g.st")["changed"]
                assert ask(engine, "verify", trap.ROLE, name="g.st")["ok"]
        seen = trap.counts(db)
        assert seen.visits > 0
        assert trap.harmless(seen, lent=True), seen


def test_the_python_client_needs_no_loopback(plain: str, spark: SparkSession) -> None:
    """Every call is handed over by a commit and then waited for; its answers are what they always are."""
    with running_engine(plain, spark), psycopg.connect(plain, autocommit=True) as db, runnel.connect(plain) as client:
        db.execute("CREATE TABLE t (id int, k int); INSERT INTO t SELECT i, i % 3 FROM generate_series(1, 30) i")
        client.create_stream_table("st", "SELECT k, count(*) AS n FROM t GROUP BY k", schedule="@yearly")
        db.execute("INSERT INTO t VALUES (31, 1)")
        client.refresh("st")
        assert client.verify("st").ok
        assert "count" in client.explain("st")
        assert db.execute("SELECT n FROM st WHERE k = 1").fetchone() == (11,)
        with pytest.raises(runnel.RunnelError, match="nowhere"):
            client.refresh("nowhere")
        client.drop_stream_table("st")
        assert db.execute("SELECT to_regclass('st')").fetchone() == (None,)
