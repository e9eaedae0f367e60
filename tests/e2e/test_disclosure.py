"""Error messages may quote a row: the owner reads them whole, everybody else the name of the condition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from tests.e2e.helpers import eventually, rows, script, value

OWNER, OTHER, MEMBER = "e2e_owner", "e2e_other", "e2e_member"
PAY = "123,000.00"
EVERYWHERE = (
    "SELECT last_error FROM pgtrickle.pgt_stream_tables",
    "SELECT error_message FROM pgtrickle.pgt_refresh_history",
    "SELECT reason FROM pgtrickle.pgt_refresh_history",
    "SELECT message FROM pgtrickle.pgt_error_texts",
    "SELECT last_error FROM pgtrickle.pgt_status()",
    "SELECT error_message FROM pgtrickle.get_refresh_history('{schema}.numbers')",
    "SELECT error_message FROM pgtrickle.refresh_timeline()",
    "SELECT detail FROM pgtrickle.health_check()",
    "SELECT line FROM pgtrickle.explain_stream_table('{schema}.numbers') AS line",
    "SELECT error_message FROM pgtrickle.diagnose_errors('{schema}.numbers')",
    "SELECT last_error_message FROM pgtrickle.st_refresh_stats()",
)
WHOLE = EVERYWHERE[3:]


@pytest.fixture
def people(db: psycopg.Connection, dsn: str, schema: str) -> Iterator[dict[str, psycopg.Connection]]:
    """Sessions of an owner, a member of the owner's role, and somebody else."""
    for role in (OWNER, OTHER, MEMBER):
        if not value(db, f"SELECT count(*) FROM pg_roles WHERE rolname = '{role}'"):
            db.execute(f"CREATE ROLE {role} LOGIN".encode())
        db.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}".encode())
        db.execute(f"GRANT pgtrickle_user TO {role}".encode())
    db.execute(f"GRANT {OWNER} TO {MEMBER}".encode())
    with contextlib.ExitStack() as sessions:
        yield {
            role: sessions.enter_context(psycopg.connect(make_conninfo(dsn, user=role), autocommit=True))
            for role in (OWNER, OTHER, MEMBER)
        }


def fail(db: psycopg.Connection, owner: psycopg.Connection, schema: str) -> None:
    script(owner, "CREATE TABLE people (id int, pay text); INSERT INTO people VALUES (1, '10')")
    owner.execute("SELECT pgtrickle.create_stream_table('numbers', 'SELECT id, pay::int AS pay FROM people', '1s')")
    owner.execute(f"INSERT INTO people VALUES (2, '{PAY}')".encode())
    failed = f"SELECT status = 'SUSPENDED' FROM pgtrickle.pgt_status() WHERE name = '{schema}.numbers'"
    eventually(lambda: value(db, failed), 40)


def test_only_who_acts_as_the_owner_reads_the_row(
    db: psycopg.Connection, people: dict[str, psycopg.Connection], schema: str, dsn: str
) -> None:
    fail(db, people[OWNER], schema)
    for query in EVERYWHERE:
        text = str(rows(people[OTHER], query.format(schema=schema)))
        assert PAY not in text, query
    assert "invalid text representation (22P02)" in str(rows(people[OTHER], EVERYWHERE[4]))
    for role in (OWNER, MEMBER):
        for query in WHOLE:
            assert PAY in str(rows(people[role], query.format(schema=schema))), (role, query)
    assert PAY in str(rows(db, EVERYWHERE[4])), "a superuser reads everything"
    with contextlib.closing(runnel.connect(make_conninfo(dsn, user=OTHER))) as stranger:
        assert PAY not in f"{stranger.status()}{stranger.history('numbers')}{stranger.history()}"
    with contextlib.closing(runnel.connect(make_conninfo(dsn, user=OWNER))) as owner:
        for told in (owner.status(), owner.history("numbers"), owner.history()):
            assert PAY in str(told)


@pytest.mark.slow
def test_row_security_switched_off_in_a_session_hides_no_status(
    db: psycopg.Connection, people: dict[str, psycopg.Connection], schema: str
) -> None:
    fail(db, people[OWNER], schema)
    people[OTHER].execute("SET row_security = off")
    for query in EVERYWHERE[4:]:
        assert PAY not in str(rows(people[OTHER], query.format(schema=schema)))


def test_a_refresh_by_somebody_else_tells_no_row(
    db: psycopg.Connection, people: dict[str, psycopg.Connection], schema: str
) -> None:
    owner, other = people[OWNER], people[OTHER]
    script(owner, "CREATE TABLE people (id int, pay text); INSERT INTO people VALUES (1, '10')")
    owner.execute(
        "SELECT pgtrickle.create_stream_table('numbers', 'SELECT id, pay::int AS pay FROM people', '@yearly')"
    )
    owner.execute(f"GRANT SELECT ON numbers TO {OTHER}".encode())
    other.execute("SELECT pgtrickle.create_stream_table('total', 'SELECT sum(pay) AS s FROM numbers', '@yearly')")
    owner.execute(f"INSERT INTO people VALUES (2, '{PAY}')".encode())
    for call in ("refresh_stream_table('numbers')", "verify_stream_table('numbers')", "refresh_stream_table('total')"):
        with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="invalid text representation") as told:
            other.execute(f"SELECT pgtrickle.{call}".encode())
        assert PAY not in str(told.value), call
    with pytest.raises(psycopg.errors.InvalidTextRepresentation, match=PAY):
        owner.execute("SELECT pgtrickle.refresh_stream_table('numbers')")


def test_messages_that_quote_no_row_stay_readable(
    db: psycopg.Connection, people: dict[str, psycopg.Connection], schema: str
) -> None:
    owner = people[OWNER]
    script(owner, "CREATE TABLE t (id int); CREATE TABLE u (id int)")
    owner.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT id FROM t', '@yearly')")
    owner.execute("ALTER TABLE t RENAME COLUMN id TO other")
    (found,) = rows(people[OTHER], f"SELECT last_error FROM pgtrickle.pgt_status() WHERE name = '{schema}.s'")
    assert 'column "id" was renamed to "other"' in found[0]


def test_a_delta_that_failed_is_told_without_the_row(
    db: psycopg.Connection, people: dict[str, psycopg.Connection], schema: str
) -> None:
    """The whole query knows better than a delta that stumbled over a row which is gone again."""
    owner = people[OWNER]
    script(owner, "CREATE TABLE people (id int, pay text); INSERT INTO people VALUES (1, '10')")
    owner.execute(
        "SELECT pgtrickle.create_stream_table('numbers', 'SELECT id, pay::int AS pay FROM people', '@yearly')"
    )
    script(owner, f"INSERT INTO people VALUES (2, '{PAY}'); UPDATE people SET pay = '5' WHERE id = 2")
    owner.execute("SELECT pgtrickle.refresh_stream_table('numbers')")
    assert sorted(rows(owner, "SELECT * FROM numbers")) == [(1, 10), (2, 5)]
    reasons = str(rows(people[OTHER], "SELECT reason FROM pgtrickle.pgt_refresh_history"))
    assert PAY not in reasons
