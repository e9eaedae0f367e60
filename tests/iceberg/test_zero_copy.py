"""What Runnel writes is read as Iceberg without anything generated but manifests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from runnel.http.server import HttpServer
from runnel.lake.format.catalog import data_files, table_by_id
from runnel.lake.format.model import LakeColumn
from runnel.lake.write.tables import create_table
from tests.iceberg.clients import catalog, ducks
from tests.iceberg.comparing import assert_same
from tests.iceberg.conftest import ATTACH
from tests.lake.duck import Duck
from tests.lake.writing import append, delete, new_lake
from tests.lake.writing import writer as another


def generated(data_path: str) -> set[str]:
    """The kinds of files that were generated."""
    folder = Path(data_path.rstrip("/") + ".iceberg")
    return {path.name.partition("-")[0] for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("warehouse", ["lake", "lake@v2"])
def test_the_head_of_a_table_with_deletes_is_zero_copy(
    warehouse: str,
    dsn: str,
    db: psycopg.Connection[Any],
    data_path: str,
    duck: Callable[..., Duck],
    http: HttpServer,
) -> None:
    db.execute(ATTACH, ("lake", "ducklake", data_path))
    with new_lake(dsn, data_path) as writer:
        with writer.commit() as draft:
            table = create_table(draft, "main", "t", [LakeColumn(0, "id", "int64"), LakeColumn(0, "name", "varchar")])
        for first in (0, 1000):
            ids = pa.array(range(first, first + 1000), pa.int64())
            append(writer, table, pa.table({"id": ids, "name": ids.cast(pa.string())}))
        found = table_by_id(writer.observer, writer.lake, table.id, draft.id)
        assert found is not None
        file = data_files(writer.observer, writer.lake, found, 3)[0]
        delete(writer, table, file, range(0, 1000, 3))
    client = duck()
    client.run("SET python_enable_replacements = false")
    loaded = catalog(http, warehouse).load_table("main.t")
    assert loaded.scan().to_arrow().num_rows == 2000 - 334
    tasks = list(loaded.scan().plan_files())
    (named,) = {each.file_path for task in tasks for each in task.delete_files}
    if warehouse == "lake":
        # Version 3 wants deletion vectors: Trino could not add to a file of positions.
        assert generated(data_path) == {"manifest", "list", "kept.json", "deletes"}
        assert named.endswith(".puffin")
    else:
        assert generated(data_path) == {"manifest", "list", "kept.json"}
        assert named.startswith("file:///") and named.endswith("-positions.parquet")
    with ducks(http, warehouse) as ice:
        listed = [snapshot.snapshot_id for snapshot in loaded.metadata.snapshots]
        assert assert_same(client, loaded, ice, "t", listed, lambda: warehouse) == 4

    # The next deletion replaces the file, also for the snapshot before: that one needs a list of its own now.
    with another(dsn, writer.lake) as again:
        delete(again, table, file, range(1, 1000, 3))
    loaded = catalog(http, warehouse).load_table("main.t")
    (newer,) = {each.file_path for task in loaded.scan().plan_files() for each in task.delete_files}
    assert newer != named
    if warehouse != "lake":
        assert newer.endswith("-positions.parquet")
        Path(named.removeprefix("file://")).unlink()
    with ducks(http, warehouse) as ice:
        listed = [snapshot.snapshot_id for snapshot in loaded.metadata.snapshots]
        assert assert_same(client, loaded, ice, "t", listed, lambda: warehouse) == 5
    assert "deletes" in generated(data_path)
