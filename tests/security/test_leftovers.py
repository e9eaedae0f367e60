"""What an ordinary role's code leaves in the engine's session must not reach the engine's next statement."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

import runnel
from tests.security import trap

TEMPORARY = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname LIKE 'pg_temp_%' AND c.relowner = 'sec_guest'::regrole
UNION ALL SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname LIKE 'pg_temp_%' AND p.proowner = 'sec_guest'::regrole
"""


def test_settings_locks_and_temporary_objects_are_gone_after_a_refresh(
    guest: psycopg.Connection, db: psycopg.Connection, client: runnel.Client
) -> None:
    db.execute("CREATE TABLE ours (at timestamptz, name text); INSERT INTO ours VALUES ('2024-05-06 23:30+00', 'a\\b')")
    client.create_stream_table(
        "after_them", "SELECT date_trunc('day', at)::text AS day, name FROM ours", schedule="@yearly"
    )
    guest.execute("SELECT pgtrickle.create_stream_table('g.st', 'SELECT id, g.same(x) AS x FROM g.t', '@yearly')")
    for number in range(3):
        guest.execute("UPDATE g.t SET x = x + 1")
        client.refresh("g.st")
        db.execute("INSERT INTO ours VALUES ('2024-05-06 23:30+00', %s)", (f"back\\slash {number}",))
        assert client.verify("after_them").ok
    assert {r[0] for r in db.execute("SELECT day FROM after_them")} == {"2024-05-06 00:00:00+00"}
    assert trap.counts(db).visits > 0
    assert trap.harmless(trap.counts(db))
    assert db.execute(TEMPORARY).fetchall() == []
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711"
    assert db.execute(held).fetchone() == (0,)


def test_dropping_the_engines_temporary_tables_fails_that_refresh_and_no_other(
    guest: psycopg.Connection, db: psycopg.Connection, client: runnel.Client
) -> None:
    db.execute("CREATE TABLE ours (v int); INSERT INTO ours VALUES (1)")
    client.create_stream_table("kept", "SELECT sum(v) AS s FROM ours", schedule="@yearly")
    guest.execute("SELECT pgtrickle.create_stream_table('g.st', 'SELECT id, x FROM g.t', '@yearly')")
    guest.execute(
        "CREATE FUNCTION g.discard() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN EXECUTE 'DISCARD TEMP'; RETURN NULL; END $$; "
        "CREATE TRIGGER d AFTER INSERT ON g.st FOR EACH STATEMENT EXECUTE FUNCTION g.discard(); "
        "INSERT INTO g.t VALUES (200, 2)"
    )
    with pytest.raises(runnel.RunnelError):
        client.refresh("g.st")
    db.execute("INSERT INTO ours VALUES (2)")
    assert client.verify("kept").ok
    assert client.verify("kept").ok
    guest.execute("DROP TRIGGER d ON g.st")
    client.refresh("g.st")
    assert client.verify("g.st").ok


def test_a_refresh_that_ends_read_only_is_that_tables_failure(
    guest: psycopg.Connection, db: psycopg.Connection, client: runnel.Client
) -> None:
    db.execute("CREATE TABLE ours (v int); INSERT INTO ours VALUES (1)")
    client.create_stream_table("kept", "SELECT sum(v) AS s FROM ours", schedule="@yearly")
    guest.execute("SELECT pgtrickle.create_stream_table('g.st', 'SELECT id, x FROM g.t', '@yearly')")
    guest.execute(
        "CREATE FUNCTION g.close() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN EXECUTE 'SET TRANSACTION READ ONLY'; RETURN NULL; END $$; "
        "CREATE TRIGGER d AFTER INSERT ON g.st FOR EACH STATEMENT EXECUTE FUNCTION g.close(); "
        "INSERT INTO g.t VALUES (200, 2)"
    )
    with contextlib.suppress(runnel.RunnelError):
        client.refresh("g.st")
    db.execute("INSERT INTO ours VALUES (2)")
    assert client.verify("kept").ok


def test_the_functions_of_owners_are_out_of_their_reach(guest: psycopg.Connection, db: psycopg.Connection) -> None:
    guest.execute("SELECT pgtrickle.create_stream_table('g.st', 'SELECT id, x FROM g.t', '@yearly')")
    row = db.execute("SELECT 'sec_guest'::regrole::oid").fetchone()
    assert row is not None
    found = db.execute(
        "SELECT proname, prosecdef FROM pg_proc WHERE pronamespace = 'pgtrickle_run'::regnamespace "
        "AND proowner = 'sec_guest'::regrole ORDER BY 1"
    ).fetchall()
    assert found == [(f"{kind}_{row[0]}", True) for kind in ("each", "rows", "run")]
    for statement in (
        f"SELECT pgtrickle_run.each_{row[0]}('{{SELECT 1}}', 0)",
        f"ALTER FUNCTION pgtrickle_run.run_{row[0]}(text, oid) SECURITY INVOKER",
        f"DROP FUNCTION pgtrickle_run.run_{row[0]}(text, oid)",
        f"SELECT pgtrickle_run.run_{row[0]}('SELECT 1', 0)",
        "CREATE FUNCTION pgtrickle_run.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="schema pgtrickle_run"):
            guest.execute(statement)


def test_functions_that_are_gone_are_made_again(
    guest: psycopg.Connection, db: psycopg.Connection, client: runnel.Client
) -> None:
    guest.execute("SELECT pgtrickle.create_stream_table('g.st', 'SELECT id, g.same(x) AS x FROM g.t', '@yearly')")
    db.execute(
        "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc "
        "WHERE pronamespace = 'pgtrickle_run'::regnamespace "
        "LOOP EXECUTE format('DROP FUNCTION %s', f); END LOOP; END $$"
    )
    guest.execute("INSERT INTO g.t VALUES (300, 3)")
    client.refresh("g.st")
    assert client.verify("g.st").ok
    assert trap.harmless(trap.counts(db))


def test_deferred_triggers_of_an_owner_do_their_work(
    guest: psycopg.Connection, db: psycopg.Connection, client: runnel.Client
) -> None:
    """What is deferred is done with the refresh: also what such a trigger writes, and what is deferred there."""
    guest.execute(
        "CREATE TABLE g.known (x int PRIMARY KEY); INSERT INTO g.known SELECT generate_series(0, 9); "
        "CREATE TABLE g.audit (id int, x int REFERENCES g.known DEFERRABLE INITIALLY DEFERRED); "
        "CREATE FUNCTION g.notes() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO g.audit VALUES (NEW.id, NEW.x); RETURN NEW; END $$"
    )
    guest.execute("SELECT pgtrickle.create_stream_table('g.st', 'SELECT id, x FROM g.t', '@yearly')")
    guest.execute(
        "CREATE CONSTRAINT TRIGGER f AFTER INSERT ON g.st DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION g.notes()"
    )
    guest.execute("INSERT INTO g.t VALUES (100, 1), (101, 2)")
    client.refresh("g.st")
    assert db.execute("SELECT id, x FROM g.audit ORDER BY id").fetchall() == [(100, 1), (101, 2)]
    guest.execute("INSERT INTO g.t VALUES (102, 77)")
    with pytest.raises(runnel.RunnelError, match="foreign key"):
        client.refresh("g.st")
    guest.execute("INSERT INTO g.known VALUES (77)")
    client.refresh("g.st")
    assert client.verify("g.st").ok
