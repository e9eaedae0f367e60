"""Rights: a stream table belongs to the role that made it and can do no more than that role."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from tests.e2e.helpers import rows, script, value

ROLES = ("e2e_ann", "e2e_bob")


@pytest.fixture
def ann(db: psycopg.Connection, dsn: str, schema: str) -> Iterator[psycopg.Connection]:
    """A session of a role that may use the test's schema and nothing else; `e2e_bob` is another such role."""
    for role in ROLES:
        if not value(db, f"SELECT count(*) FROM pg_roles WHERE rolname = '{role}'"):
            db.execute(f"CREATE ROLE {role} LOGIN".encode())
        db.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}".encode())
        db.execute(f"GRANT pgtrickle_user TO {role}".encode())
    with psycopg.connect(make_conninfo(dsn, user="e2e_ann"), autocommit=True) as conn:
        yield conn
    db.execute("ALTER ROLE e2e_ann NOSUPERUSER")


def create(conn: psycopg.Connection, name: str, query: str) -> None:
    conn.execute("SELECT pgtrickle.create_stream_table(%s, %s, '@yearly')", (name, query))


def test_a_plain_role_creates_and_owns_its_stream_table(
    ann: psycopg.Connection, db: psycopg.Connection, schema: str
) -> None:
    script(ann, "CREATE TABLE mine (k int, v int); INSERT INTO mine VALUES (1, 1), (1, 2), (2, 3)")
    create(ann, "sums", "SELECT k, sum(v) AS s, max(v) AS m FROM mine GROUP BY k")
    create(ann, "over", "SELECT max(s) AS m FROM sums")
    create(ann, "ranked", "SELECT k, rank() OVER (ORDER BY s) AS r FROM sums")
    assert value(db, "SELECT relowner::regrole::text FROM pg_class WHERE oid = 'sums'::regclass") == "e2e_ann"
    script(ann, "INSERT INTO mine VALUES (3, 30); DELETE FROM mine WHERE v = 2; UPDATE mine SET k = 4 WHERE k = 2")
    for name in ("sums", "over", "ranked"):
        assert value(ann, f"SELECT pgtrickle.verify_stream_table('{name}') ->> 'ok'") == "true"
    assert rows(ann, "SELECT m FROM over") == [(30,)]
    ann.execute(
        "SELECT pgtrickle.alter_stream_table('sums', query => 'SELECT k, sum(v) AS s, min(v) AS m FROM "
        "mine GROUP BY k')"
    )
    assert "e2e_ann" in str(rows(ann, "SELECT current_user"))
    assert [
        r[0] for r in rows(ann, f"SELECT name FROM pgtrickle.pgt_status() WHERE name LIKE '{schema}.%' ORDER BY 1")
    ] == [
        f"{schema}.over",
        f"{schema}.ranked",
        f"{schema}.sums",
    ]
    ann.execute("SELECT pgtrickle.drop_stream_table('sums', cascade => true)")


def test_tables_and_columns_without_a_grant_stay_closed(ann: psycopg.Connection, db: psycopg.Connection) -> None:
    script(db, "CREATE TABLE secret (id int, open int, hidden text); INSERT INTO secret VALUES (1, 1, 'x')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"permission denied for table .*secret"):
        create(ann, "peek", "SELECT * FROM secret")
    db.execute("GRANT SELECT (id, open) ON secret TO e2e_ann")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"permission denied for table .*secret"):
        create(ann, "peek", "SELECT hidden FROM secret")
    create(ann, "peek", "SELECT id, open FROM secret")
    db.execute("INSERT INTO secret VALUES (2, 2, 'y')")
    ann.execute("SELECT pgtrickle.refresh_stream_table('peek')")
    assert value(ann, "SELECT count(*) FROM peek") == 2
    buffer = value(db, "SELECT 'pgtrickle_changes.changes_' || 'secret'::regclass::oid")
    script(db, "SELECT pgtrickle.create_stream_table('full_copy', 'SELECT hidden FROM secret', '@yearly')")
    db.execute("INSERT INTO secret VALUES (3, 3, 'z')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ann.execute(f"SELECT * FROM {buffer}".encode())
    db.execute("REVOKE SELECT (id, open) ON secret FROM e2e_ann")
    with pytest.raises(psycopg.Error, match="permission denied"):
        ann.execute("SELECT pgtrickle.refresh_stream_table('peek')")


def test_others_stream_tables_cannot_be_changed(ann: psycopg.Connection, db: psycopg.Connection, dsn: str) -> None:
    script(ann, "CREATE TABLE mine (v int); INSERT INTO mine VALUES (1)")
    create(ann, "hers", "SELECT v FROM mine")
    with psycopg.connect(make_conninfo(dsn, user="e2e_bob"), autocommit=True) as bob:
        for call in (
            "alter_stream_table('hers', schedule => '1s')",
            "alter_stream_table('hers', query => 'SELECT 1 AS v')",
            "alter_stream_table('hers', status => 'SUSPENDED')",
            "drop_stream_table('hers')",
            "resume_stream_table('hers')",
            "create_or_replace_stream_table('hers', 'SELECT 1 AS v')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner"):
                bob.execute(f"SELECT pgtrickle.{call}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bob.execute("SELECT * FROM hers")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            create(bob, "his", "SELECT v FROM hers")
    assert rows(db, "SELECT v FROM hers") == [(1,)]
    db.execute("SELECT pgtrickle.drop_stream_table('hers')")


def test_functions_in_a_query_run_with_the_owners_rights(
    ann: psycopg.Connection, db: psycopg.Connection, client: runnel.Client
) -> None:
    script(db, "CREATE TABLE vault (v text); INSERT INTO vault VALUES ('gold')")
    script(ann, "CREATE TABLE mine (v int); INSERT INTO mine VALUES (1)")
    db.execute("CREATE FUNCTION who(int) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT current_user::text'")
    db.execute(
        "CREATE FUNCTION look(int) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN (SELECT v "
        "FROM vault); END $$"
    )
    create(ann, "seen_by", "SELECT v, who(v) AS who FROM mine")
    for query in ("SELECT v, look(v) AS t FROM mine", "SELECT look(1) AS t, row_number() OVER () AS r FROM mine"):
        with pytest.raises(psycopg.Error, match="permission denied for table vault|vault. does not exist"):
            create(ann, "loot", query)
    ann.execute("INSERT INTO mine VALUES (2)")
    client.refresh("seen_by")
    assert rows(db, "SELECT DISTINCT who FROM seen_by") == [("e2e_ann",)], "an administrator lends it no rights"


def test_a_role_may_use_its_own_functions_types_and_triggers(
    ann: psycopg.Connection, check: Callable[..., None]
) -> None:
    script(
        ann,
        "CREATE TABLE mine (v int); INSERT INTO mine VALUES (1), (2); CREATE TABLE heard (v int, who text); "
        "CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2'; "
        "CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0)",
    )
    create(ann, "doubled", "SELECT twice(v)::even AS v, count(*) AS n FROM mine GROUP BY 1")
    ann.execute(
        "CREATE FUNCTION hear() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO heard VALUES (NEW.v, current_user); RETURN NEW; END $$; "
        "CREATE TRIGGER hear AFTER INSERT ON doubled FOR EACH ROW EXECUTE FUNCTION hear(); "
        "INSERT INTO mine VALUES (3)"
    )
    check("doubled")
    assert rows(ann, "SELECT v, who FROM heard") == [(6, "e2e_ann")], "its trigger finds its own tables"


def test_without_create_on_the_schema_there_is_no_stream_table(
    ann: psycopg.Connection, db: psycopg.Connection, schema: str
) -> None:
    script(ann, "CREATE TABLE mine (v int)")
    db.execute("REVOKE CREATE ON SCHEMA pgtrickle_state FROM e2e_ann")
    db.execute(f"REVOKE CREATE ON SCHEMA {schema} FROM e2e_ann".encode())
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for schema"):
        create(ann, "t", "SELECT v FROM mine")
    assert value(db, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'mine'::regclass") == 0
    assert rows(ann, "SELECT has_schema_privilege('pgtrickle_state', 'CREATE')") == [(False,)], (
        "nothing is left granted"
    )


def test_dropping_everything_a_role_owns_does_not_disturb_the_engine(
    ann: psycopg.Connection, db: psycopg.Connection, check: Callable[..., None]
) -> None:
    script(ann, "CREATE TABLE mine (v int); INSERT INTO mine VALUES (1)")
    create(ann, "hers", "SELECT v, count(*) AS n FROM mine GROUP BY v")
    script(db, "CREATE TABLE ours (v int)")
    create(db, "kept", "SELECT count(*) AS n FROM ours")
    db.execute("DROP OWNED BY e2e_ann CASCADE")
    db.execute("INSERT INTO ours VALUES (1)")
    check("kept")
