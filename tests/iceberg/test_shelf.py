"""Generated files: whole for those who are told of them, in folders and in stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runnel.http.server import HttpServer
from runnel.iceberg.shelf import Shelf
from runnel.lake.format.model import Lake, LakeTable
from runnel.lake.store.storage import Store, StoreError
from tests.iceberg.clients import catalog
from tests.lake.duck import Duck
from tests.lake.s3 import S3

TABLE = LakeTable(1, "uuid", "main", "t", "/nowhere/", ())


def test_a_file_that_is_there_but_not_whole_is_made_whole(data_path: str) -> None:
    shelf = Shelf(Lake("lake", "ducklake", data_path), TABLE, 3)
    address, size = shelf.put("list", b"contents", "avro")
    written = Path(address.removeprefix("file://"))
    assert size == 8 and written.read_bytes() == b"contents"
    for left_by_others in (b"", b"cont", b"contents and more"):
        written.write_bytes(left_by_others)
        assert Shelf(Lake("lake", "ducklake", data_path), TABLE, 3).put("list", b"contents", "avro") == (address, 8)
        assert written.read_bytes() == b"contents"


def test_files_are_in_the_store_when_it_is_settled(s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake("lake", "ducklake", bucket, options=s3.options)
    shelf = Shelf(lake, TABLE, 3)
    contents = [f"number {number}".encode() for number in range(60)]
    addresses = [shelf.put("list", data, "avro")[0] for data in contents]
    shelf.settle()
    folder = s3.root / bucket.removeprefix("s3://").rstrip("/") / ".iceberg" / "uuid" / "v3"
    assert [(folder / each.rpartition("/")[2]).read_bytes() for each in addresses] == contents

    def fail(*_: Any) -> None:
        raise StoreError("the store is gone")

    with monkeypatch.context() as broken:
        broken.setattr(Store, "put", fail)
        for number in range(3):
            shelf.put("list", f"more {number}".encode(), "avro")
        with pytest.raises(StoreError, match="the store is gone"):
            shelf.settle()
    # What was not written is not taken for written.
    again, _ = shelf.put("list", b"more 0", "avro")
    shelf.settle()
    assert (folder / again.rpartition("/")[2]).read_bytes() == b"more 0"


@pytest.mark.slow
def test_a_store_that_fails_is_told_as_such_and_the_next_load_succeeds(
    duck: Callable[..., Duck],
    s3: S3,
    bucket: str,
    http: HttpServer,
    db: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db.execute(
        "INSERT INTO pgtrickle.pgt_lakes (name, catalog_schema, data_path, options, is_default)"
        " VALUES ('lake', 'ducklake', %s, %s, true)",
        (bucket, json.dumps(s3.options)),
    )
    client = duck(bucket, s3=s3).run("CALL lake.set_option('data_inlining_row_limit', 0)")
    client.run("CREATE TABLE t AS SELECT 0 AS k")
    for k in range(1, 8):
        client.run(f"INSERT INTO t VALUES ({k})")
    put, calls = Store.put, iter(range(10**6))

    def sometimes(self: Store, path: str, data: Any) -> None:
        if next(calls) == 5:
            raise StoreError("the store is gone")
        put(self, path, data)

    ice = catalog(http, s3=s3)
    with monkeypatch.context() as broken:
        broken.setattr(Store, "put", sometimes)
        with pytest.raises(Exception, match="the store is gone"):
            ice.load_table("main.t")
    table = ice.load_table("main.t")
    for snapshot in table.metadata.snapshots[-8:]:
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().column("k").to_pylist()
        assert sorted(rows) == sorted(row[0] for row in client.rows(f"FROM t AT (VERSION => {snapshot.snapshot_id})"))
