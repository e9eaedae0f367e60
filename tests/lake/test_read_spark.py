"""Lake tables as DataFrames: what Spark shows is what DuckDB shows."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from runnel.errors import UserError
from runnel.lake.format.model import LakeColumn
from runnel.spark import read_ducklake, read_ducklake_changes
from runnel.spark.ducklake.where import columns_in, hints
from tests.lake.duck import Duck
from tests.lake.histories import History
from tests.lake.rows import comparable
from tests.lake.s3 import S3


def bag(frame: DataFrame) -> Counter[Any]:
    return Counter(comparable(plain(value) for value in row) for row in frame.collect())


def plain(value: Any) -> Any:
    return value.asDict(recursive=True) if isinstance(value, Row) else value


def expected(client: Duck, query: str) -> Counter[Any]:
    """DuckDB's rows, with text for what Spark has no type for."""
    frame = client.conn.execute(query)
    times = [i for i, column in enumerate(frame.description or ()) if str(column[1]) == "TIME"]
    rows = [list(row) for row in frame.fetchall()]
    for row in rows:
        for place in times:
            row[place] = None if row[place] is None else row[place].isoformat("microseconds")
    return Counter(comparable(row) for row in rows)


@pytest.mark.parametrize(("seed", "partitioned"), [(11, False), (12, True)])
def test_random_histories(
    spark: SparkSession, duck: Callable[..., Duck], dsn: str, data_path: str, seed: int, partitioned: bool
) -> None:
    client = duck(data_path)
    history = History(client, seed, partitioned=partitioned)
    for _ in range(14):
        history.step()
    lake = f"ducklake:postgres:{dsn}"
    versions = [n for n in client.snapshots() if n > 1 + partitioned]
    for at in (versions[len(versions) // 2], versions[-1]):
        wanted = expected(client, f"SELECT * FROM t AT (VERSION => {at})")
        message = f"seed {seed} at {at}\n" + "\n".join(history.log)
        for native in (True, False):
            assert bag(read_ducklake(spark, lake, "t", snapshot=at, native=native)) == wanted, message


def test_native_scan_with_deletes_renames_and_conditions(
    spark: SparkSession, duck: Callable[..., Duck], dsn: str, data_path: str
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(id bigint, name varchar, day date, s struct(a int, b varchar), tags varchar[])")
    client.run("ALTER TABLE t SET PARTITIONED BY (name)")
    for part in range(3):
        client.run(
            f"INSERT INTO t SELECT i, 'n %/' || {part}, DATE '2024-01-01' + (i % 30)::int, {{'a': i, 'b': 'x'}}, "
            f"['t' || i] FROM range({part * 100}, {part * 100 + 100}) r(i)"
        )
    client.run("DELETE FROM t WHERE id % 10 = 3").run("ALTER TABLE t RENAME name TO label")
    client.run("ALTER TABLE t ADD COLUMN name int").run(
        "INSERT INTO t SELECT 1000 + i, 'z', NULL, NULL, NULL, 5 FROM range(20) r(i)"
    )
    frame = read_ducklake(spark, dsn, "main.t", schema="ducklake")
    assert frame.columns == ["id", "label", "day", "s", "tags", "name"]
    assert bag(frame) == expected(client, "SELECT * FROM t")
    plan = frame._jdf.queryExecution().toString()
    assert "FileScan parquet" in plan and "MapInArrow" not in plan and "LeftAnti" in plan
    where = "id BETWEEN 120 AND 150 AND day >= '2024-01-05'"
    some = read_ducklake(spark, dsn, "t", columns=["label"], where=where)
    assert some.columns == ["label"]
    assert bag(some) == expected(client, f"SELECT label FROM t WHERE {where}")
    assert len(some.inputFiles()) == 1
    assert read_ducklake(spark, dsn, "t", columns=[]).count() == client.value("SELECT count(*) FROM t")
    # The result is the caller's: it can be named in the caller's session.
    frame.createOrReplaceTempView("lake_rows")
    assert spark.sql("SELECT count(*) FROM lake_rows").collect()[0][0] == client.value("SELECT count(*) FROM t")
    assert spark.conf.get("spark.sql.parquet.fieldId.read.enabled") == "false"


def test_encrypted_files_on_an_object_store(
    spark: SparkSession, duck: Callable[..., Duck], dsn: str, s3: S3, bucket: str
) -> None:
    client = duck(f"{bucket}lake/", s3=s3, encrypted=True)
    client.run("CREATE TABLE t(id int, s struct(a int))")
    client.run("INSERT INTO t SELECT i, {'a': i} FROM range(500) r(i)").run("DELETE FROM t WHERE id < 50")
    client.run("INSERT INTO t VALUES (-1, {'a': 0})")
    frame = read_ducklake(spark, f"ducklake:postgres:{dsn}", "t", options=s3.options)
    assert bag(frame) == expected(client, "SELECT * FROM t")
    assert s3.options["secret_access_key"] not in frame._jdf.queryExecution().toString()


def test_the_change_feed(
    spark: SparkSession, duck: Callable[..., Duck], dsn: str, data_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(id int, v varchar)").run("INSERT INTO t SELECT i, 'v' FROM range(50) r(i)")
    client.run("UPDATE t SET v = 'w' WHERE id < 20").run("DELETE FROM t WHERE id = 30").run(
        "INSERT INTO t VALUES (99, 'x')"
    )
    last = client.head()
    for small in (100_000, 0):
        monkeypatch.setattr("runnel.spark.ducklake.tables.SMALL_ROWS", small)
        frame = read_ducklake_changes(spark, dsn, "t", 1, last)
        assert frame.columns == ["snapshot_id", "rowid", "change_type", "id", "v"]
        assert bag(frame) == expected(client, f"SELECT * FROM lake.table_changes('t', 1, {last})")
    assert read_ducklake_changes(spark, dsn, "t", last, last, columns=["v"]).collect()[0].v == "x"
    with pytest.raises(UserError, match=f"Snapshot {last + 1} of lake lake does not exist"):
        read_ducklake_changes(spark, dsn, "t", 1, last + 1)


def test_versions_and_names_that_do_not_exist(
    spark: SparkSession, duck: Callable[..., Duck], dsn: str, data_path: str
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(id int)").run("INSERT INTO t VALUES (1)")
    with psycopg.connect(dsn) as conn:
        found = conn.execute("SELECT snapshot_time FROM ducklake.ducklake_snapshot WHERE snapshot_id = 1").fetchone()
    assert found is not None
    assert read_ducklake(spark, dsn, "t", timestamp=found[0]).count() == 0
    assert read_ducklake(spark, dsn, "t", timestamp=dt.datetime(2999, 1, 1, tzinfo=dt.UTC)).count() == 1
    with pytest.raises(UserError, match="no table main.nope") as caught:
        read_ducklake(spark, dsn, "nope")
    assert "main.t" in str(caught.value.hint)
    with pytest.raises(UserError, match="Both a snapshot and a timestamp"):
        read_ducklake(spark, dsn, "t", snapshot=1, timestamp="2024-01-01")
    with pytest.raises(UserError, match="no column x"):
        read_ducklake(spark, dsn, "t", columns=["x"])


def test_conditions_are_read_for_what_they_say_of_single_columns() -> None:
    columns = [LakeColumn(1, "id", "int64"), LakeColumn(2, "Name", "varchar"), LakeColumn(3, "d", "date")]
    assert hints("id > 5 AND 10 >= id AND name = 'x'", columns) == ({"Name": ["x"]}, {"id": (5, 10)})
    assert hints("id IN (1, -2) AND d < DATE '2024-01-01'", columns) == (
        {"id": [1, -2]},
        {"d": (None, dt.date(2024, 1, 1))},
    )
    for vague in (
        "id > 5 OR name = 'x'",
        "NOT id = 5",
        "id + 1 = 5",
        "id = d",
        "name = 5",
        "id IN (1, NULL)",
        "d = 'soon'",
    ):
        assert hints(vague, columns) == ({}, {}), vague
    assert set(columns_in("upper(NAME) = 'X' OR id IS NULL", columns)) == {"Name", "id"}
    with pytest.raises(UserError, match="cannot be read"):
        hints("id = = 5", columns)
