"""The ways into a guarded server: TLS only, scram, certificates, password and service files, several hosts, sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import runnel
from tests.cli.conftest import Run
from tests.conftest import running_engine
from tests.guarded import PASSWORD, Guarded, guarded_server
from tests.versions import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROLE = "runnel_role"
HBA = """
local   all all                     scram-sha-256
hostssl all bearer 127.0.0.1/32     cert
hostssl all all    127.0.0.1/32     scram-sha-256
"""
SET_UP = f"""
CREATE ROLE {ROLE} LOGIN CREATEROLE PASSWORD '{PASSWORD}'
CREATE ROLE bearer LOGIN IN ROLE {ROLE}
CREATE DATABASE shop OWNER {ROLE}
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """Of the version that the run is about."""
    with guarded_server(SET_UP, HBA) as started:
        yield started


def test_tls_is_used_and_checked(run: Run, guarded: Guarded) -> None:
    run("init", "--dsn", guarded.dsn())
    assert f"PostgreSQL {VERSION}" in run("version", "--dsn", guarded.dsn()).stdout
    refused = run("version", "--dsn", guarded.dsn(sslmode="disable", sslrootcert=""), code=1).stderr
    assert "Traceback" not in refused and PASSWORD not in refused and "pg_hba.conf" in refused
    stranger = run("version", "--dsn", guarded.dsn(sslrootcert=str(guarded.papers / "bearer.crt")), code=1).stderr
    assert "certificate verify failed" in stranger and PASSWORD not in stranger


def test_a_certificate_instead_of_a_password(run: Run, guarded: Guarded) -> None:
    own = {"sslcert": str(guarded.papers / "bearer.crt"), "sslkey": str(guarded.papers / "bearer.key")}
    said = run("version", "--dsn", guarded.dsn(user="bearer", password="", **own))
    assert f"PostgreSQL {VERSION}" in said.stdout
    assert "certificate" in run("version", "--dsn", guarded.dsn(user="bearer", password=""), code=1).stderr


def test_a_service_file_names_it_all(run: Run, guarded: Guarded, tmp_path: Path) -> None:
    words = psycopg.conninfo.conninfo_to_dict(guarded.dsn(password=""))
    file = tmp_path / "services.conf"
    file.write_text("[shop]\n" + "".join(f"{key}={value}\n" for key, value in words.items()))
    said = run("version", "--dsn", "service=shop", PGSERVICEFILE=str(file), PGPASSWORD=PASSWORD)
    assert f"PostgreSQL {VERSION}" in said.stdout


def test_a_password_file_is_read(run: Run, guarded: Guarded, tmp_path: Path) -> None:
    """As libpq reads it: by host, port, database and role, and only if nobody else can read it."""
    secret = PASSWORD.replace(":", "\\:")
    file = tmp_path / ".pgpass"
    file.write_text(f"127.0.0.1:{guarded.server.port}:shop:{ROLE}:{secret}\n")
    file.chmod(0o600)
    assert f"PostgreSQL {VERSION}" in run("version", "--dsn", guarded.dsn(password="")).stdout
    elsewhere = file.rename(tmp_path / "passwords")
    assert "password" in run("version", "--dsn", guarded.dsn(password=""), code=1).stderr
    said = run("version", "--dsn", guarded.dsn(password=""), PGPASSFILE=str(elsewhere))
    assert f"PostgreSQL {VERSION}" in said.stdout


def test_the_second_of_several_hosts_answers(run: Run, guarded: Guarded) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = free.getsockname()[1]
    hosts = guarded.dsn(
        host="127.0.0.1,127.0.0.1", port=f"{nobody},{guarded.server.port}", target_session_attrs="read-write"
    )
    run("init", "--dsn", hosts)
    assert f"PostgreSQL {VERSION}" in run("version", "--dsn", hosts).stdout


def test_a_socket_asks_for_the_password_too(run: Run, guarded: Guarded) -> None:
    place = guarded.dsn(host=str(guarded.server.home.socket_dir), sslmode="", sslrootcert="", password="")
    assert f"PostgreSQL {VERSION}" in run("version", "--dsn", place, PGPASSWORD=PASSWORD).stdout
    assert "password" in run("version", "--dsn", place, code=1).stderr


@pytest.mark.parametrize("tasks", [False, True], ids=["small", "by tasks"])
def test_an_engine_without_superuser_works_over_tls(
    guarded: Guarded, spark: SparkSession, tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No superuser, no event triggers, no loopback, scram over TLS only; tasks connect in the same way."""
    if tasks:
        monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1)
    dsn = guarded.dsn()
    with (
        running_engine(dsn, spark),
        psycopg.connect(dsn, autocommit=True) as db,
        closing(runnel.connect(dsn)) as client,
    ):
        assert db.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (True,)
        db.execute("DROP TABLE IF EXISTS orders; CREATE TABLE orders (id int, item text, paid numeric)")
        db.execute("INSERT INTO orders SELECT i, 'item ' || i % 3, i FROM generate_series(1, 60) i")
        client.create_stream_table("sums", "SELECT item, sum(paid) AS paid FROM orders GROUP BY item", "@yearly")
        db.execute("UPDATE orders SET paid = paid + 1 WHERE id < 10; DELETE FROM orders WHERE id = 20")
        client.refresh("sums")
        assert client.verify("sums").ok
        clear = (
            "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.usename = %s AND NOT s.ssl"
        )
        assert db.execute(clear, (ROLE,)).fetchone() == (0,)
        client.drop_stream_table("sums")
