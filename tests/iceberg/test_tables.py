"""All kinds of tables: types, nested columns, files of others, partitions, inlined rows, lineage; from stores, too."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runnel.http.server import HttpServer
from runnel.iceberg import shelf
from runnel.lake.attached import load_lake
from runnel.lake.format.catalog import head, tables
from runnel.lake.upkeep.maintain import maintain
from runnel.lake.upkeep.settings import Settings
from runnel.lake.upkeep.sweep import remove_generated
from tests.iceberg.clients import catalog, ducks
from tests.iceberg.comparing import assert_same
from tests.lake.duck import Duck
from tests.lake.s3 import S3

WAREHOUSES = ["lake", "lake@v2"]
VALUES = {
    "BOOLEAN": "i % 2 = 0", "TINYINT": "(i % 100)::TINYINT", "SMALLINT": "i::SMALLINT", "INTEGER": "i::INTEGER",
    "BIGINT": "i * 1000003", "UTINYINT": "(i % 250)::UTINYINT", "USMALLINT": "(i + 60000)::USMALLINT",
    "FLOAT": "(i / 3.0)::FLOAT", "DOUBLE": "i / 7.0", "DECIMAL(5,1)": "(i / 10.0)::DECIMAL(5,1)",
    "DECIMAL(18,4)": "(i / 3.0)::DECIMAL(18,4)", "DECIMAL(38,10)": "(i * 1e15)::DECIMAL(38,10)",
    "DATE": "DATE '1969-12-01' + i::INTEGER", "TIME": "TIME '00:00:01' + INTERVAL (i) SECOND",
    "TIMESTAMP": "TIMESTAMP '1969-12-31 23:59:59.999999' + INTERVAL (i) SECOND",
    "TIMESTAMP_S": "(TIMESTAMP '2020-01-01' + INTERVAL (i) SECOND)::TIMESTAMP_S",
    "TIMESTAMP_MS": "(TIMESTAMP '2020-01-01' + INTERVAL (i) MILLISECOND)::TIMESTAMP_MS",
    "TIMESTAMPTZ": "TIMESTAMPTZ '2020-01-01 00:00:00+00' + INTERVAL (i) MINUTE",
    "VARCHAR": "'é' || i || repeat('x', 300)", "BLOB": "encode('b' || i)", "UUID": "md5(i::VARCHAR)::UUID",
    "JSON": "('{\"a\": ' || i || '}')::JSON", "INTEGER[]": "[i, NULL]::INTEGER[]",
    "STRUCT(a INTEGER, b VARCHAR[], c STRUCT(d DOUBLE))":
        "{'a': i, 'b': ['v' || i], 'c': {'d': 0.5}}::STRUCT(a INTEGER, b VARCHAR[], c STRUCT(d DOUBLE))",
    "MAP(VARCHAR, DOUBLE)": "MAP {'k' || i: i / 2.0}::MAP(VARCHAR, DOUBLE)",
}  # fmt: skip
WITHOUT = {
    "UINTEGER": "i::UINTEGER", "UBIGINT": "i::UBIGINT", "HUGEINT": "i::HUGEINT", "INTERVAL": "INTERVAL (i) DAY",
    "TIMETZ": "TIMETZ '01:02:03+00'", "UINTEGER[]": "[i]::UINTEGER[]",
}  # fmt: skip


@pytest.fixture
def client(duck: Callable[..., Duck], lake: str) -> Iterator[Duck]:
    started = duck(lake)
    started.run("SET python_enable_replacements = false")
    yield started


def assert_all_same(http: HttpServer, client: Duck, name: str, s3: S3 | None = None) -> dict[str, Any]:
    """Both versions of the format at all snapshots; the tables."""
    found = {}
    for warehouse in WAREHOUSES:
        table = found[warehouse] = catalog(http, warehouse, s3=s3).load_table(f"main.{name}")
        with ducks(http, warehouse, s3=s3) as ice:
            listed = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
            assert assert_same(client, table, ice, name, listed, lambda where=warehouse: where) == len(listed) > 0
    return found


@pytest.mark.parametrize("inline", [0, 100])
def test_every_type_that_has_an_equivalent(inline: int, client: Duck, http: HttpServer) -> None:
    client.run(f"CALL lake.set_option('data_inlining_row_limit', {inline})")
    every = {**VALUES, **WITHOUT}
    columns = ", ".join(f"c{number} {type}" for number, type in enumerate(every))
    client.run(f"CREATE TABLE t({columns})")
    values = ", ".join(f"CASE WHEN i % 5 = 4 THEN NULL ELSE {value} END" for value in every.values())
    client.run(f"INSERT INTO t SELECT {values} FROM range(50) r(i)")
    found = assert_all_same(http, client, "t")
    for table in found.values():
        assert len(table.schema().fields) == len(VALUES)
        left_out = json.loads(table.properties["runnel.left-out-columns"])
        assert set(left_out) == {f"c{len(VALUES) + number}" for number in range(len(WITHOUT))}
        assert all("no equivalent" in reason for reason in left_out.values())


def test_nanoseconds_are_for_version_three(client: Duck, http: HttpServer) -> None:
    client.run("CREATE TABLE t(i INTEGER, n TIMESTAMP_NS)")
    client.run("INSERT INTO t VALUES (1, '2020-01-01 00:00:00.123456789')")
    newer = catalog(http).load_table("main.t")
    assert str(newer.schema().find_type("n")) == "timestamp_ns"
    older = catalog(http, "lake@v2").load_table("main.t")
    assert [field.name for field in older.schema().fields] == ["i"]
    assert "runnel.left-out-columns" in older.properties


@pytest.mark.slow
def test_columns_come_and_go_and_have_defaults(client: Duck, http: HttpServer) -> None:
    client.run("CREATE TABLE t(i INTEGER, s STRUCT(a INTEGER), f FLOAT, d DECIMAL(8,2))")
    client.run("INSERT INTO t SELECT i, {'a': i}, i / 2, i / 4 FROM range(100) r(i)")
    for number, (type_, default) in enumerate(
        {"INTEGER": "42", "VARCHAR": "'it''s'", "DATE": "'2021-03-04'", "DECIMAL(6,2)": "1.50",
         "TIMESTAMP": "'2020-01-01 01:02:03'", "DOUBLE": "0.5"}.items()
    ):  # fmt: skip
        client.run(f"ALTER TABLE t ADD COLUMN n{number} {type_} DEFAULT {default}")
    client.run("INSERT INTO t SELECT i, {'a': i}, 1, 1, i, 'x', NULL, NULL, NULL, NULL FROM range(100, 200) r(i)")
    client.run("ALTER TABLE t ADD COLUMN s.b VARCHAR").run("ALTER TABLE t DROP COLUMN s.a")
    client.run("ALTER TABLE t ALTER i TYPE BIGINT").run("ALTER TABLE t ALTER f TYPE DOUBLE")
    client.run("ALTER TABLE t ALTER d TYPE DECIMAL(12,2)").run("ALTER TABLE t RENAME n0 TO renamed")
    client.run("DELETE FROM t WHERE i % 3 = 0")
    found = assert_all_same(http, client, "t")
    assert "runnel.left-out-columns" not in found["lake"].properties
    left_out = json.loads(found["lake@v2"].properties["runnel.left-out-columns"])
    assert set(left_out) == {"renamed", *(f"n{number}" for number in range(1, 6))}
    # DuckDB rewrites files with the columns that they had, so nothing is different afterwards.
    client.run("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0)")
    found = assert_all_same(http, client, "t")
    assert "runnel.left-out-columns" in found["lake@v2"].properties
    # Once no older file is left, version 2 has the columns.
    client.run("CREATE TABLE copy AS FROM t").run("DELETE FROM t").run("INSERT INTO t FROM copy")
    found = assert_all_same(http, client, "t")
    assert "runnel.left-out-columns" not in found["lake@v2"].properties


def test_files_of_others_are_read_by_name(client: Duck, http: HttpServer, tmp_path: Path) -> None:
    client.run("CREATE TABLE t(id BIGINT, name VARCHAR, s STRUCT(a INTEGER, b VARCHAR), l INTEGER[])")
    client.run("INSERT INTO t SELECT i, 'n' || i, {'a': i, 'b': 'x'}, [i] FROM range(50) r(i)")
    foreign = tmp_path / "foreign.parquet"
    rows = [{"s": {"b": "y", "a": i}, "name": f"f{i}", "id": i, "l": [i, None]} for i in range(100, 150)]
    pq.write_table(
        pa.Table.from_pylist(
            rows,
            pa.schema(
                {
                    "s": pa.struct({"b": pa.string(), "a": pa.int32()}),
                    "name": pa.string(),
                    "id": pa.int64(),
                    "l": pa.list_(pa.int32()),
                }
            ),
        ),
        foreign,
    )
    client.run(f"CALL ducklake_add_data_files('lake', 't', '{foreign}')")
    client.run("DELETE FROM t WHERE id % 10 = 3")
    client.run("ALTER TABLE t RENAME name TO title").run("ALTER TABLE t ADD COLUMN later VARCHAR")
    found = assert_all_same(http, client, "t")
    assert found["lake"].scan().to_arrow().num_rows == 90


@pytest.mark.slow
def test_partitions_prune_where_both_formats_mean_the_same(client: Duck, http: HttpServer) -> None:
    client.run("CALL lake.set_option('data_inlining_row_limit', 0)")
    client.run("CREATE TABLE t(id BIGINT, region VARCHAR, ts TIMESTAMP, n INTEGER)")
    client.run("ALTER TABLE t SET PARTITIONED BY (region, year(ts), month(ts), bucket(4, id))")
    rows = (
        "SELECT i, CASE i % 3 WHEN 0 THEN 'a/b=c é' WHEN 1 THEN 'x' END, TIMESTAMP '2019-11-01' + INTERVAL (i) DAY, i "
        "FROM range({0}, {1}) r(i)"
    )
    client.run(f"INSERT INTO t {rows.format(0, 120)}")
    client.run("ALTER TABLE t SET PARTITIONED BY (n)").run(f"INSERT INTO t {rows.format(120, 130)}")
    client.run("ALTER TABLE t RESET PARTITIONED BY").run(f"INSERT INTO t {rows.format(130, 140)}")
    client.run("DELETE FROM t WHERE id % 7 = 0").run("UPDATE t SET region = 'moved' WHERE id = 5")
    for warehouse, table in assert_all_same(http, client, "t").items():
        transforms = {str(field.transform) for spec in table.specs().values() for field in spec.fields}
        assert transforms == {"identity", "year", "bucket[4]"}
        for condition in ("region = 'x'", "id = 17", "ts < '2019-12-05T00:00:00'", "n = 125", "region is null"):
            wanted = client.value(f"SELECT count(*) FROM t WHERE {condition}")
            scan = table.scan(row_filter=condition)
            assert scan.to_arrow().num_rows == wanted, (warehouse, condition)
            assert len(list(scan.plan_files())) < len(list(table.scan().plan_files()))
            with ducks(http, warehouse) as ice:
                assert ice.execute(f"SELECT count(*) FROM ice.main.t WHERE {condition}").fetchall() == [(wanted,)]


def test_a_partition_by_a_column_that_is_not_shown(client: Duck, http: HttpServer) -> None:
    client.run("CREATE TABLE t(i INTEGER, v VARCHAR)")
    client.run("INSERT INTO t SELECT i, 'v' || i FROM range(50) r(i)")
    client.run("ALTER TABLE t ADD COLUMN p INTEGER DEFAULT 7").run("ALTER TABLE t SET PARTITIONED BY (p, i)")
    client.run("INSERT INTO t SELECT 1, 'v' || i, i % 3 FROM range(50) r(i)")
    found = assert_all_same(http, client, "t")
    sources = {name: {f.source_id for s in table.specs().values() for f in s.fields} for name, table in found.items()}
    assert sources == {"lake": {1, 3}, "lake@v2": {1}}
    # The partition's column is dropped, and another one is widened so that Iceberg cannot follow.
    client.run("ALTER TABLE t RESET PARTITIONED BY").run("ALTER TABLE t DROP COLUMN p")
    client.run("ALTER TABLE t ALTER i TYPE DOUBLE").run("DELETE FROM t WHERE v = 'v3'")
    found = assert_all_same(http, client, "t")
    assert [field.name for field in found["lake"].schema().fields] == ["v"]
    assert not [field for spec in found["lake"].specs().values() for field in spec.fields]


def test_bounds_leave_files_closed(client: Duck, http: HttpServer) -> None:
    client.run("CREATE TABLE t(i BIGINT, s VARCHAR, d DATE, f DOUBLE, n DECIMAL(10,2), u UUID, z TIMESTAMPTZ)")
    for first in (0, 1000, 2000):
        client.run(
            f"INSERT INTO t SELECT i, 's' || (1000 + i), DATE '2020-01-01' + i::INTEGER, i, i, "
            f"lpad(i::VARCHAR, 32, '0')::UUID, TIMESTAMPTZ '2020-01-01 00:00:00+00' + INTERVAL (i) DAY "
            f"FROM range({first}, {first + 100}) r(i)"
        )
    client.run("INSERT INTO t SELECT 5000, 'nan', NULL, 'nan', 0, NULL, NULL FROM range(100)")
    conditions = (
        "i = 1050", "s = 's2050'", "d = '2022-10-01'", "n > 2050.50", "u = '00000000-0000-0000-0000-000000001050'",
        "z < '2020-01-05T00:00:00+00:00'",
    )  # fmt: skip
    for warehouse in WAREHOUSES:
        table = catalog(http, warehouse).load_table("main.t")
        for condition in conditions:
            scan = table.scan(row_filter=condition)
            assert scan.to_arrow().num_rows == client.value(f"SELECT count(*) FROM t WHERE {condition}"), condition
            assert len(list(scan.plan_files())) == 1, condition
        assert table.scan(row_filter="f >= 2000").to_arrow().num_rows >= 100


def test_row_lineage_is_ducklakes(client: Duck, http: HttpServer, db: psycopg.Connection[Any]) -> None:
    client.run("CREATE TABLE t(i BIGINT, v INTEGER)")
    client.run("INSERT INTO t SELECT i, 0 FROM range(200) r(i)").run("UPDATE t SET v = 1 WHERE i BETWEEN 50 AND 90")
    client.run("INSERT INTO t VALUES (1000, 0)")
    metadata = catalog(http).load_table("main.t").metadata
    row = db.execute("SELECT next_row_id FROM ducklake.ducklake_table_stats").fetchone()
    assert row is not None and metadata.next_row_id == row[0]
    with ducks(http) as ice:
        got = ice.execute("SELECT i, _row_id FROM ice.main.t ORDER BY 1").fetchall()
        assert got == client.rows("SELECT i, rowid FROM t ORDER BY 1")
        moments = dict(ice.execute("SELECT i, _last_updated_sequence_number FROM ice.main.t").fetchall())
    assert {moments[i] for i in (0, 60, 1000)} == {2, 3, 4}


@pytest.mark.slow
def test_flushing_merging_and_expiring_change_nothing_that_is_left(
    client: Duck,
    http: HttpServer,
    db: psycopg.Connection[Any],
    dsn: str,
    lake: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shelf, "TELL_SECONDS", 0.0)
    client.run("CREATE TABLE t(i BIGINT, v VARCHAR)")
    for number in range(6):
        client.run(f"INSERT INTO t SELECT i, 'v' || i FROM range({number * 10}, {number * 10 + 5}) r(i)")
        client.run(f"INSERT INTO t SELECT i, 'w' || i FROM range({number * 1000}, {number * 1000 + 50}) r(i)")
        client.run(f"DELETE FROM t WHERE i = {number * 1000 + 7} OR i = {number * 10}")
    before = assert_all_same(http, client, "t")
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn, autocommit=True) as observer:
        report = maintain(conn, observer, load_lake(db, "lake"), Settings(grace=dt.timedelta(0), min_files=2))
    assert report.merged_files and report.flushed_rows
    after = assert_all_same(http, client, "t")
    assert len(after["lake"].metadata.snapshots) > len(before["lake"].metadata.snapshots)
    assert {str(each.summary.operation.value) for each in after["lake"].metadata.snapshots} >= {"replace", "append"}
    client.run("CALL ducklake_expire_snapshots('lake', versions => [2, 3, 4, 9, 10])")
    client.run("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    left = assert_all_same(http, client, "t")
    assert len(left["lake"].metadata.snapshots) == len(after["lake"].metadata.snapshots) - 5
    # What the newest metadata does not need can go; what it needs stays.
    attached = load_lake(db, "lake")
    there = {table.uuid for table in tables(db, attached, head(db, attached))}
    assert remove_generated(attached, there, dt.timedelta(hours=1)) == 0
    assert remove_generated(attached, there, dt.timedelta(0)) > 0
    assert_all_same(http, client, "t")
    folder = Path(lake.rstrip("/") + ".iceberg")
    assert not any(path.name.endswith(".parquet") for path in folder.rglob("*"))
    client.run("DROP TABLE t")
    remove_generated(attached, set(), dt.timedelta(0))
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_from_an_object_store(
    duck: Callable[..., Duck], s3: S3, bucket: str, http: HttpServer, db: psycopg.Connection[Any]
) -> None:
    options = json.dumps({**s3.options, "vend_credentials": "on"})
    for number, place in enumerate((bucket, f"{bucket}some/where/")):
        schema = f"ducklake{number}"
        db.execute("DELETE FROM pgtrickle.pgt_lakes")
        db.execute(
            "INSERT INTO pgtrickle.pgt_lakes (name, catalog_schema, data_path, options) VALUES ('lake', %s, %s, %s)",
            (schema, place, options),
        )
        client = duck(place, s3=s3, schema=schema)
        client.run("SET python_enable_replacements = false")
        client.run("CREATE TABLE t(i BIGINT, v VARCHAR)").run("INSERT INTO t SELECT i, 'v' || i FROM range(500) r(i)")
        client.run("INSERT INTO t VALUES (1000, 'inlined')").run("DELETE FROM t WHERE i % 7 = 0")
        client.run("DELETE FROM t WHERE i % 11 = 0")
        assert_all_same(http, client, "t", s3)
    # Keys are for those who speak for the engine, and ask.
    vended = catalog(http).load_table("main.t")
    assert vended.scan().to_arrow().num_rows == client.value("SELECT count(*) FROM t")
    assert vended.io.properties["s3.secret-access-key"] == s3.options["secret_access_key"]
    db.execute("UPDATE pgtrickle.pgt_lakes SET options = options - 'vend_credentials'")
    kept = catalog(http).load_table("main.t")
    assert kept.io.properties["s3.endpoint"] == s3.endpoint
    assert "s3.secret-access-key" not in kept.io.properties


def test_values_inside_of_structs_that_are_in_no_file_yet(client: Duck, http: HttpServer) -> None:
    client.run("CALL lake.set_option('data_inlining_row_limit', 100)")
    client.run(
        "CREATE TABLE t(i INTEGER, s STRUCT(d DATE, m TIMESTAMP, z TIMESTAMPTZ, v VARCHAR, b BLOB, h HUGEINT, u UUID,"
        " l VARCHAR[]))"
    )
    client.run(
        "INSERT INTO t VALUES (1, {'d': DATE '2020-01-02', 'm': TIMESTAMP '2020-01-01 01:02:03',"
        " 'z': TIMESTAMPTZ '2020-01-01 00:00:00+00', 'v': 'it''s a \\', 'b': '\\x00,'::BLOB, 'h': 5,"
        " 'u': '00000000-0000-0000-0000-000000000001'::UUID, 'l': ['q]', 'it''s']}), (2, NULL)"
    )
    # Huge numbers, and uuids inside of others, have no equal in Iceberg; all else is there.
    wanted = {
        "d": dt.date(2020, 1, 2), "m": dt.datetime(2020, 1, 1, 1, 2, 3),
        "z": dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "v": "it's a \\", "b": b"\x00,", "l": ["q]", "it's"],
    }  # fmt: skip
    # DuckDB 1.5.5 itself cannot read what it has written there.
    for warehouse in WAREHOUSES:
        found = catalog(http, warehouse).load_table("main.t").scan().to_arrow().sort_by("i")
        assert found.column("s").to_pylist() == [wanted, None]
