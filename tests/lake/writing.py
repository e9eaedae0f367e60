"""A lake of our own making for tests of writing: its connections, and one-line commits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from runnel.lake.format.catalog import delete_files
from runnel.lake.format.model import DataFile, DeleteFile, Lake, LakeTable
from runnel.lake.store.storage import Store, open_store
from runnel.lake.write.commit import Draft, snapshot
from runnel.lake.write.create import create_lake
from runnel.lake.write.deletions import Deletions, write_delete_file
from runnel.lake.write.files import add_data_files, replace_delete_file
from runnel.lake.write.parquet import Form, write_file


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer's two connections to a lake's catalog."""

    lake: Lake
    conn: psycopg.Connection[Any]
    observer: psycopg.Connection[Any]

    @contextlib.contextmanager
    def commit(self, message: str | None = None) -> Iterator[Draft]:
        """One snapshot in one transaction."""
        with self.conn.transaction(), snapshot(self.conn, self.observer, self.lake, message=message) as draft:
            yield draft


@contextlib.contextmanager
def writer(dsn: str, lake: Lake) -> Iterator[Writer]:
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn, autocommit=True) as observer:
        yield Writer(lake, conn, observer)


@contextlib.contextmanager
def new_lake(dsn: str, data_path: str, **options: Any) -> Iterator[Writer]:
    """Create a lake in schema `ducklake` and open it for writing."""
    with psycopg.connect(dsn) as conn:
        lake = create_lake(conn, "ducklake", data_path, **options)
    with writer(dsn, lake) as opened:
        yield opened


def append(writer: Writer, table: LakeTable, rows: pa.Table, **options: Any) -> int:
    """Write rows to one file and commit it. Returns the snapshot."""
    store = open_store(writer.lake.data_path, writer.lake.options)
    form = Form(table.columns, encrypt=writer.lake.encrypted, **options)
    file = write_file(store, table.path, form, rows.to_batches())
    with writer.commit() as draft:
        add_data_files(draft, table, [file])
    return draft.id


def delete(writer: Writer, table: LakeTable, file: DataFile, positions: Iterable[int]) -> int:
    """Delete positions of a data file beside those that are deleted already. Returns the snapshot."""
    store = open_store(writer.lake.data_path, writer.lake.options)
    with writer.commit() as draft:
        old = next(
            (
                each
                for each in delete_files(writer.observer, writer.lake, table, draft.id)
                if each.data_file_id == file.id
            ),
            None,
        )
        every = Deletions.of(positions_in(store, old) | dict.fromkeys(positions, draft.id))
        new = write_delete_file(store, table.path, file.path, every, encrypt=writer.lake.encrypted)
        replace_delete_file(draft, table, file.id, old, new)
    return draft.id


def positions_in(store: Store, file: DeleteFile | None) -> dict[int, int]:
    """The positions of a delete file that is not encrypted, with their snapshots."""
    if file is None:
        return {}
    table = pq.read_table(pa.BufferReader(store.get(file.path)))
    snapshots = table.column(2).to_pylist() if table.num_columns > 2 else [file.begin] * table.num_rows
    return dict(zip(table.column(1).to_pylist(), snapshots, strict=True))
