"""A cluster whose workers have Python and nothing else: what tasks import comes with the engine's package."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

import runnel
from runnel.server.embedded import EmbeddedServer
from tests.lake.compare import assert_equal, duck_bag, pg_bag
from tests.lake.duck import Duck
from tests.lake.places import Place
from tests.robustness.cluster import Cluster, bare_python, standalone
from tests.robustness.processes import Process, runnel_up

ROWS = 20_000

TABLES = f"""
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, country text);
CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric(12,2), at timestamptz, note text);
INSERT INTO customers SELECT i, 'customer ' || i, CASE i % 4 WHEN 0 THEN NULL ELSE 'c' || i % 4 END
FROM generate_series(1, 2000) i;
INSERT INTO orders SELECT i, i % 2100, i % 97 * 1.25, timestamptz '2024-03-01 00:00Z' + i * interval '7 minutes',
       CASE i % 5 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'a,"b' || i END FROM generate_series(1, {ROWS}) i;
ANALYZE;
"""

QUERIES = {
    "revenue": """
        SELECT c.country, date_trunc('day', o.at AT TIME ZONE 'UTC') AS day, sum(o.total) AS usd, count(*) AS orders,
               count(DISTINCT o.customer) AS customers
        FROM orders o JOIN customers c ON c.id = o.customer GROUP BY 1, 2""",
    "listed": "SELECT o.id, o.note, o.total, o.at, c.name FROM orders o LEFT JOIN customers c ON c.id = o.customer",
    # Reads the lake: files in tasks, translated and not.
    "by_note": "SELECT note, count(*) AS n, sum(usd) AS usd FROM lake.facts GROUP BY note",
    "shaped": "SELECT id, md5(note) AS hash FROM lake.facts WHERE usd > 3",
}

CHANGES = (
    f"INSERT INTO orders SELECT i, i % 2050, i % 13, now(), 'new' FROM generate_series({ROWS + 1}, {ROWS + 3000}) i",
    "UPDATE orders SET total = total + 1, customer = customer + 1 WHERE id % 6 = 0",
    "DELETE FROM orders WHERE id % 7 = 0; DELETE FROM customers WHERE id % 50 = 0",
    "UPDATE customers SET country = 'moved' WHERE id % 3 = 0",
)


@pytest.fixture
def cluster(processes: list[Process], tmp_path: Path) -> Iterator[Cluster]:
    with standalone(tmp_path, processes, bare=True) as started:
        yield started


@pytest.mark.slow
def test_the_same_pipeline_on_workers_that_have_only_python(
    durable: EmbeddedServer, cluster: Cluster, package: Path, processes: list[Process], tmp_path: Path
) -> None:
    place = Place(durable.dsn, f"{tmp_path / 'lake'}/")
    options = ("--tasks-above", "100", "--data-path", place.data_path)
    engine = _up(durable.dsn, cluster, *options, "--spark-package", str(package))
    processes.append(engine)
    engine.wait_for("^Ready")
    with (
        psycopg.connect(durable.dsn, autocommit=True) as conn,
        contextlib.closing(runnel.connect(durable.dsn)) as client,
        place.duck() as duck,
    ):
        conn.execute(TABLES.encode())
        duck.run(
            f"CREATE TABLE facts AS SELECT i AS id, (i % 900)::DECIMAL(10, 2) AS usd, 'note ' || i % 37 AS note "
            f"FROM range({ROWS}) t(i)"
        )
        for name, query in QUERIES.items():
            client.create_stream_table(name, query, "@yearly", "DIFFERENTIAL", sink="ducklake")
        _same(conn, client, duck)
        for number, change in enumerate(CHANGES):
            conn.execute(change.encode())
            duck.run(f"INSERT INTO facts SELECT i, {number}, 'later' FROM range({ROWS}, {ROWS + 500}) t(i)")
            duck.run(f"DELETE FROM facts WHERE id % 41 = {number}")
            for name in QUERIES:
                client.refresh(name)
            _same(conn, client, duck)
        actions = {r["action"] for r in client.query("SELECT DISTINCT action FROM pgtrickle.pgt_refresh_history")}
        assert actions == {"INITIAL", "DIFFERENTIAL"}
        place.check(conn)
    _assert_bare(cluster)
    executors = cluster.executors()
    assert engine.stop() == 0, engine.tail()
    assert not engine.leftovers()
    _, living = psutil.wait_procs(executors, timeout=20)
    assert not living, "executors outlive their application"


@pytest.mark.slow
def test_workers_that_cannot_work_are_told_at_the_start(
    durable: EmbeddedServer, processes: list[Process], tmp_path: Path
) -> None:
    with standalone(tmp_path, processes, workers=1, bare=True) as cluster:
        _refused(durable, cluster, processes)


def _refused(durable: EmbeddedServer, cluster: Cluster, processes: list[Process]) -> None:
    engine = _up(durable.dsn, cluster)
    processes.append(engine)
    engine.wait_for("The workers lack the Python package (pyarrow|runnel)")
    engine.wait_for("runnel spark package")
    assert engine.popen.wait(60) == 1
    assert "Traceback" not in engine.tail()
    nowhere = runnel_up(
        "--dsn", durable.dsn, "--master", cluster.address, env={"PYSPARK_PYTHON": "/nowhere/python"}
    )  # fmt: skip
    processes.append(nowhere)
    nowhere.wait_for("The workers have no /nowhere/python")
    assert nowhere.popen.wait(60) == 1


def _up(dsn: str, cluster: Cluster, *options: str) -> Process:
    return runnel_up("--dsn", dsn, "--master", cluster.address, *options, env={"PYSPARK_PYTHON": bare_python()})


def _same(conn: psycopg.Connection[Any], client: runnel.Client, duck: Duck) -> None:
    """PostgreSQL's own answer, the stream table, and what DuckDB sees in the lake are one."""
    for name in QUERIES:
        result = client.verify(name)
        assert result.ok, f"{name}: missing {result.missing[:5]}, unexpected {result.unexpected[:5]}"
        assert_equal(duck_bag(conn, duck, name), pg_bag(conn, name), name)


def _assert_bare(cluster: Cluster) -> None:
    """Tasks ran in the bare interpreter, and found the archive unpacked beside their executor."""
    for folder in cluster.folders:
        assert list(folder.glob("app-*/*/environment/runnel/spark/slices.py")), f"nothing was unpacked in {folder}"
    tasks = [p for worker in cluster.workers for p in worker.family() if "pyspark.daemon" in _line(p)]
    assert tasks, "no Python ran on the workers"
    assert all(_line(p).startswith(bare_python()) for p in tasks), [_line(p) for p in tasks]


def _line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
