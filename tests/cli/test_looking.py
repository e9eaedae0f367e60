"""`runnel init --check` and `--print-sql`: looking at a server before anything is installed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runnel.catalog import migrate as migration
from runnel.catalog.server_check import Finding, Verdict, look
from runnel.model.versions import NEWEST
from tests.cli.conftest import Locked, Run
from tests.guarded import PASSWORD
from tests.versions import VERSION, tool

FACTS = """
SELECT 'function', p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)), p.proacl::text, p.proowner::regrole::text
FROM pg_proc p WHERE p.pronamespace::regnamespace::text ~ '^(pgtrickle|tide)' AND p.prokind = 'f'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
UNION ALL
SELECT 'column', a.attrelid::regclass::text || '.' || a.attname, format_type(a.atttypid, a.atttypmod),
       c.relacl::text, c.relkind::text
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace::regnamespace::text ~ '^(pgtrickle|tide)' AND a.attnum > 0
UNION ALL
SELECT 'trigger', tgrelid::regclass::text || '.' || tgname, pg_get_triggerdef(oid), tgenabled::text, ''
FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'step', version::text, name, '', '' FROM pgtrickle.pgt_migrations
ORDER BY 1, 2, 3
"""


@pytest.fixture
def plain(locked: Locked, database: str) -> Iterator[str]:
    """The same database for a role that may nothing but log in."""
    words = conninfo_to_dict(database)
    with psycopg.connect(locked.full(), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE plain_role LOGIN PASSWORD '{PASSWORD}'".encode())
        admin.execute(f"REVOKE ALL ON DATABASE {words['dbname']} FROM PUBLIC".encode())
        admin.execute(f"GRANT CONNECT ON DATABASE {words['dbname']} TO plain_role".encode())
    yield make_conninfo(database, user="plain_role", password=PASSWORD)
    with psycopg.connect(locked.full(dbname=str(words["dbname"])), autocommit=True) as admin:
        admin.execute("DROP FOREIGN DATA WRAPPER IF EXISTS ducklake; DROP OWNED BY plain_role; DROP ROLE plain_role")
        admin.execute("DROP SCHEMA IF EXISTS shop CASCADE; DROP ROLE IF EXISTS shop_owner")


WAL = "Capture from the WAL"
"""What needs a restart of the server."""


def found(dsn: str) -> dict[str, Finding]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return {finding.what: finding for finding in look(conn)}


def test_a_superuser_has_everything(locked: Locked, database: str) -> None:
    findings = found(locked.full(dbname=str(conninfo_to_dict(database)["dbname"])))
    wal = findings.pop(WAL)
    assert {finding.verdict for finding in findings.values()} == {Verdict.YES}
    assert wal.verdict is Verdict.LESS and "here it is replica" in wal.why
    assert any(name.startswith(f"PostgreSQL {VERSION}") for name in findings)


def test_the_statements_that_are_named_are_enough(locked: Locked, database: str, plain: str) -> None:
    """An administrator runs what was printed, and then all of it works."""
    with psycopg.connect(locked.full(dbname=str(conninfo_to_dict(database)["dbname"])), autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS pgtrickle_user")
        admin.execute("CREATE ROLE shop_owner; CREATE SCHEMA shop AUTHORIZATION shop_owner")
        admin.execute("SET ROLE shop_owner; CREATE TABLE shop.orders (id int); RESET ROLE")
        before = found(plain)
        assert before["Runnel's schemas"].verdict is Verdict.NO
        assert before["Temporary tables"].verdict is Verdict.NO
        assert before["Tables as sources"].statements == ('GRANT "shop_owner" TO "plain_role";',)
        for finding in before.values():
            for statement in finding.statements:
                admin.execute(statement.encode())
        after = found(plain)
        assert after.pop(WAL).verdict is Verdict.LESS
        left = {name for name, finding in after.items() if finding.verdict is not Verdict.YES}
        assert left == {"DDL of sources is followed at once"}
        assert not any(finding.statements for finding in after.values())
        migration.migrate(plain)
        assert found(plain)["Runnel's schemas"].why == "They are installed."


def test_tables_of_a_superuser_are_not_to_be_had_by_its_role(locked: Locked, database: str, plain: str) -> None:
    with psycopg.connect(locked.full(dbname=str(conninfo_to_dict(database)["dbname"])), autocommit=True) as admin:
        admin.execute("CREATE TABLE public.precious (id int)")
    finding = found(plain)["Tables as sources"]
    assert finding.verdict is Verdict.LESS and finding.statements == ()
    assert "superuser" in finding.why


def test_the_command_prints_it_and_its_exit_code_says_it(run: Run, plain: str, database: str) -> None:
    said = run("init", "--check", "--dsn", plain, code=1).stdout
    assert "missing" in said
    assert f'GRANT CREATE ON DATABASE "{conninfo_to_dict(database)["dbname"]}" TO "plain_role";' in said
    assert PASSWORD not in said
    assert "missing" not in run("init", "--check", "--dsn", database, PGPASSWORD=PASSWORD).stdout


def test_the_script_installs_what_init_installs(run: Run, locked: Locked, database: str, tmp_path: Path) -> None:
    name = str(conninfo_to_dict(database)["dbname"])
    script = run("init", "--print-sql", "--dsn", database, PGPASSWORD=PASSWORD).stdout
    with psycopg.connect(locked.full(dbname=name), autocommit=True) as conn:
        assert conn.execute("SELECT to_regnamespace('pgtrickle')").fetchone() == (None,), "it only prints"
        psql(locked.full(dbname=name), script, tmp_path)
        assert migration.migrate(conn) == []
        by_script = conn.execute(FACTS).fetchall()
        conn.execute(f"CREATE DATABASE {name}_too".encode())
        try:
            with psycopg.connect(locked.full(dbname=f"{name}_too"), autocommit=True) as other:
                migration.migrate(other)
                assert other.execute(FACTS).fetchall() == by_script
        finally:
            conn.execute(f"DROP DATABASE {name}_too WITH (FORCE)".encode())
    again = run("init", "--print-sql", "--dsn", database, PGPASSWORD=PASSWORD).stdout
    assert "BEGIN;" not in again, "nothing is left to do"


def test_without_a_server_the_script_is_for_the_newest(run: Run) -> None:
    script = run("init", "--print-sql").stdout
    assert f"for PostgreSQL {NEWEST}." in script
    assert "pgtrickle_compat" not in script


def psql(dsn: str, script: str, directory: Path) -> None:
    """Run a script as an administrator would, with the wheel's psql."""
    file = directory / "install.sql"
    file.write_text(script)
    done = subprocess.run([tool("psql"), "-q", "-f", str(file), dsn], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
