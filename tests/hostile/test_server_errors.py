"""An error of the server is the failure of the stream table that met it, whatever its class; only a session that has
ended is a lost connection."""

from __future__ import annotations

import time

import psycopg
import pytest

import runnel
from tests.e2e.helpers import eventually, value
from tests.hostile.helpers import Watched, backend, row_of

RAISED = (
    "57P01",
    "57P03",
    "08006",
    "08001",
    "53100",
    "53200",
    "54000",
    "55000",
    "55P03",
    "57014",
    "58030",
    "25P02",
    "XX000",
)


def failed(db: psycopg.Connection, name: str, sqlstate_text: str = "") -> None:
    """Recorded in status and history, with a time to try again."""
    row = eventually(lambda: (r := row_of(db, name))["consecutive_errors"] > 0 and r, what=f"{name} never failed")
    assert sqlstate_text in row["whole_error"]
    assert row["retry_at"] is not None
    history = value(
        db,
        "SELECT count(*) FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables t USING (pgt_id) "
        f"WHERE t.pgt_name = '{name}' AND h.status = 'FAILED' AND h.error_message IS NOT NULL",
    )
    assert history > 0


@pytest.fixture
def undisturbed(db: psycopg.Connection, watched: Watched, events: list[str]):
    """Whatever the test does: no reconnect, and the other table stays fresh."""
    pids = {name: backend(db, name) for name in ("runnel engine", "runnel requests", "runnel refresh")}
    yield watched
    watched.follows()
    assert {name: backend(db, name) for name in pids} == pids, "the engine reconnected"
    assert not [e for e in events if "lost" in e or "unexpected" in e or "connected" in e]
    assert value(db, "SELECT status FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'fresh'") == "ACTIVE"


@pytest.mark.slow
def test_whatever_a_function_raises(undisturbed: Watched, db: psycopg.Connection, client: runnel.Client) -> None:
    """Also what the server itself says when it ends a session."""
    db.execute(
        "CREATE FUNCTION picky(x text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN IF x <> '' THEN "
        "RAISE EXCEPTION 'raised %', x USING ERRCODE = x; END IF; RETURN x; END $$"
    )
    for state in RAISED:
        db.execute(f"CREATE TABLE s{state} (x text)".encode())
        db.execute(f"INSERT INTO s{state} VALUES ('')".encode())
        for mode in ("DIFFERENTIAL", "FULL"):
            query = f"SELECT picky(x) AS x FROM s{state}"
            client.create_stream_table(f"t{state}_{mode}", query, "300ms", mode)
        db.execute(f"INSERT INTO s{state} VALUES ('{state}')".encode())
    undisturbed.follows()
    for state in RAISED:
        for mode in ("DIFFERENTIAL", "FULL"):
            failed(db, f"t{state.lower()}_{mode.lower()}", f"raised {state}")


@pytest.mark.slow
def test_suspended_and_resumed_as_any_other(
    undisturbed: Watched, db: psycopg.Connection, client: runnel.Client
) -> None:
    db.execute("CREATE TABLE long (x text)")
    client.create_stream_table("narrow", "SELECT x FROM long", "200ms")
    db.execute("CREATE INDEX ON narrow (x)")
    # It does not compress, so no index page holds it.
    db.execute("INSERT INTO long SELECT string_agg(md5(i::text), '') FROM generate_series(1, 5000) i")
    failed(db, "narrow", "index row")
    eventually(lambda: row_of(db, "narrow")["status"] == "SUSPENDED", 30, what="it was never suspended")
    undisturbed.follows()
    db.execute("DELETE FROM long")
    client.resume("narrow")
    assert client.verify("narrow").ok
    with pytest.raises(runnel.RunnelError, match="index row"):
        db.execute("INSERT INTO long SELECT string_agg(md5(i::text), '') FROM generate_series(1, 5000) i")
        client.refresh("narrow")


def test_a_foreign_server_that_is_away(undisturbed: Watched, db: psycopg.Connection, client: runnel.Client) -> None:
    db.execute("CREATE EXTENSION postgres_fdw")
    db.execute("CREATE SERVER away FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '1')")
    db.execute("CREATE USER MAPPING FOR CURRENT_USER SERVER away OPTIONS (user 'x', password 'x')")
    db.execute("CREATE FOREIGN TABLE there (x int) SERVER away")
    db.execute("CREATE TABLE here (x int)")
    client.create_stream_table(
        "both", "SELECT h.x FROM here h WHERE h.x > 0 AND (SELECT count(*) FROM there) >= 0", "300ms", "FULL",
        initialize=False,
    )  # fmt: skip
    db.execute("INSERT INTO here VALUES (1)")
    failed(db, "both", "could not connect")


def test_statements_that_are_cancelled_or_wait_too_long(
    undisturbed: Watched, db: psycopg.Connection, client: runnel.Client, dsn: str
) -> None:
    db.execute("CREATE TABLE slow (x int)")
    db.execute("INSERT INTO slow VALUES (1)")
    client.create_stream_table("sleepy", "SELECT x FROM slow", "300ms", "FULL")
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE sleepy IN ACCESS EXCLUSIVE MODE")
        db.execute("INSERT INTO slow VALUES (2)")
        waits = "SELECT max(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        pid = eventually(lambda: value(db, waits), what="nobody waits for the lock")
        db.execute("SELECT pg_cancel_backend(%s)", (pid,))
        failed(db, "sleepy", "canceling statement due to user request")
        holder.rollback()
    eventually(lambda: value(db, "SELECT count(*) FROM sleepy") == 2)


def test_the_caller_is_told_and_the_engine_stays(
    undisturbed: Watched, db: psycopg.Connection, client: runnel.Client
) -> None:
    db.execute("CREATE TABLE long (x text)")
    client.create_stream_table("narrow", "SELECT x FROM long", "1d")
    db.execute("CREATE INDEX ON narrow (x)")
    db.execute("INSERT INTO long SELECT string_agg(md5(i::text), '') FROM generate_series(1, 5000) i")
    began = time.monotonic()
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="index row"):
        db.execute("SELECT pgtrickle.refresh_stream_table('narrow')")
    assert time.monotonic() - began < 10
