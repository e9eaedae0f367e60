"""What a load costs: once for many files, next to nothing afterwards, little after a commit."""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest
import requests

from runnel.http.server import HttpServer
from tests.iceberg.clients import catalog, serving
from tests.iceberg.synthetic import COLUMNS, definition, register
from tests.lake.duck import Duck

FILES = 10_000


@pytest.fixture
def table_id(duck: Callable[..., Duck], lake: str, db: psycopg.Connection[Any]) -> int:
    duck(lake).run(f"CREATE TABLE t({definition()})")
    row = db.execute("SELECT table_id FROM ducklake.ducklake_table").fetchone()
    assert row is not None
    return int(row[0])


def timed(http: HttpServer, warehouse: str = "lake") -> float:
    began = time.monotonic()
    answer = requests.get(f"{http.url}/iceberg/v1/{warehouse}/namespaces/main/tables/t", timeout=60)
    assert answer.status_code == 200, answer.text
    return time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("warehouse", ["lake", "lake@v2"])
def test_a_table_of_ten_thousand_files(
    warehouse: str, table_id: int, http: HttpServer, db: psycopg.Connection[Any], lake: str
) -> None:
    register(db, table_id, FILES)
    db.execute("ANALYZE ducklake.ducklake_data_file; ANALYZE ducklake.ducklake_file_column_stats")
    timed(http, "lake@v2" if warehouse == "lake" else "lake")  # what is loaded and connected once
    first = timed(http, warehouse)
    cached = [timed(http, warehouse) for _ in range(9)]
    written = generated(lake)
    later = []
    for _ in range(5):
        register(db, table_id, 1)
        later.append(timed(http, warehouse))
    # A manifest of one file and a list for each commit; the others are used again.
    assert len(generated(lake) - written) == 10
    told = f"{first:.2f} s, then {statistics.median(cached) * 1000:.0f} ms; after a commit {min(later) * 1000:.0f} ms"
    assert first <= 3 and statistics.median(cached) <= 0.05 and min(later) <= 0.1, told
    scan = catalog(http, warehouse).load_table("main.t").scan(row_filter="c3 = 1234567")
    assert len(list(scan.plan_files())) == 1


def test_what_is_encoded_is_what_a_library_reads(
    table_id: int, http: HttpServer, db: psycopg.Connection[Any], lake: str
) -> None:
    register(db, table_id, 3)
    for warehouse in ("lake", "lake@v2"):
        assert timed(http, warehouse) < 60
    for path in Path(lake.rstrip("/") + ".iceberg").rglob("manifest-*.avro"):
        with path.open("rb") as file:
            entries = list(fastavro.reader(file))
        assert len(entries) == 3
        for entry in entries:
            described = entry["data_file"]
            assert described["record_count"] == 1000 and described["file_path"].startswith("file:///")
            assert len(described["lower_bounds"]) == len(described["value_counts"]) == COLUMNS
            least, greatest = (
                int.from_bytes(described[key][0]["value"], "little") for key in ("lower_bounds", "upper_bounds")
            )
            assert greatest - least == 999
    for path in Path(lake.rstrip("/") + ".iceberg").rglob("list-*.avro"):
        data = io.BytesIO(path.read_bytes())
        assert sum(each["added_files_count"] for each in fastavro.reader(data)) in (0, 3)


@pytest.mark.slow
def test_many_commits_share_their_manifests(
    table_id: int, http: HttpServer, db: psycopg.Connection[Any], lake: str
) -> None:
    register(db, table_id, 300, per_snapshot=1)
    timed(http)
    table = catalog(http).load_table("main.t")
    assert len(table.metadata.snapshots) == 301
    assert len(table.current_snapshot().manifests(table.io)) < 50
    for snapshot in table.metadata.snapshots[::50]:
        listed = [e for m in snapshot.manifests(table.io) for e in m.fetch_manifest_entry(table.io)]
        assert len({entry.data_file.file_path for entry in listed}) == len(listed) == snapshot.snapshot_id - 1
    assert len(generated(lake)) < 301 + 400


def test_another_server_makes_the_same_files(
    table_id: int, http: HttpServer, db: psycopg.Connection[Any], lake: str, dsn: str, tmp_path: Path
) -> None:
    register(db, table_id, 20, per_snapshot=2)
    timed(http)
    before = generated(lake)
    with serving(dsn, tmp_path / "other") as other:
        timed(other)
    assert generated(lake) == before


def test_the_command_line_does_without_the_web() -> None:
    code = "import sys, runnel.cli.main; print([m for m in ('uvicorn', 'starlette', 'pyroaring') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def generated(lake: str) -> set[str]:
    return {str(path) for path in Path(lake.rstrip("/") + ".iceberg").rglob("*.avro")}
