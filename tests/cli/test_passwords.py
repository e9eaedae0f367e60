"""Passwords: where they come from, and that nobody sees them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runnel.dsn import connection_failure, masked, readable, without_password, without_secrets
from runnel.errors import UserError
from runnel.server.embedded import EmbeddedServer
from tests.cli.conftest import Locked, Run, Stack
from tests.guarded import PASSWORD
from tests.versions import VERSION

CREATE = "SELECT pgtrickle.create_stream_table('one', 'SELECT 1 AS one')"


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ann:secret@db/shop",
        "postgres://ann:secret@db:5432,db2:5433/shop?sslmode=require",
        "postgresql://db/shop?user=ann&password=secret&sslmode=require",
        "postgresql://db/shop?user=ann&pass%77ord=secret",
        "postgresql://ann:se%63ret@db/shop",
        "host=db password=secret user=ann",
        "host=db password = 'secret' user=ann",
        "host=db user=ann password='secret'",
        "host=db user=ann sslpassword=secret sslkey=k",
        "host=db user=ann password=se\\cret",
        "host=db user=ann password='secret secret'",
    ],
)
def test_no_form_of_a_dsn_shows_its_password(dsn: str) -> None:
    for shown in (masked(dsn), without_password(dsn), without_secrets(f"cannot connect to {masked(dsn)}!")):
        for part in ("secret", "se%63ret", "se\\cret"):
            assert part not in shown
        assert "db" in shown
    assert "***" in masked(dsn)
    assert readable(without_password(dsn)).get("user") == readable(dsn).get("user")
    assert "password" not in readable(without_password(dsn))


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ann:hun@ter2@db/shop",
        "postgresql://ann:hun/ter2@db/shop",
        "host=db password=hun ter2",
        "host=db passwort=hunter2",
        "postgresql://ann:hun%ter2@db/shop",
    ],
)
def test_a_dsn_that_cannot_be_read_is_not_repeated(dsn: str) -> None:
    with pytest.raises(UserError) as raised:
        readable(dsn)
    said = f"{raised.value.message} {raised.value.hint} {raised.value.detail}"
    assert "hun" not in said
    assert "ter2" not in said
    assert "%40" in said


def test_an_error_of_libpq_is_told_without_the_password() -> None:
    told = connection_failure(psycopg.OperationalError("could not use s3cret at host x"), "host=x password=s3cret")
    assert "s3cret" not in f"{told.message} {told.detail} {told.hint}"


@pytest.mark.slow
def test_a_password_comes_from_the_environment_or_a_file(run: Run, database: str, tmp_path: Path) -> None:
    run("init", "--dsn", database, PGPASSWORD=PASSWORD)
    secret = tmp_path / "password"
    secret.write_text(PASSWORD + "\n")
    secret.chmod(0o600)
    said = run("version", "--dsn", database, "--password-file", str(secret))
    assert f"PostgreSQL {VERSION}" in said.stdout
    words = readable(database)
    passfile = tmp_path / "pgpass"
    escaped = PASSWORD.replace("\\", "\\\\").replace(":", "\\:")
    passfile.write_text(f"127.0.0.1:{words['port']}:*:postgres:{escaped}\n")
    passfile.chmod(0o600)
    assert f"PostgreSQL {VERSION}" in run("version", "--dsn", database, PGPASSFILE=str(passfile)).stdout
    whole = tmp_path / "dsn"
    whole.write_text(make_conninfo(database, password=PASSWORD))
    whole.chmod(0o644)
    said = run("version", "--dsn-file", str(whole))
    assert f"PostgreSQL {VERSION}" in said.stdout
    assert f"chmod 600 {whole}" in said.stderr
    assert f"PostgreSQL {VERSION}" in run("version", RUNNEL_DSN_FILE=str(whole)).stdout
    assert f"PostgreSQL {VERSION}" in run("version", RUNNEL_DSN=database, RUNNEL_PASSWORD_FILE=str(secret)).stdout
    assert "cannot be read" in run("version", "--dsn-file", str(tmp_path / "none"), code=1).stderr


def test_dsn_prints_no_password_unless_asked(run: Run, database: str) -> None:
    full = make_conninfo(database, password=PASSWORD)
    shown = run("dsn", RUNNEL_DSN=full).stdout.strip()
    assert readable(shown) == readable(database)
    assert readable(run("dsn", "--show-password", RUNNEL_DSN=full).stdout.strip())["password"] == PASSWORD
    said = json.loads(run("config", "--json", RUNNEL_DSN=full).stdout)
    assert said["dsn"]["from"] == "environment RUNNEL_DSN"
    assert PASSWORD not in str(said)
    warned = run("config", "--dsn", full)
    assert "other users can see" in warned.stderr
    assert PASSWORD not in warned.stdout + warned.stderr


def test_psql_gets_the_password_by_its_environment(run: Run, database: str) -> None:
    listing = "\\! tr '\\\\0' ' ' < /proc/$PPID/cmdline"
    full = make_conninfo(database, password=PASSWORD)
    said = run("psql", "--dsn", full, "-At", stdin=f"SELECT 'in ' || current_user;\n{listing}\n")
    assert "in postgres" in said.stdout
    assert "SHOW_CONTEXT" in said.stdout, "the list of processes was not read"
    assert PASSWORD not in said.stdout + said.stderr


@pytest.mark.slow
def test_up_hides_the_password_and_says_how_the_server_reaches_itself(
    up: Callable[..., Stack], run: Run, locked: Locked, database: str
) -> None:
    full = make_conninfo(database, password=PASSWORD)
    stack = up("--dsn", full)
    stack.wait_for("Ready")
    assert "Ready for schedules, but not for SQL functions" in stack.said
    assert "the server cannot connect to itself as role postgres" in stack.said
    assert "--loopback-password" in stack.said
    listed = stack.command_lines()
    assert "java" in listed
    assert "local[1]" in listed
    for leak in (stack.said, listed):
        assert PASSWORD not in leak
    with psycopg.connect(full, autocommit=True) as conn:
        told: list[str] = []
        conn.add_notice_handler(lambda said: told.append(f"{said.message_primary}\n{said.message_detail}"))
        conn.execute(CREATE)
        assert "cannot connect back" in told[0]
        number = re.search(r"\d+", told[0])
        assert number is not None
        conn.execute("SELECT pgtrickle.wait(%s)", (number[0],))
        conn.execute("DROP TABLE one")
        # What the advice says, word for word but for the question.
        wrong = run(
            "init", "--dsn", database, "--loopback", f"host=127.0.0.1 port={locked.port} user=postgres",
            "--loopback-password", code=1, stdin="wrong\n", PGPASSWORD=PASSWORD,
        )  # fmt: skip
        assert "cannot connect to itself" in wrong.stderr
        run(
            "init", "--dsn", database, "--loopback", f"host=127.0.0.1 port={locked.port} user=postgres",
            "--loopback-password", stdin=f"{PASSWORD}\n", PGPASSWORD=PASSWORD,
        )  # fmt: skip
        conn.execute(CREATE)
        assert conn.execute("SELECT one FROM one").fetchall() == [(1,)]
    stack.stop()
    assert PASSWORD not in stack.said
    again = up("--dsn", database, PGPASSWORD=PASSWORD)
    again.wait_for("Ready in")
    assert "Warning" not in again.said


def test_a_loopback_to_another_server_is_refused(run: Run, database: str, server: EmbeddedServer) -> None:
    run("init", "--dsn", database, PGPASSWORD=PASSWORD)
    name = readable(database)["dbname"]
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}".encode())
    said = run(
        "init", "--dsn", database, "--loopback", f"postgresql://postgres@127.0.0.1:{server.port}/{name}", code=1,
        PGPASSWORD=PASSWORD,
    )  # fmt: skip
    assert "the stored loopback connects to another server" in said.stderr
    with psycopg.connect(make_conninfo(database, password=PASSWORD)) as conn:
        assert conn.execute("SELECT count(*) FROM pgtrickle.pgt_settings WHERE key = 'loopback'").fetchone() == (0,)


def test_nobody_but_the_owner_may_try_the_loopback(run: Run, database: str, locked: Locked) -> None:
    run("init", "--dsn", database, PGPASSWORD=PASSWORD)
    with psycopg.connect(make_conninfo(database, password=PASSWORD), autocommit=True) as conn:
        name = f"nobody_{os.getpid()}"
        conn.execute(f"CREATE ROLE {name}".encode())
        try:
            conn.execute(f"SET ROLE {name}".encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute("SELECT pgtrickle._try_loopback()")
        finally:
            conn.execute("RESET ROLE")
            conn.execute(f"DROP ROLE {name}".encode())
