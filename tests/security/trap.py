"""A trap: code of an ordinary role that tries to climb wherever it runs, and counts what it saw.

Counts are sequences, because those outlive the rollback of the transaction that the code runs in. The trap takes every
way out of the owner's rights that is known: settings, cursors that would run at COMMIT, prepared statements under the
names that clients use, and the wrapper's own function.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

ROLE = "sec_guest"

_TRAP = """
CREATE SCHEMA g AUTHORIZATION sec_guest;
SET ROLE sec_guest;
CREATE SEQUENCE g.visits MINVALUE 0 START 0;   -- runs in a session that is not the guest's own
CREATE SEQUENCE g.strange MINVALUE 0 START 0;  -- runs as somebody else
CREATE SEQUENCE g.lent MINVALUE 0 START 0;     -- runs in the name of another session's user
CREATE SEQUENCE g.escapes MINVALUE 0 START 0;  -- runs that became somebody else
SELECT nextval('g.visits'), nextval('g.strange'), nextval('g.lent'), nextval('g.escapes');
CREATE TABLE g.own (pid int);
CREATE FUNCTION g.late() RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    way text;
BEGIN
    -- Called by a cursor or a statement that was left behind: whoever runs it must still be the guest, and stay it.
    IF NOT EXISTS (SELECT FROM g.own WHERE pid = pg_backend_pid()) THEN
        FOREACH way IN ARRAY ARRAY['RESET SESSION AUTHORIZATION', 'RESET ROLE'] LOOP
            BEGIN
                EXECUTE way;
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END;
        END LOOP;
    END IF;
    IF current_user <> 'sec_guest' THEN
        PERFORM nextval('g.escapes');
        EXECUTE 'ALTER ROLE sec_guest SUPERUSER';
    END IF;
    RETURN 1;
END $$;
CREATE FUNCTION g.spring() RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    way text;
BEGIN
    IF EXISTS (SELECT FROM g.own WHERE pid = pg_backend_pid()) THEN
        RETURN 1;
    END IF;
    PERFORM nextval('g.visits');
    IF current_user <> 'sec_guest' THEN
        PERFORM nextval('g.strange');
    END IF;
    IF session_user <> 'sec_guest' THEN
        PERFORM nextval('g.lent');
    END IF;
    IF has_table_privilege('pgtrickle.pgt_settings', 'SELECT') THEN
        PERFORM nextval('g.escapes');
    END IF;
    FOREACH way IN ARRAY ARRAY[
        'SELECT set_config(''role'', ''none'', false)', 'RESET ROLE', 'SET ROLE postgres',
        'SELECT set_config(''session_authorization'', ''postgres'', false)', 'RESET SESSION AUTHORIZATION',
        'SET LOCAL SESSION AUTHORIZATION DEFAULT',
        'ALTER FUNCTION pgtrickle_run.run_' || 'sec_guest'::regrole::oid || '(text, oid) SECURITY INVOKER',
        'ALTER FUNCTION pgtrickle_run.rows_' || 'sec_guest'::regrole::oid || '(text, oid) SECURITY INVOKER']
    LOOP
        BEGIN
            EXECUTE way;
            IF current_user <> 'sec_guest' OR way LIKE 'ALTER%' THEN
                PERFORM nextval('g.escapes');
            END IF;
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
    END LOOP;
    FOREACH way IN ARRAY ARRAY[
        'DECLARE left_open CURSOR WITH HOLD FOR SELECT g.late()', 'DEALLOCATE ALL',
        'PREPARE _pg3_0 AS SELECT g.late()', 'PREPARE _pg3_1 AS SELECT g.late()', 'PREPARE _pg3_2 AS SELECT g.late()',
        'CREATE TEMP TABLE pg_class (oid oid)', 'CREATE TEMP TABLE pgt_stream_tables (pgt_id int)',
        'CREATE FUNCTION pg_temp.now() RETURNS int LANGUAGE sql AS ''SELECT g.late()''',
        'LISTEN sec_channel', 'SELECT pg_advisory_lock(4711)', 'SET search_path = g, pg_temp',
        'SET TimeZone = ''Asia/Tokyo''',
        'SET standard_conforming_strings = off', 'SET statement_timeout = ''1h''', 'SET DateStyle = ''German''']
    LOOP
        BEGIN
            EXECUTE way;
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
    END LOOP;
    RETURN 1;
END $$;
CREATE FUNCTION g.ok(anyelement) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN PERFORM g.spring(); RETURN true; END $$;
CREATE FUNCTION g.same(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM g.spring(); RETURN $1; END $$;
CREATE FUNCTION g.fires() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM g.spring(); RETURN coalesce(NEW, OLD); END $$;
CREATE DOMAIN g.dom AS int CHECK (g.ok(value));
CREATE TABLE g.t (id int PRIMARY KEY, x int);
INSERT INTO g.t SELECT i, i % 5 FROM generate_series(1, 20) i;
RESET ROLE;
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a trap has seen."""

    visits: int
    """How often it ran in a session of the engine's."""
    strange: int
    """How often current_user was another."""
    lent: int
    """How often session_user was another: possible only where the engine is no superuser."""
    escapes: int
    superuser: bool


def lay(db: psycopg.Connection) -> None:
    """Make the guest and its trap in a database, as a superuser."""
    if not db.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone():
        db.execute("CREATE ROLE sec_guest LOGIN")
        db.execute("GRANT pgtrickle_user TO sec_guest")
    db.execute(_TRAP)


def enter(guest: psycopg.Connection) -> None:
    """Note a session as the guest's own: what runs there with its rights is nobody's concern."""
    guest.execute("INSERT INTO g.own VALUES (pg_backend_pid())")


def harmless(seen: Counts, *, lent: bool = False) -> bool:
    """Whether the trap ran as the guest wherever it ran; `lent`: session_user may be the engine's."""
    return (seen.strange, seen.escapes, seen.superuser) == (0, 0, False) and (lent or seen.lent == 0)


def analyse_state(db: psycopg.Connection) -> None:
    """What autovacuum does with the rights of whoever owns the engine's tables."""
    for (table,) in db.execute(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' "
        "AND relnamespace IN ('pgtrickle_state'::regnamespace, 'pgtrickle_changes'::regnamespace)"
    ).fetchall():
        db.execute(f"ANALYZE {table}")


def counts(db: psycopg.Connection) -> Counts:
    """What the trap has seen so far."""
    row = db.execute(
        "SELECT v.last_value, s.last_value, l.last_value, e.last_value, "
        "(SELECT rolsuper FROM pg_roles WHERE rolname = 'sec_guest') "
        "FROM g.visits v, g.strange s, g.lent l, g.escapes e"
    ).fetchone()
    assert row is not None
    return Counts(*row)
