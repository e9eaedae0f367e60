"""An imitation of a managed server, where nobody is superuser: everything works there but event triggers.

The engine's role owns nothing and is nothing special; the administrator is no superuser either; there are no
extensions, no event triggers and no files; and everybody comes by TLS with a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import runnel
from runnel.catalog.server_check import Verdict, look
from tests.cli.conftest import Run
from tests.conftest import running_engine
from tests.e2e.helpers import eventually
from tests.guarded import PASSWORD, Guarded, guarded_server
from tests.lake.duck import Duck

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HBA = """
local   all postgres                trust
hostssl all all        127.0.0.1/32 scram-sha-256
"""
# The superuser is the provider's. Customers get an administrator that may make roles, and owns the database.
SET_UP = f"""
CREATE ROLE cloud_admin LOGIN CREATEROLE CREATEDB PASSWORD '{PASSWORD}'
CREATE DATABASE shop OWNER cloud_admin
CREATE DATABASE bare OWNER cloud_admin
"""
# As the administrator sets up an application, before anybody thought of Runnel.
APPLICATION = f"""
REVOKE ALL ON DATABASE shop, bare FROM PUBLIC;
CREATE ROLE app_owner LOGIN PASSWORD '{PASSWORD}'; CREATE ROLE analyst LOGIN PASSWORD '{PASSWORD}';
CREATE ROLE runnel_role LOGIN PASSWORD '{PASSWORD}';
GRANT CONNECT, CREATE ON DATABASE shop TO app_owner; GRANT CONNECT, TEMPORARY ON DATABASE shop TO analyst;
GRANT CONNECT ON DATABASE shop, bare TO runnel_role;
"""
TABLES = """
CREATE SCHEMA app;
CREATE TABLE app.orders (id int PRIMARY KEY, item int, paid numeric);
CREATE TABLE app.items (id int PRIMARY KEY, name text);
INSERT INTO app.items SELECT i, 'item ' || i FROM generate_series(0, 4) i;
INSERT INTO app.orders SELECT i, i % 5, i FROM generate_series(1, 50) i;
CREATE SCHEMA reports; GRANT USAGE ON SCHEMA app TO analyst; GRANT SELECT ON app.orders, app.items TO analyst;
GRANT USAGE, CREATE ON SCHEMA reports TO analyst;
"""
QUERY = "SELECT i.name, sum(o.paid) AS paid FROM app.orders o JOIN app.items i ON i.id = o.item GROUP BY i.name"
STATEMENT = re.compile(r"^ {12}(.*;)$", re.MULTILINE)


@pytest.fixture(scope="module")
def managed() -> Iterator[Guarded]:
    with guarded_server(SET_UP, HBA, restricted=True) as started:
        with _as(started, "cloud_admin") as admin:
            admin.execute(APPLICATION.encode())
        with _as(started, "app_owner") as owner:
            owner.execute(TABLES.encode())
        with _as(started, "runnel_role") as plain, _as(started, "cloud_admin") as admin:
            _run_what_is_told(plain, admin)
            admin.execute("GRANT pgtrickle_user TO analyst")
            assert _run_what_is_told(plain, admin) == ['GRANT "analyst" TO "runnel_role";']
            assert _run_what_is_told(plain, admin) == []
        yield started


def _run_what_is_told(plain: psycopg.Connection[Any], admin: psycopg.Connection[Any]) -> list[str]:
    statements = [each for finding in look(plain) for each in finding.statements]
    for statement in statements:
        admin.execute(statement.encode())
    return statements


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the default lake of that server has its files, which the server itself cannot reach."""
    return f"{tmp_path_factory.mktemp('lake')}/"


@contextmanager
def _as(managed: Guarded, role: str, database: str = "shop") -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(managed.dsn(user=role, dbname=database), autocommit=True) as conn:
        yield conn


def _waited(conn: psycopg.Connection[Any], call: str, *arguments: Any) -> Any:
    """Call a function in SQL as somebody in psql would: read the number in the notice, then wait for it."""
    told: list[str] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        told.append(notice.message_primary or "")

    conn.add_notice_handler(hear)
    conn.execute(call.encode(), arguments)
    conn.remove_notice_handler(hear)
    (number,) = [found[1] for text in told if (found := re.match(r"request (\d+) goes to the engine", text))]
    row = conn.execute("SELECT pgtrickle.wait(%s)", (int(number),)).fetchone()
    assert row is not None
    return row[0]


def test_what_is_printed_is_enough(run: Run, managed: Guarded) -> None:
    """An administrator who is no superuser runs what `runnel init --check` prints."""
    bare = managed.dsn(dbname="bare")
    refused = run("init", "--dsn", bare, code=1).stderr
    assert "runnel init --check" in refused and "Traceback" not in refused
    said = run("init", "--check", "--dsn", bare, code=1).stdout
    assert len(re.findall("^  missing", said, re.MULTILINE)) == 2 and PASSWORD not in said
    with _as(managed, "cloud_admin", "bare") as admin:
        for statement in STATEMENT.findall(said):
            admin.execute(statement.encode())
    again = run("init", "--check", "--dsn", bare).stdout
    assert "  missing" not in again and STATEMENT.findall(again) == []
    run("init", "--dsn", bare)
    with _as(managed, "runnel_role", "bare") as conn:
        left = {each.what: each.why for each in look(conn) if each.verdict is not Verdict.YES}
        assert set(left) == {
            "SQL functions that wait for the engine",
            "DDL of sources is followed at once",
            "Capture from the WAL",
        }
        assert "does not offer dblink" in left["SQL functions that wait for the engine"]
        special = "SELECT rolsuper OR rolcreaterole OR rolreplication OR rolbypassrls FROM pg_roles WHERE rolname = %s"
        assert conn.execute(special, ("runnel_role",)).fetchone() == (False,)
        assert conn.execute("SELECT count(*) FROM pg_event_trigger").fetchone() == (0,)
        assert conn.execute("SELECT extname FROM pg_extension").fetchall() == [("plpgsql",)]


@pytest.mark.parametrize("tasks", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["small", "by tasks"])
def test_everything_but_event_triggers_works(
    managed: Guarded, files: str, spark: SparkSession, tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tasks:
        monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1)
    with (
        running_engine(managed.dsn(), spark, data_path=files),
        closing(runnel.connect(managed.dsn())) as client,
        _as(managed, "runnel_role") as db,
        _as(managed, "app_owner") as owner,
        Duck(managed.dsn(), schema=_lake_schema(db)) as duck,
    ):
        assert db.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (True,)
        # The lake as a sink.
        db.execute("CREATE SCHEMA IF NOT EXISTS mine")
        client.create_stream_table("mine.sums", QUERY, "@yearly", sink="ducklake")
        owner.execute("UPDATE app.orders SET paid = paid + 1 WHERE id < 10; DELETE FROM app.orders WHERE id = 20")
        client.refresh("mine.sums")
        assert client.verify("mine.sums").ok
        columns = "SELECT name, paid::int FROM"
        assert sorted(duck.rows(f"{columns} mine.sums")) == sorted(
            db.execute(f"{columns} mine.sums".encode()).fetchall()
        )
        # The lake as a source, under a name that is an ordinary table here.
        duck.run("CREATE TABLE events AS SELECT i AS id, i % 5 AS item FROM range(40) r(i)")
        client.create_stream_table(
            "mine.seen", "SELECT o.item, count(*) AS n FROM lake.events e JOIN app.orders o ON o.id = e.id GROUP BY 1",
            "@yearly",
        )  # fmt: skip
        duck.run("DELETE FROM events WHERE id < 5")
        duck.run("ALTER TABLE events ADD COLUMN more VARCHAR")
        duck.run("INSERT INTO events VALUES (41, 1, 'x'), (42, 2, 'y')")
        owner.execute("UPDATE app.orders SET item = 0 WHERE id = 41")
        client.refresh("mine.seen")
        assert client.verify("mine.seen").ok
        assert {r.action for r in client.history("mine.seen", 2)} == {"DIFFERENTIAL"}
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="stands for a table of a lake"):
            db.execute("INSERT INTO lake.events VALUES (1, 1, 'z')")
        # DDL is noticed without event triggers.
        owner.execute("ALTER TABLE app.orders ALTER COLUMN paid TYPE numeric(20, 3)")
        eventually(lambda: client.verify("mine.sums").ok, seconds=60)
        clear = (
            "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.usename = %s AND NOT s.ssl"
        )
        assert db.execute(clear, ("runnel_role",)).fetchone() == (0,)
        for name in ("mine.seen", "mine.sums"):
            client.drop_stream_table(name)
        duck.run("DROP TABLE events")


def _lake_schema(db: psycopg.Connection[Any]) -> str:
    row = db.execute("SELECT catalog_schema FROM pgtrickle.pgt_lakes WHERE is_default").fetchone()
    assert row is not None
    return str(row[0])


def test_sql_functions_of_an_ordinary_role(managed: Guarded, spark: SparkSession, run: Run) -> None:
    """An analyst in psql: each call is handed over by its commit, and its answer is waited for."""
    create = "SELECT pgtrickle.create_stream_table('reports.sums', %s, schedule => '@yearly')"
    with running_engine(managed.dsn(), spark), _as(managed, "analyst") as analyst, _as(managed, "app_owner") as owner:
        _waited(analyst, create, QUERY)
        owner.execute("INSERT INTO app.orders VALUES (1000, 1, 7)")
        _waited(analyst, "SELECT pgtrickle.refresh_stream_table('reports.sums')")
        # Without an eye for notices: the newest request of one's role.
        owner.execute("INSERT INTO app.orders VALUES (1001, 2, 7)")
        analyst.execute("SELECT pgtrickle.refresh_stream_table('reports.sums')")
        assert analyst.execute("SELECT pgtrickle.wait() ->> 'changed'").fetchone() == ("true",)
        with pytest.raises(psycopg.errors.UndefinedObject, match="app_owner has handed no request over"):
            owner.execute("SELECT pgtrickle.wait()")
        right = analyst.execute(f"SELECT * FROM reports.sums EXCEPT ALL ({QUERY})".encode()).fetchall()
        assert right == []
        with pytest.raises(psycopg.Error, match='"reports.sums" already exists') as refused:
            _waited(analyst, create, QUERY)
        assert refused.value.diag.message_hint
        # A request that is rolled back with its transaction was never made.
        with analyst.transaction(force_rollback=True):
            analyst.execute("SELECT pgtrickle.drop_stream_table('reports.sums')")
        assert "reports.sums" in run("status", "--dsn", managed.dsn(user="analyst")).stdout
        run("refresh", "reports.sums", "--dsn", managed.dsn(user="analyst"))
        assert "equals its query" in run("verify", "reports.sums", "--dsn", managed.dsn(user="analyst")).stdout
        # Somebody else's request is nobody's business.
        row = analyst.execute("SELECT pgtrickle.refresh_stream_table('reports.sums')").fetchone()
        assert row is not None
        with psycopg.connect(managed.provider, autocommit=True) as provider:
            newest = provider.execute("SELECT max(request_id) FROM pgtrickle.pgt_requests").fetchone()
        assert newest is not None
        with pytest.raises(psycopg.Error, match="is of another role"):
            owner.execute("SELECT pgtrickle.wait(%s)", newest)
        _waited(analyst, "SELECT pgtrickle.drop_stream_table('reports.sums')")
        assert analyst.execute("SELECT to_regclass('reports.sums')").fetchone() == (None,)
