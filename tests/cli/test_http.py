"""`runnel up` serves HTTP: its address, its token, what is published, and its end."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog

from tests.cli.conftest import Run, Stack

PUBLISH = """
SELECT pgtrickle.create_stream_table('{0}', 'SELECT category, sum(n) AS total FROM sold GROUP BY 1', '1s',
    sink => 'ducklake', ducklake_sink_mode => '{1}')
"""


@pytest.mark.slow
def test_a_stack_serves_its_lake_as_iceberg(up: Callable[..., Stack], run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    stack = up("--home", str(home))
    stack.wait_for("Ready")
    url = run("url", "--home", str(home)).stdout.strip()
    assert url.startswith("http://127.0.0.1:") and f"HTTP on {url}" in stack.said
    token_file = Path(run("token", "file", "--home", str(home)).stdout.strip())
    token = token_file.read_text().strip()
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600

    address = run("dsn", "--home", str(home)).stdout.strip()
    with psycopg.connect(address, autocommit=True) as db:
        db.execute("CREATE TABLE sold (category text, n int); INSERT INTO sold VALUES ('a', 1), ('b', 2), ('a', 3)")
        db.execute(PUBLISH.format("totals", "merge"))
        db.execute(PUBLISH.format("events", "append"))
        parts = json.loads(run("lake", "info", "--client", "pyiceberg", "--json", "--home", str(home)).stdout)
        assert parts == {
            "uri": f"{url}/iceberg", "warehouse": "lake", "prefix": "lake", "prefix_v2": "lake@v2",
            "token_file": str(token_file),
        }  # fmt: skip
        # The embedded server trusts its machine: no token is needed to read.
        for options in ({}, {"token": token}, {"prefix": parts["prefix_v2"]}):
            catalog = RestCatalog("lake", uri=parts["uri"], warehouse=parts["warehouse"], **options)
            assert catalog.list_tables("main") == [("main", "events__log"), ("main", "totals")]
            rows = catalog.load_table("main.totals").scan().to_arrow().to_pylist()
            assert {row["category"]: int(row["total"]) for row in rows} == {"a": 4, "b": 2}
        # What is pasted works.
        lines = run("lake", "info", "--client", "pyiceberg", "--home", str(home)).stdout
        scope: dict[str, object] = {}
        exec(lines.replace("main.TABLE", "main.totals"), scope)  # noqa: S102  (our own lines)
        assert isinstance(scope["catalog"], RestCatalog)
        for client in ("duckdb-iceberg", "spark", "trino"):
            said = run("lake", "info", "--client", client, "--home", str(home)).stdout
            assert f"{url}/iceberg" in said and token not in said

        db.execute("CREATE ROLE reader; GRANT SELECT ON totals TO reader")
        made = run("token", "create", "--role", "reader", "--label", "for tests", "--home", str(home))
        given = made.stdout.strip()
        catalog = RestCatalog("lake", uri=parts["uri"], warehouse="lake", token=given)
        assert catalog.list_tables("main") == [("main", "totals")]
        assert "for tests" in run("token", "list", "--home", str(home)).stdout
        number = json.loads(run("token", "list", "--json", "--home", str(home)).stdout)[0]["token_id"]
        run("token", "revoke", str(number), "--home", str(home))
        assert "no role" in run("token", "create", "--role", "nobody", "--home", str(home), code=1).stderr
        assert token not in stack.said and given not in stack.said and token not in stack.command_lines()

    # A killed engine leaves no server behind; the next one has the same port and token.
    others = stack.process.children(recursive=True)
    stack.process.kill()
    stack.process.wait(30)
    psutil.wait_procs(others, 10)
    with pytest.raises(requests.ConnectionError):
        requests.get(url, timeout=2)
    again = up("--home", str(home))
    again.wait_for(f"HTTP on {url}")
    again.wait_for("Ready")
    assert token_file.read_text().strip() == token
    again.stop()
    with pytest.raises(requests.ConnectionError):
        requests.get(url, timeout=2)
    assert again.process.poll() is not None


def test_addresses_are_checked_before_anything_starts(run: Run, tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    only_one = run("up", "--home", home, "--http-cert", "cert.pem", code=1)
    assert "belong together" in only_one.stderr
    assert "is not an address" in run("up", "--home", home, "--http", "127.0.0.1:http", code=1).stderr
    assert "No HTTP server" in run("url", "--home", home, code=1).stderr
    assert not os.path.exists(home)


@pytest.mark.slow
def test_a_stack_can_do_without_http(up: Callable[..., Stack], run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    stack = up("--home", str(home), "--no-http")
    stack.wait_for("Ready")
    assert "HTTP on" not in stack.said
    assert "No HTTP server" in run("url", "--home", str(home), code=1).stderr
    listening = {
        each.laddr.port
        for process in (stack.process, *stack.process.children(recursive=True))
        for each in process.net_connections(kind="tcp")
        if each.status == psutil.CONN_LISTEN and "python" in process.name()
    }
    assert not any(_answers(port) for port in listening)
    stack.stop()


def _answers(port: int) -> bool:
    """Whether Runnel's site is there."""
    try:
        return "Runnel" in requests.get(f"http://127.0.0.1:{port}/", timeout=2).text
    except requests.RequestException:
        return False
