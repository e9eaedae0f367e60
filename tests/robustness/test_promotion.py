"""Failing over to a standby under writes: the engine follows, and stream tables are what their queries say."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.server.account import account_of, own_directory, run_program
from runnel.server.embedded import SUPERUSER, EmbeddedServer
from tests.conftest import running_engine
from tests.e2e.helpers import eventually
from tests.versions import tool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = """
CREATE TABLE orders (id int PRIMARY KEY, item int, paid numeric);
CREATE TABLE items (id int PRIMARY KEY, name text);
INSERT INTO items SELECT i, 'item ' || i FROM generate_series(0, 9) i;
INSERT INTO orders SELECT i, i % 10, i FROM generate_series(1, 100) i;
"""
QUERY = "SELECT i.name, count(*) AS n, sum(o.paid) AS paid FROM orders o JOIN items i ON i.id = o.item GROUP BY i.name"


class Standby:
    """A hot standby of a server, beside it."""

    def __init__(self, primary: EmbeddedServer, home: Path) -> None:
        self.data = home / "standby"
        self.account = account_of(primary.home.data)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        own_directory(self.data, self.account, 0o700)
        source = make_conninfo(primary.dsn, dbname="")
        arguments = ["-D", str(self.data), "-d", source, "-X", "stream", "-c", "fast"]
        run_program(tool("pg_basebackup"), arguments, self.account, 120)
        # What a newer pg_basebackup would write itself (-R) holds words that older servers do not know.
        (self.data / "standby.signal").touch(0o644)
        upstream = f"-c primary_conninfo='host=127.0.0.1 port={primary.port} user={SUPERUSER}'"
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k '' -c max_connections=200 {upstream}"
        log = str(self.data / "standby.log")
        run_program("pg_ctl", ["start", "-D", str(self.data), "-w", "-l", log, "-o", options], self.account, 120)

    def promote(self) -> None:
        run_program("pg_ctl", ["promote", "-D", str(self.data), "-w"], self.account, 120)

    def stop(self) -> None:
        with contextlib.suppress(runnel.RunnelError):
            run_program("pg_ctl", ["stop", "-D", str(self.data), "-m", "immediate", "-w"], self.account, 120)


@contextlib.contextmanager
def writing(dsn: str) -> Iterator[list[int]]:
    """Orders, one after the other, through whatever server takes them; the numbers of those that were taken."""
    ended, taken = threading.Event(), list[int]()

    def write() -> None:
        number = 1000
        while not ended.is_set():
            with contextlib.suppress(psycopg.Error), psycopg.connect(dsn, autocommit=True, connect_timeout=5) as conn:
                while not ended.wait(0.02):
                    number += 1
                    conn.execute("INSERT INTO orders VALUES (%s, %s, 1)", (number, number % 10))
                    taken.append(number)
            ended.wait(0.1)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        ended.set()
        thread.join(30)


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["trigger", "wal"])
def test_the_engine_follows_a_promoted_standby(
    durable: EmbeddedServer, home: Path, spark: SparkSession, capture: str
) -> None:
    if capture == "wal":
        with psycopg.connect(durable.dsn, autocommit=True) as db:
            db.execute("ALTER SYSTEM SET wal_level = 'logical'")
        durable.stop("fast")
        durable.start()
    standby = Standby(durable, home)
    dsn = make_conninfo(
        durable.dsn,
        host="127.0.0.1,127.0.0.1",
        port=f"{durable.port},{standby.port}",
        target_session_attrs="read-write",
    )
    try:
        with running_engine(dsn, spark):
            with psycopg.connect(dsn, autocommit=True) as db, closing(runnel.connect(dsn)) as client:
                db.execute(SHOP.encode())
                client.create_stream_table("sums", QUERY, schedule="1s", cdc_mode=capture)
                eventually(lambda: _captures(db) == {capture}, seconds=60)
                streams = "SELECT FROM pg_stat_replication WHERE state = 'streaming'"
                eventually(lambda: db.execute(streams).fetchone() is not None, seconds=60)
            with writing(dsn) as taken:
                eventually(lambda: len(taken) > 50, seconds=60)
                durable.stop("immediate")
                standby.promote()
                before = len(taken)
                eventually(lambda: len(taken) > before + 50, seconds=120)
            with psycopg.connect(dsn, autocommit=True) as db, closing(runnel.connect(dsn)) as client:
                assert db.info.port == standby.port
                assert _answers(client), "the engine did not come back"
                assert client.verify("sums").ok
                db.execute("DELETE FROM orders WHERE id % 7 = 0; UPDATE items SET name = 'renamed' WHERE id = 3")
                client.refresh("sums")
                assert client.verify("sums").ok
                eventually(lambda: _captures(db) == {capture}, seconds=60)
                anew = db.execute(
                    "SELECT reason FROM pgtrickle.pgt_refresh_history WHERE action NOT IN ('INITIAL', 'DIFFERENTIAL')"
                ).fetchall()
                if capture == "trigger":
                    assert anew == [], "nothing had to be rebuilt"
                else:
                    # A slot stays behind on the server that made it.
                    assert len(anew) == 1 and "changes were lost: replication slot" in anew[0][0], anew
    finally:
        standby.stop()


def _captures(db: psycopg.Connection) -> set[str]:
    """How changes are captured."""
    return {row[0] for row in db.execute("SELECT capture FROM pgtrickle.pgt_change_tracking").fetchall()}


def _answers(client: runnel.Client, seconds: float = 120) -> bool:
    """Whether an engine answers within that time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(runnel.RunnelError):
            client.refresh("sums")
            return True
        time.sleep(0.5)
    return False
