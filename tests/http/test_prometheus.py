"""A live stack scraped by a real Prometheus: every panel shows something, and alerts are sound."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests

import runnel
from runnel.http.server import HttpServer
from tests.e2e.helpers import eventually
from tests.iceberg.clients import serving

DEPLOY = Path(__file__).parents[2] / "deploy"
PANELS = [
    pytest.param(path.stem, panel["title"], target["expr"], id=f"{path.stem}: {panel['title']} {target['refId']}")
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
    for panel in json.loads(path.read_text())["panels"]
    for target in panel["targets"]
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("prometheus") or not shutil.which("promtool"), reason="prometheus is needed"),
]


def test_promtool_approves(tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    shutil.copytree(DEPLOY / "prometheus", folder)
    (folder / "token").write_text("secret")
    for arguments in (
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
    ):
        done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def http(dsn: str, db: psycopg.Connection, engine: runnel.Engine, tmp_path: Path) -> Iterator[HttpServer]:
    """A server that wants a token, with stream tables, a lake, and something that fails."""
    with serving(dsn, tmp_path / "http", loopback_reads=False) as server:
        (tmp_path / "lake").mkdir(mode=0o777)
        db.execute("CREATE TABLE sold (id int, category text, n int)")
        db.execute("INSERT INTO sold SELECT i, 'c' || i % 5, i FROM generate_series(1, 500) i")
        db.execute(
            "SELECT pgtrickle.attach_ducklake('lake', 'lake_catalog', data_path => %s, create_if_missing => true, "
            "make_default => true)",
            (f"{tmp_path}/lake/",),
        )
        db.execute(
            "SELECT pgtrickle.create_stream_table('totals', 'SELECT category, sum(n) AS total FROM sold GROUP BY 1', "
            "'1s', sink => 'ducklake')"
        )
        db.execute("SELECT pgtrickle.create_stream_table('large', 'SELECT id, n FROM sold WHERE n > 100', '1s')")
        yield server


@pytest.fixture
def ask(http: HttpServer, tmp_path: Path) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Ask a Prometheus that scrapes the stack as deploy/ says, only more often."""
    folder = tmp_path / "prometheus"
    shutil.copytree(DEPLOY / "prometheus", folder)
    config = (folder / "prometheus.yml").read_text()
    config = config.replace("runnel:8080", http.url.removeprefix("http://")).replace("15s", "2s")
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(tmp_path / "http" / "token", folder / "token")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        "prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={tmp_path}/tsdb", "--log.level=warn",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def query(expression: str) -> list[dict[str, Any]]:
        try:
            answer = requests.get(
                f"http://127.0.0.1:{port}/api/v1/query", params={"query": expression}, timeout=10
            ).json()
        except requests.RequestException:
            return []
        assert answer["status"] == "success", (expression, answer)
        return list(answer["data"]["result"])

    try:
        yield query
    finally:
        process.terminate()
        process.wait(20)


def test_every_panel_shows_something(db: psycopg.Connection, ask: Callable[[str], list[dict[str, Any]]]) -> None:
    eventually(lambda: ask('up{job="runnel"} == 1'), 60, what="Prometheus never scraped")
    deadline = time.monotonic() + 120
    empty = {p.values[2] for p in PANELS}
    number = 1000
    while empty and time.monotonic() < deadline:
        db.execute("INSERT INTO sold VALUES (%s, 'c1', %s)", (number, number))
        number += 1
        time.sleep(1)
        empty = {expression for expression in empty if not ask(expression)}
    assert not empty, f"panels that show nothing: {empty}"
    # What it shows is what happened.
    (rows,) = ask('runnel_stream_table_rows{stream_table="public.totals"}')
    (done,) = ask('sum(runnel_refreshes_total{stream_table="public.totals", status="COMPLETED"})')
    counted = db.execute("SELECT count(*) FROM pgtrickle.get_refresh_history('totals', 1000)").fetchone()
    assert rows["metric"]["job"] == "runnel" and counted is not None
    assert 2 <= float(done["value"][1]) <= counted[0]
    assert not ask("ALERTS{alertstate='firing'}")
