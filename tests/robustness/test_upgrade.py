"""pg_upgrade from 16 to 18 with stream tables in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import runnel
from runnel.catalog import origin
from runnel.server.account import BINARIES, Account, account_of, own_directory, run_program
from runnel.server.embedded import SUPERUSER, EmbeddedServer
from tests.conftest import running_engine
from tests.versions import NEWEST, VERSION, tool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = """
CREATE TABLE orders (id int PRIMARY KEY, item int, paid numeric, who text);
CREATE TABLE items (id int PRIMARY KEY, name text);
CREATE FUNCTION twice(n numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS 'SELECT 2 * n';
CREATE VIEW paid_orders AS SELECT * FROM orders WHERE paid > 3;
INSERT INTO items SELECT i, 'item ' || i FROM generate_series(0, 9) i;
INSERT INTO orders SELECT i, i % 10, i, 'w' || i % 4 FROM generate_series(1, 100) i;
"""
TABLES = {
    "sums": "SELECT i.name, count(*) AS n, sum(o.paid) AS paid, count(DISTINCT o.who) AS whos "
    "FROM orders o JOIN items i ON i.id = o.item GROUP BY i.name",
    "chain": "SELECT n, count(*) AS c FROM sums GROUP BY n",
    "twiced": "SELECT item, sum(twice(paid)) AS paid FROM paid_orders GROUP BY item",
}
# Text that is sorted by its bytes, as the embedded servers of both versions can have it.
LOCALE = ("--encoding=UTF8", "--locale=C.UTF-8", "--lc-collate=C")


@pytest.mark.slow
@pytest.mark.skipif(VERSION != NEWEST, reason="it brings its own versions")
@pytest.mark.skipif(shutil.which("npm") is None, reason="PostgreSQL 16 is fetched with npm")
def test_pg_upgrade_keeps_what_it_can(home: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream tables go on by deltas; one whose function and view got other numbers is rebuilt, and says so."""
    home.chmod(0o755)
    before, after = EmbeddedServer(home / "before"), EmbeddedServer(home / "after")
    old = _old_programs()
    monkeypatch.setenv(BINARIES, old)
    before.start()
    try:
        _fill(before.dsn, spark)
        account = account_of(before.home.data)
    finally:
        before.stop()
    monkeypatch.delenv(BINARIES)
    _upgrade(old, before, after, account)
    after.start()
    try:
        with (
            running_engine(after.dsn, spark),
            psycopg.connect(after.dsn, autocommit=True) as db,
            closing(runnel.connect(after.dsn)) as client,
        ):
            assert db.info.server_version // 10000 == NEWEST
            assert not origin.is_loaded(db)
            for name in TABLES:
                client.refresh(name)
                assert client.verify(name).ok, name
            db.execute("INSERT INTO orders VALUES (1000, 3, 5, 'x'); DELETE FROM orders WHERE id = 51")
            for name in TABLES:
                client.refresh(name)
                assert client.verify(name).ok, name
            rebuilt = [r for name in TABLES for r in client.history(name) if r.action == "REINITIALIZE"]
            (why,) = [r.reason for r in rebuilt]
            assert why is not None and "function public.twice(numeric)" in why and "view public.paid_orders" in why
            read = [r.changes_read for r in client.history("sums") if r.action == "DIFFERENTIAL"]
            assert 39 in read, "what was captured before was read after"
    finally:
        after.stop("immediate")


def _old_programs() -> str:
    script = Path(__file__).parents[2] / "scripts" / "ensure-upgrade"
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run([str(script)], stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return done.stdout.strip()


def _fill(dsn: str, spark: SparkSession) -> None:
    with psycopg.connect(dsn, autocommit=True) as db:
        assert db.info.server_version // 10000 == 16
        with running_engine(dsn, spark), closing(runnel.connect(dsn)) as client:
            db.execute(SHOP.encode())
            for name, query in TABLES.items():
                client.create_stream_table(name, query, "@yearly")
        db.execute("UPDATE orders SET paid = paid + 1 WHERE id < 20; DELETE FROM orders WHERE id = 50")


def _upgrade(old: str, before: EmbeddedServer, after: EmbeddedServer, account: Account) -> None:
    after.home.path.mkdir(mode=0o755)
    own_directory(after.home.data, account, 0o700)
    # Before 18 there were no checksums unless somebody asked for them.
    initdb = ["-D", str(after.home.data), "-U", SUPERUSER, "--auth=trust", "--no-data-checksums", *LOCALE]
    run_program("initdb", initdb, account, 300)
    work = after.home.path / "work"
    own_directory(work, account, 0o700)
    done = subprocess.run(
        [
            tool("pg_upgrade"), "-b", old, "-B", str(Path(tool("postgres")).parent), "-U", SUPERUSER,
            "-d", str(before.home.data), "-D", str(after.home.data), "-s", str(work),
        ],
        cwd=work, user=account.uid if account.switch else None, group=account.gid if account.switch else None,
        extra_groups=[] if account.switch else None, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
