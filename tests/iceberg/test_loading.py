"""What a load tells, and what it tells whom."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import psycopg
import pytest
import requests

from runnel.catalog.tokens import create_token
from runnel.http.place import HttpPlace
from runnel.http.server import HttpServer
from runnel.lake.outside import IcebergPlace, iceberg_lines
from tests.lake.duck import Duck
from tests.lake.s3 import S3


def load(http: HttpServer, warehouse: str = "lake", **headers: str) -> dict[str, Any]:
    answer = requests.get(f"{http.url}/iceberg/v1/{warehouse}/namespaces/main/tables/t", headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def avro(address: str) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(Path(address.removeprefix("file://")).read_bytes())))


@pytest.mark.parametrize("version", [2, 3])
def test_a_load_tells_snapshots_refs_names_and_statistics(
    version: int, duck: Callable[..., Duck], lake: str, http: HttpServer, db: psycopg.Connection[Any]
) -> None:
    client = duck(lake).run("CALL lake.set_option('data_inlining_row_limit', 0)")
    client.run("CREATE TABLE t(i BIGINT, s STRUCT(a INTEGER, b VARCHAR), gone VARCHAR)")
    client.run("INSERT INTO t SELECT i, {'a': i, 'b': 'x'}, NULL FROM range(100) r(i)")
    client.run("CREATE TABLE other(i INTEGER)")
    client.run("DELETE FROM t WHERE i < 10").run("ALTER TABLE t RENAME i TO id").run("ALTER TABLE t DROP gone")
    client.run("INSERT INTO t SELECT i, NULL FROM range(1000, 1050) r(i)")
    found = load(http, "lake" if version == 3 else "lake@v2")["metadata"]
    snapshots = {each["snapshot-id"]: each for each in found["snapshots"]}
    newest = max(client.snapshots())

    # Every snapshot of the lake since the table is there, also those that left it alone, each with its parent.
    assert sorted(snapshots) == [id for id in sorted(client.snapshots()) if id >= 1]
    assert all(each.get("parent-snapshot-id", id - 1) == id - 1 for id, each in snapshots.items())
    assert [each["snapshot-id"] for each in found["snapshot-log"]][-1] == newest == found["last-sequence-number"]
    assert found["refs"] == {"main": {"snapshot-id": newest, "type": "branch"}}
    assert found["current-snapshot-id"] == newest and found["format-version"] == version
    for id, each in snapshots.items():
        said = each["summary"]
        (count,) = client.rows(f"SELECT count(*) FROM t AT (VERSION => {id})")[0]
        assert int(said["total-records"]) - int(said["total-position-deletes"]) == count
        listed = avro(each["manifest-list"])
        held = sum(m["added_rows_count"] + m["existing_rows_count"] for m in listed if m["content"] == 0)
        assert held == int(said["total-records"])
    assert {each["summary"]["operation"] for each in snapshots.values()} == {"append", "delete"}
    assert ("next-row-id" in found) == (version == 3)

    # Names for files without ids: all that a column ever has, those that were dropped among them.
    names = json.loads(found["properties"]["schema.name-mapping.default"])
    by_id = {each["field-id"]: each for each in names}
    assert "id" in by_id[1]["names"] and by_id[2]["names"] == ["s"]
    assert [each["names"] for each in by_id[2]["fields"]] == [["a"], ["b"]]

    # Statistics are those of the files; there are no others, and that is said.
    assert found["statistics"] == [] and found["partition-statistics"] == []
    entries = [
        entry["data_file"]
        for manifest in avro(snapshots[newest]["manifest-list"])
        if manifest["content"] == 0
        for entry in avro(manifest["manifest_path"])
    ]
    told = {each["record_count"]: each for each in entries}
    assert set(told) == {100, 50}
    for rows, least, greatest in ((100, 0, 99), (50, 1000, 1049)):
        (low,) = [each["value"] for each in told[rows]["lower_bounds"] if each["key"] == 1]
        (high,) = [each["value"] for each in told[rows]["upper_bounds"] if each["key"] == 1]
        assert (int.from_bytes(low, "little"), int.from_bytes(high, "little")) == (least, greatest)
        assert {"key": 1, "value": rows} in told[rows]["value_counts"]
        assert {"key": 1, "value": 0} in told[rows]["null_value_counts"]


def test_keys_are_for_the_engine_alone_and_only_when_asked_for(
    duck: Callable[..., Duck], s3: S3, bucket: str, http: HttpServer, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    options = json.dumps({**s3.options, "vend_credentials": "on"})
    db.execute(
        "INSERT INTO pgtrickle.pgt_lakes (name, catalog_schema, data_path, options, is_default)"
        " VALUES ('lake', 'ducklake', %s, %s, true)",
        (bucket, options),
    )
    duck(bucket, s3=s3).run("CREATE TABLE t AS SELECT 1 AS i")
    secret = s3.options["secret_access_key"]
    db.execute("DROP ROLE IF EXISTS http_keys; CREATE ROLE http_keys SUPERUSER")
    try:
        # Who sees everything in PostgreSQL is still not the engine.
        _, other = create_token(db, "http_keys", "sees all")
        engine = {"Authorization": f"Bearer {HttpPlace(tmp_path / 'http').token()}"}
        asked = {"X-Iceberg-Access-Delegation": "vended-credentials"}
        given = load(http, **engine, **asked)
        keys = {"s3.access-key-id": s3.options["access_key_id"], "s3.secret-access-key": secret}
        # A client that takes keys from there looks nowhere else for the way to the store.
        reach = {"s3.endpoint": s3.endpoint, "s3.path-style-access": "true"}
        assert [each["prefix"] for each in given["storage-credentials"]] == [bucket, f"{bucket}.iceberg/"]
        assert all(each["config"].items() >= {**keys, **reach}.items() for each in given["storage-credentials"])
        assert given["config"].items() >= {**keys, "s3.endpoint": s3.endpoint, "s3.path-style-access": "true"}.items()
        both = load(http, **engine, **{"X-Iceberg-Access-Delegation": "remote-signing,vended-credentials"})
        assert both["storage-credentials"] == given["storage-credentials"]

        url = f"{http.url}/iceberg/v1/lake/namespaces/main/tables/t/credentials"
        again = requests.get(url, headers=engine, timeout=30).json()["storage-credentials"]
        assert again == given["storage-credentials"]
        for headers in (engine, {**engine, "X-Iceberg-Access-Delegation": "remote-signing"}):
            assert secret not in json.dumps(load(http, **headers))
        reader = {"Authorization": f"Bearer {other}"}
        assert load(http, **reader, **asked)["config"]["s3.endpoint"] == s3.endpoint
        assert secret not in json.dumps(load(http, **reader, **asked))
        assert requests.get(url, headers=reader, timeout=30).json() == {"storage-credentials": []}
        db.execute("UPDATE pgtrickle.pgt_lakes SET options = options - 'vend_credentials'")
        assert secret not in json.dumps(load(http, **engine, **asked))
        assert requests.get(url, headers=engine, timeout=30).json() == {"storage-credentials": []}
    finally:
        db.execute("DROP ROLE http_keys")


def test_what_is_pasted_into_duckdb_works(
    duck: Callable[..., Duck], lake: str, http: HttpServer, tmp_path: Path
) -> None:
    duck(lake).run("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    token = HttpPlace(tmp_path / "http").token()
    place = IcebergPlace(f"{http.url}/iceberg", "lake", str(tmp_path / "http" / "token"), {}, lake)
    lines = iceberg_lines("duckdb-iceberg", place)
    assert not any(token in line for line in lines)
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as conn:
        for line in lines:
            got = conn.execute(line.replace("<token>", token).replace("<table>", "t"))
        assert sorted(got.fetchall()) == [(i,) for i in range(100)]


def test_a_question_that_fails_harms_no_later_one(
    duck: Callable[..., Duck], lake: str, http: HttpServer, db: psycopg.Connection[Any]
) -> None:
    """Questions go out together: one that fails takes those behind it along, and leaves the session as it was."""
    client = duck(lake).run("CALL lake.set_option('data_inlining_row_limit', 0)")
    client.run("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    url = f"{http.url}/iceberg/v1/lake/namespaces/main/tables/t"
    for table in ("ducklake_view", "ducklake_table_stats", "ducklake_file_column_stats", "ducklake_tag"):
        client.run("INSERT INTO t VALUES (1000)")
        db.execute(f"ALTER TABLE ducklake.{table} RENAME TO away".encode())
        for _ in range(3):
            assert requests.get(url, timeout=30).status_code >= 500
        db.execute(f"ALTER TABLE ducklake.away RENAME TO {table}".encode())
        assert load(http)["metadata"]["current-snapshot-id"] == max(client.snapshots())
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in trans%'"
    row = db.execute(waiting).fetchone()
    assert row == (0,)
