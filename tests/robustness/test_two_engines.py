"""Two engines on one database: one works, the other says who has it, and can take over later."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

import runnel
from runnel.server.embedded import EmbeddedServer
from tests.robustness.processes import Process, runnel_up
from tests.robustness.workload import STREAM_TABLES, TABLES, Writers


@pytest.mark.slow
def test_the_second_refuses_and_takes_over_later(home: Path, processes: list[Process]) -> None:
    server = EmbeddedServer(home)
    try:
        first = _start(processes, "--home", str(home))
        first.wait_for("^Ready")
        with (
            psycopg.connect(server.dsn, autocommit=True) as conn,
            contextlib.closing(runnel.connect(server.dsn)) as client,
        ):
            conn.execute("CREATE TABLE t (id int PRIMARY KEY, x int)")
            client.create_stream_table("s", "SELECT x, count(*) AS n FROM t GROUP BY x", "1s", "DIFFERENTIAL")
            _refused(processes, "--dsn", server.dsn, because=f"process {first.pid} on {socket.gethostname()}")
            _refused(processes, "--home", str(home), because=f"already up (pid {first.pid})")
            conn.execute("INSERT INTO t SELECT i, i % 3 FROM generate_series(1, 30) i")
            assert client.verify("s").ok, "the first goes on"

            first.kill()
            assert not first.leftovers()
            conn.execute("DELETE FROM t WHERE id % 2 = 0")
            with pytest.raises(runnel.RunnelError, match="engine"):
                client.refresh("s")

            second = _start(processes, "--home", str(home))
            second.wait_for("^Ready")
            assert client.verify("s").ok
            assert client.query("SELECT os_pid FROM pgtrickle.pgt_engine") == [{"os_pid": second.pid}]
        assert second.stop() == 0
        assert not second.leftovers()
        assert not server.is_running, "a stack that ends well stops its server"
    finally:
        server.stop("immediate")


def _start(processes: list[Process], *arguments: str) -> Process:
    processes.append(runnel_up(*arguments, "--master", "local[1]"))
    return processes[-1]


def _refused(processes: list[Process], *arguments: str, because: str) -> None:
    """One line that says who, what to do about it, and an exit code; before Spark is started."""
    refused = _start(processes, *arguments)
    assert refused.popen.wait(60) != 0
    said = " ".join(refused.tail().split())
    assert because in said
    assert "runnel down" in said
    assert "Traceback" not in said
    assert "Spark" not in said


@pytest.mark.slow
def test_one_that_stands_by_takes_over_within_seconds(durable: EmbeddedServer, processes: list[Process]) -> None:
    first = _start(processes, "--dsn", durable.dsn, "--no-http")
    first.wait_for("^Ready")
    with (
        psycopg.connect(durable.dsn, autocommit=True) as conn,
        contextlib.closing(runnel.connect(durable.dsn)) as client,
    ):
        conn.execute(TABLES.encode())
        for name, query in STREAM_TABLES.items():
            client.create_stream_table(name, query, "1s", "DIFFERENTIAL")
        second = _start(processes, "--dsn", durable.dsn, "--no-http", "--standby")
        second.wait_for(f"standing by: process {first.pid} on {socket.gethostname()}")
        writers = Writers(durable.dsn, seed=5)
        writers.start()
        try:
            _refreshed(conn, time.monotonic() + 60)
            first.kill()
            began = time.monotonic()
            second.wait_for("^Ready")
            _refreshed(conn, began + 60)
            took = time.monotonic() - began
        finally:
            writers.stop()
        assert took < 5.0, f"it took {took:.1f} s until the next refresh"
        assert client.query("SELECT os_pid FROM pgtrickle.pgt_engine") == [{"os_pid": second.pid}]
        for name in STREAM_TABLES:
            assert client.verify(name).ok, name
    assert second.stop() == 0
    assert not second.leftovers()


@pytest.mark.slow
def test_one_that_stands_by_can_be_stopped(durable: EmbeddedServer, processes: list[Process]) -> None:
    first = _start(processes, "--dsn", durable.dsn, "--no-http")
    first.wait_for("^Ready")
    second = _start(processes, "--dsn", durable.dsn, "--no-http", "--standby")
    second.wait_for("standing by")
    assert second.stop() == 0
    assert not second.leftovers()
    assert first.alive


def _refreshed(conn: psycopg.Connection[Any], end: float) -> None:
    """Wait until a refresh that begins from now on has found changes."""
    since = conn.execute("SELECT clock_timestamp()").fetchone()
    while time.monotonic() < end:
        if conn.execute(
            "SELECT 1 FROM pgtrickle.pgt_refresh_history WHERE status = 'COMPLETED' AND start_time > %s LIMIT 1", since
        ).fetchone():
            return
        time.sleep(0.02)
    raise AssertionError("nothing was refreshed")
