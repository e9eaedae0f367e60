"""`runnel.spark.write_ducklake`: DataFrames become lake tables, which DuckDB reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from runnel.errors import UserError
from runnel.spark import read_ducklake, write_ducklake
from tests.lake.duck import Duck


@pytest.fixture
def lake(duck: Callable[..., Duck], data_path: str) -> Duck:
    client = duck(data_path)
    client.run("CREATE TABLE t (id BIGINT, name VARCHAR, x DOUBLE)")
    client.run("INSERT INTO t SELECT i, 'n' || i, i / 2 FROM range(50) r(i)").run("INSERT INTO t VALUES (100, 'in', 1)")
    return client


@pytest.mark.slow
def test_append_overwrite_and_merge(lake: Duck, dsn: str, spark: Any) -> None:
    rows = spark.createDataFrame([(1, "one", 1.0), (200, None, 2.5)], "id BIGINT, name STRING, x DOUBLE")
    assert write_ducklake(rows, dsn, "t") == lake.head()
    assert lake.rows("SELECT count(*), max(id), max(x) FROM t") == [(53, 200, 24.5)]
    lake.run("DELETE FROM t WHERE id BETWEEN 5 AND 7")
    changed = spark.createDataFrame(
        [(2, "two", 0.0), (100, "out", 0.0), (200, "x", 0.0), (300, "new", 9.0)], "id INT, name STRING, x FLOAT"
    )
    at = write_ducklake(changed, dsn, "main.t", "merge", on=["id"])
    assert lake.rows("SELECT id, name FROM t WHERE id IN (2, 100, 200, 300) ORDER BY id") == [
        (2, "two"), (100, "out"), (200, "x"), (300, "new")
    ]  # fmt: skip
    assert lake.rows("SELECT count(*) FROM t") == [(51,)]
    assert lake.rows(f"SELECT name FROM t AT (VERSION => {at - 1}) WHERE id = 2") == [("n2",)]
    ids = [row[0] for row in lake.rows("SELECT rowid FROM t")]
    assert len(set(ids)) == len(ids)
    write_ducklake(changed, dsn, "t", "overwrite")
    assert lake.bag("SELECT id, name FROM t") == {(2, "two"): 1, (100, "out"): 1, (200, "x"): 1, (300, "new"): 1}
    lake.run("UPDATE t SET x = 5 WHERE id = 2").run("CALL ducklake_merge_adjacent_files('lake')")
    assert sorted(row.id for row in read_ducklake(spark, dsn, "t").collect()) == [2, 100, 200, 300]


def test_a_table_is_created_with_every_type(lake: Duck, dsn: str, spark: Any) -> None:
    made = spark.sql(
        "SELECT CAST(id AS BYTE) b, CAST(id AS SHORT) s, CAST(id AS INT) i, id l, id / 2 d, CAST(id AS FLOAT) f,"
        " CAST(id AS DECIMAL(12,3)) n, DATE '2020-01-01' + CAST(id AS INT) day, TIMESTAMP '2020-01-01 00:00:00Z' z,"
        " TIMESTAMP_NTZ '2020-01-01 00:00:00' m, CAST(id AS STRING) t, CAST('x' AS BINARY) raw, id % 2 = 0 yes,"
        " array(id, NULL) a, map('k', id) mp, named_struct('p', id, 'q', array('v')) st FROM range(10)"
    )
    write_ducklake(made, dsn, "made")
    assert lake.rows("SELECT b, s, i, l, d, f, n, day, m, t, raw, yes, a, mp, st FROM made WHERE l = 3") == [
        (
            3, 3, 3, 3, 1.5, 3.0, Decimal("3.000"), dt.date(2020, 1, 4), dt.datetime(2020, 1, 1), "3", b"x", False,
            [3, None], {"k": 3}, {"p": 3, "q": ["v"]},
        )
    ]  # fmt: skip
    assert lake.rows("SELECT min(l), max(l), min(n), max(day), count(*) FROM made") == [
        (0, 9, Decimal("0.000"), dt.date(2020, 1, 10), 10)
    ]
    write_ducklake(made, dsn, "made", "merge", on=["l", "t"])
    assert lake.rows("SELECT count(*), count(DISTINCT l) FROM made") == [(10, 10)]


def test_what_does_not_fit_is_refused(lake: Duck, dsn: str, spark: Any) -> None:
    rows = spark.createDataFrame([(1, "a", 1.0)], "id BIGINT, name STRING, x DOUBLE")
    for frame, mode, on, said in (
        (rows, "upsert", None, "no mode"),
        (rows, "merge", None, "go with mode merge"),
        (rows.drop("x"), "append", None, "lacks x"),
        (rows.withColumnRenamed("x", "y"), "append", None, "it has y"),
        (rows.withColumn("id", rows.name), "append", None, "Column id is bigint"),
        (rows.union(rows), "merge", ["id"], "several rows"),
        (rows, "merge", ["nothing"], "no column nothing"),
    ):
        with pytest.raises(UserError, match=said):
            write_ducklake(frame, dsn, "t", mode, on=on)
    with pytest.raises(UserError, match="no table"):
        write_ducklake(rows, dsn, "none", "merge", on=["id"])
    assert lake.rows("SELECT count(*) FROM t") == [(51,)]


def test_it_waits_for_nobody_and_loses_nothing(lake: Duck, dsn: str, spark: Any) -> None:
    rows = spark.range(1000).selectExpr("id + 1000 AS id", "'s' AS name", "1.5D AS x").repartition(3)
    before = lake.head()
    for number in range(3):
        write_ducklake(rows, dsn, "t")
        lake.run(f"INSERT INTO t VALUES ({-number - 1}, 'd', 0)")
    assert lake.head() == before + 6
    assert lake.rows("SELECT count(*), count(DISTINCT rowid) FROM t") == [(3054, 3054)]
