"""The rig itself: a lake made by DuckDB in a folder and in an object store, and a store in trouble."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.lake.duck import Duck
from tests.lake.flaky import Flaky, Trouble
from tests.lake.s3 import S3, files_below

TABLE = "CREATE TABLE t AS SELECT i AS id, 'n' || i AS name FROM range(100) r(i)"


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_lake_in_a_folder(duck: Callable[..., Duck], data_path: str, encrypted: bool) -> None:
    writer = duck(data_path, encrypted=encrypted).run(TABLE).run("DELETE FROM t WHERE id < 30")
    reader = duck()
    assert reader.value("SELECT sum(id) FROM t") == sum(range(30, 100))
    assert len(reader.at("t", 1)) == 100
    assert reader.head() == writer.head() == 2
    assert [kind for _, _, kind, _, _ in reader.changes("t", 2, 2)] == ["delete"] * 30
    (data,) = [name for name in files_below(Path(data_path)) if "delete" not in name]
    assert (Path(data_path) / data).read_bytes()[:4] == (b"PARE" if encrypted else b"PAR1")


def test_a_lake_in_an_object_store(duck: Callable[..., Duck], s3: S3, bucket: str) -> None:
    duck(bucket, s3=s3).run(TABLE).run("DELETE FROM t WHERE id < 30")
    assert duck(s3=s3).value("SELECT sum(id) FROM t") == sum(range(30, 100))
    assert len(s3.files(bucket)) == 2


@pytest.mark.parametrize("trouble", ["refuse", "cut", "full"])
def test_a_store_in_trouble_and_well_again(
    duck: Callable[..., Duck], flaky: Flaky, bucket: str, trouble: Trouble
) -> None:
    client = duck(bucket, s3=flaky.s3)
    client.run("SET http_retries = 0").run("CREATE TABLE t (id int)")
    flaky.be(trouble)
    with pytest.raises(duckdb.Error):
        client.run("INSERT INTO t FROM range(1000)")
    assert not flaky.s3.files(bucket)
    flaky.be("none")
    client.run("INSERT INTO t FROM range(1000)")
    assert client.value("SELECT sum(id) FROM t") == 499_500


def test_a_slow_store(duck: Callable[..., Duck], flaky: Flaky, bucket: str) -> None:
    client = duck(bucket, s3=flaky.s3).run("CREATE TABLE t (id int)")
    flaky.be("slow", seconds=0.3)
    started = time.monotonic()
    client.run("INSERT INTO t FROM range(1000)")
    assert time.monotonic() - started >= 0.3
    assert flaky.troubled >= 1
