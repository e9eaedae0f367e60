"""One PostgreSQL server for this folder, one migrated database per test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from runnel.catalog.migrate import migrate
from runnel.server.account import binaries

NUMBERS = count(1)


def _run(home: Path, program: str, *arguments: str | Path) -> None:
    """PostgreSQL refuses to run as root: then borrow an unprivileged account."""
    account = ("nobody", "nogroup") if os.geteuid() == 0 else (None, None)
    command = [str(part) for part in (binaries() / program, *arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=home, user=account[0], group=account[1])


@pytest.fixture(scope="session")
def catalog_server() -> Iterator[str]:
    home = Path(tempfile.mkdtemp(prefix="rcat"))
    home.chmod(0o777)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = home / "data"
    _run(home, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N")
    options = f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c fsync=off"
    _run(home, "pg_ctl", "-D", data, "-o", options, "-l", home / "log", "-w", "start")
    try:
        yield f"host=127.0.0.1 port={port} user=postgres"
    finally:
        _run(home, "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def dsn(catalog_server: str) -> Iterator[str]:
    """A fresh, migrated database."""
    name = f"catalog_{next(NUMBERS)}"
    with psycopg.connect(f"{catalog_server} dbname=postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    target = f"{catalog_server} dbname={name}"
    migrate(target, version="9.9.9")
    yield target
    with psycopg.connect(f"{catalog_server} dbname=postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def db(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn
