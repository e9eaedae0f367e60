"""Clients behind PgBouncer in transaction mode, as Debian packages it: every transaction may have another session."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import runnel
from runnel.server.account import account_of
from tests.cli.conftest import Run
from tests.conftest import running_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from runnel.server.embedded import EmbeddedServer

SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 3
logfile = {log}
pidfile =
"""
ROLE = "pooled_role"
# Sessions as they were when they began: nobody has left a setting, a prepared statement or a LISTEN behind.
UNTOUCHED = """
SELECT current_setting('default_transaction_read_only'), current_setting('client_connection_check_interval'),
       (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels())
"""


@pytest.fixture
def pooler(server: EmbeddedServer) -> Iterator[int]:
    """The port of a PgBouncer before the run's server."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="runnel-pooler-") as directory:
        folder, account = Path(directory), account_of(server.home.data)
        users, log, settings = folder / "users.txt", folder / "log", folder / "pgbouncer.ini"
        users.write_text(f'"postgres" ""\n"{ROLE}" ""\n')
        settings.write_text(SETTINGS.format(server=server.port, port=port, users=users, log=log))
        if account.switch:
            # PgBouncer does not run as root.
            for path in (folder, users, settings):
                os.chown(path, account.uid, account.gid)
        with subprocess.Popen(
            [program, str(settings)], cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            user=account.uid if account.switch else None, group=account.gid if account.switch else None,
            extra_groups=[] if account.switch else None,
        ) as process:  # fmt: skip
            try:
                _await(process, port, log)
                yield port
            finally:
                process.terminate()
                process.wait(30)


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + 30
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None and time.monotonic() < end, log.read_text() if log.exists() else "it says nothing"
        time.sleep(0.05)


@pytest.fixture
def pooled(dsn: str, server: EmbeddedServer, pooler: int) -> Iterator[str]:
    """The test's database through the pooler, for a role whose transactions are read-only unless they say otherwise."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {ROLE} LOGIN".encode())
        admin.execute(f"ALTER ROLE {ROLE} SET default_transaction_read_only = on".encode())
        admin.execute(f"GRANT pgtrickle_user TO {ROLE}".encode())
        admin.execute(f"CREATE SCHEMA own AUTHORIZATION {ROLE}".encode())
        admin.execute(f"SET ROLE {ROLE}; SET default_transaction_read_only = off".encode())
        admin.execute("CREATE TABLE own.t AS SELECT i AS id, i % 3 AS k FROM generate_series(1, 30) i")
    yield make_conninfo(dsn, port=str(pooler), user=ROLE)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"DROP OWNED BY {ROLE} CASCADE; DROP ROLE {ROLE}".encode())


@pytest.mark.parametrize("loopback", [True, False], ids=["loopback", "no loopback"])
def test_clients_work_behind_a_pooler(dsn: str, pooled: str, spark: SparkSession, run: Run, loopback: bool) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        if not loopback:
            admin.execute("DROP EXTENSION dblink")
        with running_engine(dsn, spark), closing(runnel.connect(pooled)) as client:
            # Somebody else takes sessions, too, so that calls get another one each time.
            with closing(runnel.connect(pooled)) as other:
                client.create_stream_table("own.st", "SELECT k, count(*) AS n FROM own.t GROUP BY k", "@yearly")
                for i in range(8):
                    admin.execute("INSERT INTO own.t VALUES (%s, 1)", (100 + i,))
                    (client if i % 2 else other).refresh("own.st")
                    assert other.query("SELECT n FROM own.st WHERE k = 1") == [{"n": 11 + i}]
                assert client.verify("own.st").ok
                assert client.table("own.st").arrow().num_rows == 3
                with pytest.raises(runnel.RunnelError, match="nowhere"):
                    client.refresh("own.nowhere")
            list(client.subscribe("own.st", seconds=0))
            admin.execute("INSERT INTO own.t VALUES (1000, 2)")
            run("refresh", "own.st", "--dsn", pooled)
            assert "own.st" in run("status", "--dsn", pooled).stdout
            deltas = client.subscribe("own.st", 0, seconds=1)
            assert any(row == {"k": 2, "n": 11} for delta in deltas for row in delta.inserted)
            with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as plain:
                assert plain.execute(UNTOUCHED).fetchone() == ("on", "0", 0, 0)


def test_the_engine_asks_for_the_server_itself(pooled: str, run: Run) -> None:
    said = run("init", "--dsn", pooled, code=1).stderr
    assert "A connection pooler stands before PostgreSQL" in said
    assert str(conninfo_to_dict(pooled)["port"]) in said
    assert "Traceback" not in said
