"""The dbt package with real dbt: a shop is run, changed and verified.

dbt has requirements of its own, so it lives in an environment of its own: `make test-dbt` makes .venv-dbt, and
RUNNEL_DBT may name another `dbt`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import runnel

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "integrations" / "dbt"
Dbt = Callable[..., str]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example, beside a copy of the package."""
    shutil.copytree(PACKAGE, tmp_path / "dbt", ignore=shutil.ignore_patterns("target", "logs", "dbt_packages"))
    return tmp_path / "dbt" / "example"


@pytest.fixture
def dbt(project: Path, dsn: str, client: runnel.Client) -> Iterator[Dbt]:
    """Run dbt in the project; its output. The engine runs."""
    program = os.environ.get("RUNNEL_DBT") or str(ROOT / ".venv-dbt" / "bin" / "dbt")
    if not Path(program).exists():
        pytest.skip("dbt is not installed: make test-dbt")
    words = conninfo_to_dict(dsn)
    env = {**os.environ, "PGHOST": str(words["host"]), "PGPORT": str(words["port"]), "PGUSER": str(words["user"]),
           "PGPASSWORD": str(words.get("password") or "x"), "PGDATABASE": str(words["dbname"]),
           "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}  # fmt: skip
    env.pop("PYTHONPATH", None)

    def run(*arguments: str, fails: bool = False) -> str:
        command = [program, "--no-use-colors", *arguments, "--profiles-dir", "."]
        done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == fails, done.stdout[-4000:] + done.stderr[-2000:]
        return done.stdout

    run("deps")
    yield run


def created(db: psycopg.Connection[Any]) -> dict[str, Any]:
    found = db.execute("SELECT pgt_name, created_at FROM pgtrickle.pgt_stream_tables WHERE pgt_schema = 'jaffle'")
    return dict(found.fetchall())


def rebuilds(db: psycopg.Connection[Any], name: str) -> int:
    row = db.execute(
        "SELECT definition_version FROM pgtrickle.pgt_stream_tables WHERE pgt_name = %s", (name,)
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.slow
def test_the_shop(dbt: Dbt, db: psycopg.Connection[Any], client: runnel.Client, project: Path) -> None:
    dbt("seed")
    dbt("run")
    first = created(db)
    assert set(first) == {"customers", "orders"}
    assert "Completed successfully" in dbt("test")
    row = db.execute("SELECT number_of_orders, customer_lifetime_value FROM jaffle.customers WHERE customer_id = 1")
    assert row.fetchone() == (2, 35)
    # Without dbt: the tables follow what they are made of.
    db.execute("INSERT INTO jaffle.raw_orders VALUES (7, 1, '2026-02-01', 'placed')")
    db.execute("INSERT INTO jaffle.raw_payments VALUES (8, 7, 'coupon', 500)")
    client.refresh("jaffle.customers")
    row = db.execute("SELECT number_of_orders, customer_lifetime_value FROM jaffle.customers WHERE customer_id = 1")
    assert row.fetchone() == (3, 40)

    # A second run changes nothing.
    versions = {name: rebuilds(db, name) for name in first}
    indexes = db.execute("SELECT count(*) FROM pg_indexes WHERE indexname LIKE 'dbt_%'").fetchone()
    dbt("run")
    assert created(db) == first
    assert {name: rebuilds(db, name) for name in first} == versions
    assert db.execute("SELECT count(*) FROM pg_indexes WHERE indexname LIKE 'dbt_%'").fetchone() == indexes == (1,)
    may = "SELECT has_table_privilege('pg_read_all_data', 'jaffle.customers', 'SELECT')"
    assert db.execute(may).fetchone() == (True,)
    told = db.execute("SELECT obj_description('jaffle.customers'::regclass)").fetchone()
    assert told == ("One row per customer, with what they have ordered.",)

    # Only what changed is altered.
    model = project / "models" / "marts" / "orders.sql"
    model.write_text(model.read_text().replace("as coupon_amount", "as by_coupon"))
    dbt("run")
    assert rebuilds(db, "orders") > versions["orders"]
    assert created(db) == first
    columns = db.execute("SELECT * FROM jaffle.orders LIMIT 0").description or []
    assert "by_coupon" in [column.name for column in columns]
    before = rebuilds(db, "customers")
    dbt("run", "--full-refresh", "--select", "customers")
    assert rebuilds(db, "customers") > before
    assert "customers equals its query" in dbt("run-operation", "verify")

    # What is no model any more.
    (project / "models" / "marts" / "customers.sql").unlink()
    schema = project / "models" / "schema.yml"
    text = schema.read_text()
    schema.write_text("version: 2\n" + text[text.index("sources:") :])
    assert "Would drop jaffle.customers" in dbt("run-operation", "drop_vanished")
    dbt("run-operation", "drop_vanished", "--args", "{dry_run: false}")
    assert set(created(db)) == {"orders"}
    # The last one of a schema, too.
    (project / "models" / "marts" / "orders.sql").unlink()
    dbt("run-operation", "drop_vanished", "--args", "{dry_run: false}", "--no-partial-parse")
    assert created(db) == {}


@pytest.mark.slow
def test_freshness_docs_and_contracts(dbt: Dbt, db: psycopg.Connection[Any], project: Path) -> None:
    dbt("seed")
    dbt("run")
    # Sources that are quiet make no table stale; one that is not kept fresh any more is.
    older = "UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = now() - interval '3 days'"
    db.execute(older.encode())
    assert "PASS freshness of live.customers" in dbt("source", "freshness")
    db.execute("SELECT pgtrickle.alter_stream_table('jaffle.customers', status => 'SUSPENDED')")
    db.execute(older.encode())
    assert "ERROR STALE freshness of live.customers" in dbt("source", "freshness", fails=True)
    db.execute("SELECT pgtrickle.alter_stream_table('jaffle.customers', status => 'ACTIVE')")
    dbt("docs", "generate")
    manifest = json.loads((project / "target" / "manifest.json").read_text())
    assert "model.jaffle_stream.orders" in manifest["parent_map"]["model.jaffle_stream.customers"]
    catalog = json.loads((project / "target" / "catalog.json").read_text())
    assert "model.jaffle_stream.customers" in catalog["nodes"]
    schema = project / "models" / "schema.yml"
    schema.write_text(
        schema.read_text().replace("number_of_orders, data_type: bigint", "number_of_orders, data_type: text")
    )
    assert "contract" in dbt("run", "--select", "customers", fails=True)
    # Publication and schedule are altered in place.
    db.execute(
        "SELECT pgtrickle.attach_ducklake('lake', catalog_schema => 'ducklake', data_path => %s, "
        "create_if_missing => true, make_default => true)",
        (f"{project.parent}/lake/",),
    )
    model = project / "models" / "marts" / "orders.sql"
    text = model.read_text()
    config = "{{ config(schedule='7s', sink='ducklake', ducklake_sink_mode='append', refresh_mode='DIFFERENTIAL') }}"
    model.write_text(f"{config}\n{text}")
    dbt("run", "--select", "orders")
    said = "SELECT schedule, refresh_mode, s.sink, s.mode FROM pgtrickle.pgt_stream_tables JOIN pgtrickle.pgt_sinks s "
    assert db.execute(f"{said} USING (pgt_id) WHERE pgt_name = 'orders'".encode()).fetchall() == [
        ("7s", "DIFFERENTIAL", "ducklake", "append")
    ]
    # A model that was something else before, and a query that cannot be.
    (project / "models" / "marts" / "orders.sql").write_text("select random() as r")
    assert "volatile" in dbt("run", "--select", "orders", fails=True).lower()
