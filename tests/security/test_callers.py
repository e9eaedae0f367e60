"""Who calls the engine is what PostgreSQL says; who may create stream tables is what an administrator says."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel


def _owner(db: psycopg.Connection, name: str) -> str | None:
    row = db.execute("SELECT relowner::regrole::text FROM pg_class WHERE oid = to_regclass(%s)", (name,)).fetchone()
    return None if row is None else str(row[0])


def test_a_function_in_an_index_does_not_speak_for_the_superuser_who_analyses(
    guest: psycopg.Connection, db: psycopg.Connection
) -> None:
    db.execute("CREATE TABLE secret (v text); INSERT INTO secret VALUES ('gold')")
    guest.execute(
        """CREATE FUNCTION g.speak(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
               IF session_user <> 'sec_guest' THEN PERFORM g.speak_(); END IF; RETURN $1; END $$;
           CREATE FUNCTION g.speak_() RETURNS int LANGUAGE plpgsql VOLATILE AS $$ BEGIN
               BEGIN
                   PERFORM pgtrickle.create_stream_table('public.loot', 'SELECT v FROM public.secret', '@yearly');
               EXCEPTION WHEN OTHERS THEN RAISE NOTICE '%', sqlerrm; END;
               BEGIN
                   INSERT INTO pgtrickle.pgt_calls (caller, kind, args, settings, wrote) VALUES ('postgres', 'create',
                       '{"name": "g.loot", "query": "SELECT v FROM public.secret"}', '{}', false);
                   RAISE NOTICE '%', current_setting('pgtrickle.answer');
               EXCEPTION WHEN OTHERS THEN RAISE NOTICE '%', sqlerrm; END;
               BEGIN
                   PERFORM pgtrickle.create_stream_table('g.mine', 'SELECT id FROM g.t', '@yearly');
               EXCEPTION WHEN OTHERS THEN RAISE NOTICE '%', sqlerrm; END;
               RETURN 1; END $$;
           CREATE INDEX ON g.t (g.speak(id))"""
    )
    told: list[str] = []
    db.add_notice_handler(lambda d: told.append(d.message_primary or ""))
    db.execute("ANALYZE g.t")
    assert len(told) >= 2, "the function was not called"
    assert _owner(db, "public.loot") is None
    assert _owner(db, "g.loot") is None
    assert _owner(db, "g.mine") in (None, "sec_guest")
    assert any("permission denied for table" in each and "secret" in each for each in told), told


def test_the_table_of_calls_says_who_calls_whatever_is_written_into_it(
    guest: psycopg.Connection, db: psycopg.Connection
) -> None:
    guest.execute("SELECT pgtrickle.create_stream_table('g.st', 'SELECT id FROM g.t', '@yearly')")
    db.execute("SELECT pgtrickle.create_stream_table('public.theirs', 'SELECT count(*) AS n FROM g.t', '@yearly')")
    call = (
        "INSERT INTO pgtrickle.pgt_calls (caller, kind, args, settings, wrote) "
        """VALUES ('postgres', 'drop', '{"name": "public.theirs"}', '{}', false)"""
    )
    with guest.transaction():
        guest.execute(call)
        row = guest.execute("SELECT current_setting('pgtrickle.answer')").fetchone()
    assert row is not None and "must be owner" in row[0]
    assert _owner(db, "public.theirs") == "postgres"
    assert db.execute("SELECT count(*) FROM pgtrickle.pgt_calls").fetchone() == (0,)
    for change in (
        "ALTER TABLE pgtrickle.pgt_calls DISABLE TRIGGER ALL",
        "DROP TRIGGER pgt_1_note_caller ON pgtrickle.pgt_calls",
        "SELECT pgtrickle._note_caller()",
        "SELECT pgtrickle._on_call()",
        "SELECT * FROM pgtrickle.pgt_calls",
    ):
        with pytest.raises(psycopg.Error):
            guest.execute(change)


def test_a_cancelled_call_leaves_no_connection_with_the_engines_rights(
    guest: psycopg.Connection, db: psycopg.Connection
) -> None:
    db.execute("GRANT USAGE ON SCHEMA pgtrickle_ext TO sec_guest")
    guest.execute(
        "CREATE FUNCTION g.slow(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN PERFORM pg_sleep(0.2); RETURN $1; END $$"
    )
    guest.execute("SET statement_timeout = '300ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        guest.execute("SELECT pgtrickle.create_stream_table('g.st', 'SELECT g.slow(id) AS id FROM g.t', '@yearly')")
    guest.execute("SET statement_timeout = 0")
    assert guest.execute("SELECT pgtrickle_ext.dblink_get_connections()").fetchone() == (None,)
    with pytest.raises(psycopg.Error):
        guest.execute("SELECT * FROM pgtrickle_ext.dblink('SELECT 1') AS t (a int)")


def test_creating_stream_tables_needs_a_role(
    dsn: str, guest: psycopg.Connection, db: psycopg.Connection, client: runnel.Client
) -> None:
    db.execute("REVOKE pgtrickle_user FROM sec_guest")
    try:
        for function in ("create_stream_table", "create_or_replace_stream_table", "create_stream_table_if_not_exists"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not create stream tables") as raised:
                guest.execute(f"SELECT pgtrickle.{function}('g.st', 'SELECT id FROM g.t', '@yearly')")
            assert 'GRANT pgtrickle_user TO "sec_guest"' in (raised.value.diag.message_hint or "")
        db.execute("INSERT INTO pgtrickle.pgt_settings (key, value) VALUES ('creators', 'everyone')")
        guest.execute("SELECT pgtrickle.create_stream_table('g.st', 'SELECT id FROM g.t', '@yearly')")
        assert client.verify("g.st").ok
    finally:
        db.execute("GRANT pgtrickle_user TO sec_guest")


def test_a_call_in_a_read_only_transaction_is_refused_with_the_way_out(dsn: str, guest: psycopg.Connection) -> None:
    guest.execute("SET default_transaction_read_only = on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="read-only transaction") as raised:
        guest.execute("SELECT pgtrickle.refresh_stream_table('g.nothing')")
    assert "transaction_read_only" in (raised.value.diag.message_hint or "")


def test_a_caller_with_a_fixed_snapshot_gets_its_answer(dsn: str, guest: psycopg.Connection) -> None:
    guest.execute("SELECT pgtrickle.create_stream_table('g.st', 'SELECT id FROM g.t', '@yearly')")
    with psycopg.connect(make_conninfo(dsn, user="sec_guest")) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert conn.execute("SELECT pgtrickle.verify_stream_table('g.st') ->> 'ok'").fetchone() == ("true",)


def test_an_error_says_in_two_lines_where_it_comes_from(guest: psycopg.Connection) -> None:
    with pytest.raises(psycopg.Error) as raised:
        guest.execute("SELECT pgtrickle.create_stream_table('g.st', 'SELECT nothing FROM g.t')")
    assert 'column "nothing" does not exist' in (raised.value.diag.message_primary or "")
    context = raised.value.diag.context or ""
    assert len(context.splitlines()) == 2, context
