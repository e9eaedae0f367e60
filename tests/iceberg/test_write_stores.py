"""Writing to a lake in an object store: the clients' own keys, and vended ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.exceptions import BadRequestError

from runnel.http.place import HttpPlace
from runnel.http.server import HttpServer
from tests.iceberg.clients import catalog, ducks
from tests.iceberg.comparing import assert_same
from tests.lake.duck import Duck
from tests.lake.health import known_files
from tests.lake.s3 import S3

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "name": [f"n{i}" for i in range(100)]})


@pytest.fixture(autouse=True)
def checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums behind a body of unknown length are not for every store, and not for this one."""
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "WHEN_REQUIRED")


@pytest.fixture
def token(http: HttpServer, tmp_path: Path) -> str:
    return HttpPlace(tmp_path / "http").token()


@pytest.fixture
def client(duck: Callable[..., Duck], s3: S3, bucket: str, db: psycopg.Connection[Any]) -> Duck:
    """DuckDB on DuckLake in a bucket; the lake hands out its keys."""
    options = json.dumps({**s3.options, "vend_credentials": "on"})
    db.execute(
        "INSERT INTO pgtrickle.pgt_lakes (name, catalog_schema, data_path, options, is_default)"
        " VALUES ('lake', 'ducklake', %s, %s, true)",
        (bucket, options),
    )
    return duck(bucket, s3=s3).run("SET python_enable_replacements = false")


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["own", "vended"])
def test_pyiceberg_writes_to_a_store(
    keys: str, client: Duck, s3: S3, bucket: str, http: HttpServer, token: str, db: psycopg.Connection[Any]
) -> None:
    if keys == "own":
        db.execute("UPDATE pgtrickle.pgt_lakes SET options = options - 'vend_credentials'")
    # PyIceberg asks for keys; what it is not given it takes from its own configuration.
    ice = catalog(http, "lake@v2", token=token, s3=s3 if keys == "own" else None)
    made = ice.create_table("main.t", ROWS.schema)
    made.append(ROWS)
    assert client.rows("SELECT count(*), sum(id), max(name) FROM t") == [(100, 4950, "n99")]
    client.run("INSERT INTO t SELECT i, 'duck' FROM range(100, 150) r(i)")
    ice.load_table("main.t").delete("id >= 90 AND id < 120")
    assert client.rows("SELECT count(*), min(id), max(id) FROM t") == [(120, 0, 149)]
    ice.load_table("main.t").overwrite(ROWS.slice(0, 5), overwrite_filter="id < 50")
    assert client.rows("SELECT count(*), count(DISTINCT rowid) FROM t") == [(75, 75)]
    # Files of both are in the bucket, and nothing that the catalog needs is missing.
    gone = db.execute("SELECT path FROM ducklake.ducklake_files_scheduled_for_deletion").fetchall()
    needed = known_files(db) - {path.removeprefix(bucket) for (path,) in gone}
    assert needed and needed <= s3.files(bucket)
    agree(client, s3, http, "t")


@pytest.mark.slow
@pytest.mark.parametrize(("warehouse", "keys"), [("lake", "own"), ("lake@v2", "own"), ("lake", "vended")])
def test_duckdb_writes_to_a_store(
    warehouse: str, keys: str, client: Duck, s3: S3, http: HttpServer, token: str
) -> None:
    client.run("CALL lake.set_option('data_inlining_row_limit', 0)")
    client.run("CREATE TABLE t (id BIGINT, name VARCHAR)").run("INSERT INTO t SELECT i, 'l' FROM range(50) r(i)")
    delegation = "none" if keys == "own" else "vended_credentials"
    with ducks(http, warehouse, s3=s3 if keys == "own" else None, token=token, delegation=delegation) as writer:
        assert writer.execute("SELECT sum(id), max(name) FROM ice.main.t").fetchall() == [(1225, "l")]
        writer.execute("INSERT INTO ice.main.t SELECT i, 'ice' FROM range(50, 90) r(i)")
        writer.execute("DELETE FROM ice.main.t WHERE id % 5 = 0")
        writer.execute("UPDATE ice.main.t SET name = 'new' WHERE id % 7 = 1")
    assert client.rows("SELECT count(*), count(*) FILTER (name = 'new') FROM t") == [
        (72, len([i for i in range(90) if i % 5 and i % 7 == 1]))
    ]
    agree(client, s3, http, "t")


def test_files_elsewhere_in_the_store_are_not_taken(client: Duck, s3: S3, http: HttpServer, token: str) -> None:
    client.run("CREATE TABLE t (id BIGINT, name VARCHAR)").run("CREATE TABLE other (id BIGINT, name VARCHAR)")
    client.run("INSERT INTO other SELECT i, 'secret' FROM range(100) r(i)")
    ((path,),) = client.rows("SELECT data_file FROM ducklake_list_files('lake', 'other')")
    table = catalog(http, "lake@v2", token=token, s3=s3).load_table("main.t")
    with pytest.raises(BadRequestError, match="folders of the table"):
        table.add_files([path])
    assert client.rows("SELECT count(*) FROM t") == [(0,)]


def agree(client: Duck, s3: S3, http: HttpServer, name: str) -> None:
    for warehouse in ("lake", "lake@v2"):
        table = catalog(http, warehouse, s3=s3).load_table(f"main.{name}")
        with ducks(http, warehouse, s3=s3) as reader:
            listed = [each.snapshot_id for each in table.metadata.snapshots]
            assert assert_same(client, table, reader, name, listed, lambda where=warehouse: where) == len(listed) > 2
