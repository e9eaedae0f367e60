"""End to end on a real Spark standalone cluster: nothing may depend on driver and executors sharing a process."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import psutil
import psycopg
import pytest

import runnel
from runnel.server.account import binaries
from runnel.server.embedded import EmbeddedServer
from tests.robustness.cluster import Cluster, standalone
from tests.robustness.processes import Process, runnel_up

WORKERS = 2
SHOP = ("revenue_by_day", "customer_lifetime_value", "inventory_health")


@pytest.fixture
def cluster(processes: list[Process], tmp_path: Path) -> Iterator[Cluster]:
    with standalone(tmp_path, processes, workers=WORKERS) as started:
        yield started


@pytest.mark.slow
def test_shop_on_a_cluster(durable: EmbeddedServer, cluster: Cluster, processes: list[Process]) -> None:
    dsn = durable.dsn
    engine = runnel_up("--dsn", dsn, "--master", cluster.address)
    processes.append(engine)
    engine.wait_for("^Ready")
    # Both were asked whether they can work at all.
    asked = [_python_tasks(folder) for folder in cluster.folders]
    with psycopg.connect(dsn, autocommit=True) as conn, contextlib.closing(runnel.connect(dsn)) as client:
        conn.execute(_steps()[0].encode())
        _fill(conn)
        _psql(dsn, _steps()[1])
        _check(client, *SHOP)
        for folder, before in zip(cluster.folders, asked, strict=True):
            assert _python_tasks(folder) > before, "both workers should have read slices of the large table"
        built = client.history("revenue_by_day", 1000)[-1].work
        assert built is not None
        assert built.read_rows == 100_000 and built.tasks >= WORKERS, "counted where the rows were read"
        _change(conn)
        client.refresh("revenue_by_day")
        changed = client.history("revenue_by_day", 1)[0].work
        assert changed is not None
        assert (changed.plans, changed.jobs) == (1, 0), "few rows need no executor"
        _check(client, *SHOP)
        conn.execute("UPDATE products SET category = 'moved' WHERE id < 4")
        conn.execute("UPDATE orders SET status = 'pending' WHERE id % 3 = 1")
        _check(client, *SHOP)
        conn.execute("TRUNCATE orders")
        _check(client, *SHOP)
        spark_master = client.query("SELECT spark_master FROM pgtrickle.pgt_engine")
        assert spark_master == [{"spark_master": cluster.address}]
    executors = cluster.executors()
    assert len(executors) == WORKERS
    assert engine.stop() == 0, engine.tail()
    assert not engine.leftovers()
    _, living = psutil.wait_procs(executors, timeout=20)
    assert not living, "executors outlive their application"


def _python_tasks(folder: Path) -> int:
    """How many tasks in Python an executor of the worker in this folder tells of."""
    return sum(log.read_text().count("PythonRunner: Times") for log in folder.rglob("stderr"))


def _steps() -> tuple[str, str]:
    text = resources.files("runnel.demo").joinpath("shop.sql").read_text()
    tables, stream_tables = text.split("-- step 2", 1)
    return tables, f"-- step 2{stream_tables}"


def _psql(dsn: str, script: str) -> None:
    subprocess.run(
        [binaries() / "psql", dsn, "-q", "-v", "ON_ERROR_STOP=1"],
        input=script,
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _fill(conn: psycopg.Connection) -> None:
    """More orders than a driver reads by itself, thinly spread over more pages than one task reads."""
    conn.execute("ALTER TABLE orders SET (fillfactor = 20)")
    conn.execute("INSERT INTO customers (email, name) SELECT 'e' || i, 'n' || i FROM generate_series(1, 500) i")
    conn.execute(
        "INSERT INTO products (sku, name, category, price_usd, stock_count) "
        "SELECT 's' || i, 'p' || i, 'c' || i % 4, i, i * 2 FROM generate_series(1, 60) i"
    )
    conn.execute(
        "INSERT INTO orders (customer_id, product_id, quantity, total_usd, status, ordered_at) "
        "SELECT 1 + i % 490, 1 + i % 59, i % 5, i % 1000 * 1.25, CASE i % 3 WHEN 0 THEN 'shipped' ELSE 'pending' END, "
        "now() - i % 200 * interval '7 hours' FROM generate_series(1, 300000) i"
    )
    conn.execute("CREATE INDEX ON orders (customer_id)")
    conn.execute("CREATE INDEX ON orders (product_id)")
    conn.execute("ANALYZE")


def _change(conn: psycopg.Connection) -> None:
    conn.execute("UPDATE orders SET status = 'shipped' WHERE id % 3000 = 1")
    conn.execute("DELETE FROM orders WHERE id % 5000 = 3")
    conn.execute("UPDATE orders SET customer_id = 495 WHERE id % 7000 = 2")
    conn.execute("DELETE FROM orders WHERE customer_id = 5")


def _check(client: runnel.Client, *names: str) -> None:
    for name in names:
        result = client.verify(name)
        assert result.ok, f"{name}: missing {result.missing[:5]}, unexpected {result.unexpected[:5]}"
