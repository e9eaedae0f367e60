"""Two engines on one database: one works, the other says who has it."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import psycopg
import pytest

import runnel
from runnel.server.embedded import EmbeddedServer
from tests.robustness.processes import Process, runnel_up


@pytest.mark.slow
def test_the_second_refuses_and_takes_over_later(durable: EmbeddedServer, processes: list[Process]) -> None:
    dsn = durable.dsn
    first = runnel_up("--dsn", dsn, "--master", "local[1]")
    processes.append(first)
    first.wait_for("^Ready")
    with psycopg.connect(dsn, autocommit=True) as conn, contextlib.closing(runnel.connect(dsn)) as client:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, x int)")
        client.create_stream_table("s", "SELECT x, count(*) AS n FROM t GROUP BY x", "1s", "DIFFERENTIAL")

        second = runnel_up("--dsn", dsn, "--master", "local[1]")
        processes.append(second)
        said = second.wait_for("another Runnel engine")
        assert f"process {first.pid} on {socket.gethostname()}" in f"{said} {second.tail()}".replace("\n", " ")
        assert second.popen.wait(30) != 0
        assert "Traceback" not in second.tail()
        assert "runnel down" in second.tail(), "the refusal says what to do"
        assert not any("Spark" in line for line in second.lines), "it should refuse before it starts Spark"

        conn.execute("INSERT INTO t SELECT i, i % 3 FROM generate_series(1, 30) i")
        assert client.verify("s").ok, "the first goes on"

        first.kill()
        assert not first.leftovers()
        conn.execute("DELETE FROM t WHERE id % 2 = 0")
        with pytest.raises(runnel.RunnelError, match="engine"):
            client.refresh("s")

        second = runnel_up("--dsn", dsn, "--master", "local[1]")
        processes.append(second)
        second.wait_for("^Ready")
        assert client.verify("s").ok
        assert client.query("SELECT os_pid FROM pgtrickle.pgt_engine") == [{"os_pid": second.pid}]
    assert second.stop() == 0
    assert not second.leftovers()


@pytest.mark.slow
def test_the_second_stack_of_a_home_refuses(home: Path, processes: list[Process]) -> None:
    """The same by the home directory: the second neither starts nor stops the first one's server."""
    server = EmbeddedServer(home)
    first = runnel_up("--home", str(home), "--master", "local[1]")
    processes.append(first)
    try:
        first.wait_for("^Ready")
        second = runnel_up("--home", str(home), "--master", "local[1]")
        processes.append(second)
        second.wait_for(f"already up .pid {first.pid}")
        assert second.popen.wait(30) != 0
        assert server.is_running
        assert first.stop() == 0
        assert not server.is_running, "a stack that ends well stops its server"
        assert not first.leftovers()
    finally:
        server.stop("immediate")
