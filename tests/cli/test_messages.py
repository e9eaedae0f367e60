"""What goes wrong at the start is told in one line with a hint, and by the exit code."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runnel.catalog import loopback
from runnel.catalog.migrate import migrate
from tests.cli.conftest import Locked, Run
from tests.conftest import running_engine
from tests.guarded import PASSWORD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("command", [("up",), ("init",), ("status",), ("down",)])
@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ({"password": "wrong"}, "refuses the password of role postgres", "PGPASSWORD"),
        ({}, "asks for a password, and none was given", "--password-file"),
        ({"password": PASSWORD, "dbname": "nowhere"}, "There is no database nowhere", "CREATE DATABASE"),
        ({"password": "x", "user": "nobody"}, "refuses the password of role nobody", "PGPASSWORD"),
        ({"port": "1"}, "Nothing answers at 127.0.0.1, port 1", "port"),
        ({"host": "nowhere.invalid"}, "The host of PostgreSQL at nowhere.invalid", "name of the host"),
    ],
)
def test_a_server_that_cannot_be_reached(
    run: Run, locked: Locked, command: tuple[str, ...], words: dict[str, str], message: str, hint: str
) -> None:
    said = run(*command, code=1, RUNNEL_DSN=make_conninfo(locked.dsn, **words)).stderr
    lines = said.splitlines()
    assert message in lines[0], said
    assert any(line.startswith("Hint:") and hint in line for line in lines), said
    assert "report" not in said
    assert "Traceback" not in said
    assert len(lines) <= 3, said
    assert PASSWORD not in said


def test_a_dsn_with_a_mistake_is_not_repeated(run: Run) -> None:
    said = run("up", code=1, RUNNEL_DSN="postgresql://ann:hun@ter2@db/shop").stderr
    assert "takes for its own" in said
    assert "%40" in said
    assert "ter2" not in said


@contextlib.contextmanager
def unused_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_a_master_that_cannot_work_is_told_before_anything_starts(run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for master in ("lokal[*]", "spark://host", "local[x]", "http://host:7077"):
        said = run("up", "--home", str(home), "--master", master, code=1).stderr
        assert f"'{master}' is no Spark master" in said
        assert "spark://host:7077" in said
    with unused_port() as port:
        said = run("up", "--home", str(home), "--master", f"spark://127.0.0.1:{port}", code=1).stderr
    assert "does not answer" in said
    assert "Connection refused" in said
    assert "local[*]" in said
    assert not home.exists()
    said = run("up", "--home", str(home), code=1, JAVA_HOME="/nowhere").stderr
    assert "there is no Java in it" in said


@pytest.mark.slow
def test_the_grant_that_an_engine_without_superuser_needs(locked: Locked, database: str, spark: SparkSession) -> None:
    admin = make_conninfo(database, password=PASSWORD)
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    with psycopg.connect(admin, autocommit=True) as conn:
        for role in ("plain_engine", "plain_user"):
            conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'".encode())
        conn.execute(f"GRANT CREATE ON DATABASE {name} TO plain_engine, plain_user".encode())
        conn.execute("CREATE EXTENSION dblink")
        if not conn.execute("SELECT 1 FROM pg_roles WHERE rolname = 'pgtrickle_user'").fetchone():
            conn.execute("CREATE ROLE pgtrickle_user")  # the engine's role may not
        conn.execute("GRANT pgtrickle_user TO plain_user")
        engine_dsn = make_conninfo(admin, user="plain_engine")
        try:
            migrate(engine_dsn)
            with psycopg.connect(engine_dsn, autocommit=True) as own:
                problem = loopback.find_problem(own, engine_dsn)
                assert problem is not None
                assert "as role plain_engine" in problem.message
                assert "--loopback" in str(problem.hint)
                assert "SELECT pgtrickle.wait(number)" in str(problem.hint)
                way = f"host=127.0.0.1 port={locked.port} user=plain_engine"
                loopback.store(own, engine_dsn, make_conninfo(way, password=PASSWORD))
                assert loopback.find_problem(own, engine_dsn) is None
            user = make_conninfo(admin, user="plain_user")
            with running_engine(engine_dsn, spark), psycopg.connect(user, autocommit=True) as caller:
                caller.execute("CREATE SCHEMA plain_user")
                with pytest.raises(psycopg.errors.InsufficientPrivilege) as raised:
                    caller.execute("SELECT pgtrickle.create_stream_table('one', 'SELECT 1 AS one')")
                hint = str(raised.value.diag.message_hint)
                assert 'GRANT "plain_user" TO "plain_engine"' in hint
                conn.execute(hint.partition("run: ")[2].encode())
                caller.execute("SELECT pgtrickle.create_stream_table('one', 'SELECT 1 AS one')")
                assert caller.execute("SELECT one FROM one").fetchall() == [(1,)]
        finally:
            conn.execute("DROP OWNED BY plain_engine, plain_user CASCADE")
            conn.execute("DROP ROLE plain_engine, plain_user")
