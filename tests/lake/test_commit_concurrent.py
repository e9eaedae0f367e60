"""Our commits and DuckDB's at the same time, on the same table: no row lost, none twice, no number wrong."""

from __future__ import annotations

import datetime as dt
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import duckdb
import psycopg
import pyarrow as pa
import pytest

from runnel.lake.format.catalog import data_files, delete_files, head
from runnel.lake.format.model import Lake, LakeTable
from runnel.lake.store.storage import open_store
from runnel.lake.upkeep.maintain import maintain
from runnel.lake.upkeep.settings import Settings
from runnel.lake.write.commit import LakeConflict, require_untouched, snapshot
from runnel.lake.write.deletions import Deletions, write_delete_file
from runnel.lake.write.files import add_data_files, end_data_file, replace_delete_file
from runnel.lake.write.parquet import Form, write_file
from runnel.lake.write.tables import column, create_table
from tests.lake.duck import Duck
from tests.lake.health import assert_healthy
from tests.lake.writing import Writer, new_lake, positions_in, writer

Clients = Callable[..., Duck]


class Race:
    """Writers in threads, and what each of them was told had been committed."""

    def __init__(self, dsn: str, lake: Lake, table: LakeTable, seconds: float) -> None:
        self.dsn, self.lake, self.table = dsn, lake, table
        self.until = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.expected: set[int] = set()
        self.count: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._numbers = iter(range(0, 10**9, 10))

    def run(self, *works: Callable[[int], None]) -> None:
        threads = [threading.Thread(target=self._guarded, args=(work, seed)) for seed, work in enumerate(works)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def ids(self) -> list[int]:
        """Ids that nobody else inserts."""
        with self.lock:
            start = next(self._numbers)
        return list(range(start, start + 10))

    def done(self, what: str, *, came: list[int] | None = None, gone: list[int] | None = None) -> None:
        with self.lock:
            self.count[what] += 1
            self.expected.update(came or [])
            self.expected.difference_update(gone or [])

    def inserter(self, seed: int) -> None:
        self.duckdb(seed, weights=(1, 0, 0))

    def duckdb(self, seed: int, weights: tuple[int, int, int] = (5, 4, 1)) -> None:
        """Inserts, deletes, compacts; retries what conflicts, as users do.

        Two DuckDB clients that delete or compact at the same time lose rows to each other, whoever else writes: one
        of them only inserts.
        """
        choice = random.Random(seed)
        mine: list[int] = []
        with Duck(self.dsn) as client:
            while time.monotonic() < self.until:
                kind = choice.choices(["insert", "delete", "maintain"], weights)[0]
                try:
                    if kind == "insert" or (kind == "delete" and not mine):
                        ids = self.ids()
                        rows = ", ".join(f"({id}, 'd{id}')" for id in ids)
                        client.run(f"INSERT INTO t VALUES {rows}")
                        mine += ids
                        self.done("duckdb insert", came=ids)
                    elif kind == "delete":
                        some = choice.sample(mine, min(len(mine), choice.choice([1, 15])))
                        client.run(f"DELETE FROM t WHERE id IN ({', '.join(map(str, some))})")
                        mine = [id for id in mine if id not in some]
                        self.done("duckdb delete", gone=some)
                    else:
                        call = choice.choice(["merge_adjacent_files", "flush_inlined_data"])
                        client.run(f"CALL ducklake_{call}('lake')")
                        self.done(f"duckdb {call}")
                except duckdb.Error as error:
                    if not any(word in str(error).lower() for word in ("conflict", "concurrent", "retry count")):
                        raise
                    self.done("duckdb conflict")

    def ours(self, seed: int) -> None:
        """Inserts and deletes as a refresh does: a transaction that is older than its commit, retried as a whole."""
        choice = random.Random(seed)
        with writer(self.dsn, self.lake) as opened:
            while time.monotonic() < self.until:
                try:
                    with opened.conn.transaction():
                        opened.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                        opened.conn.execute("SELECT 1")
                        time.sleep(choice.uniform(0, 0.02))
                        commit = self._insert(opened) if choice.random() < 0.6 else self._delete(opened, choice)
                    commit()
                except LakeConflict:
                    self.done("our conflict")

    def maintainer(self, seed: int) -> None:
        """Merges and flushes whatever it finds, and removes what is no longer needed at once."""
        eager = Settings(min_files=2, deleted_share=0.01, grace=dt.timedelta(seconds=5))
        with writer(self.dsn, self.lake) as opened:
            while time.monotonic() < self.until:
                report = maintain(opened.conn, opened.observer, self.lake, eager)
                assert not report.skipped, report
                if report.tables:
                    self.done("our maintenance")
                time.sleep(0.5)

    def _insert(self, opened: Writer) -> Callable[[], None]:
        ids = self.ids()
        rows = pa.table({"id": ids, "name": [f"o{id}" for id in ids]})
        file = write_file(open_store("/"), self.table.path, Form(self.table.columns), rows.to_batches())
        with snapshot(opened.conn, opened.observer, self.lake, author="us") as draft:
            add_data_files(draft, self.table, [file])
        return lambda: self.done("our insert", came=ids)

    def _delete(self, opened: Writer, choice: random.Random) -> Callable[[], None]:
        """Delete some rows of a file that is as it was written, or all of it."""
        store, lake, table = open_store("/"), self.lake, self.table
        base = head(opened.observer, lake)
        old = {each.data_file_id: each for each in delete_files(opened.observer, lake, table, base)}
        files = [
            each for each in data_files(opened.observer, lake, table, base) if each.id not in self._inlined(opened)
        ]
        if not files:
            return lambda: None
        file = choice.choice(files)
        before = positions_in(store, old.get(file.id))
        left = [place for place in range(file.record_count) if place not in before]
        some = left if choice.random() < 0.3 else left[:2]
        gone = self._values(store, file.path, some)
        with snapshot(opened.conn, opened.observer, lake, author="us") as draft:
            require_untouched(draft, table.id, base)
            if len(some) == len(left):
                end_data_file(draft, table, file.id)
            else:
                deletions = before | dict.fromkeys(some, draft.id)
                new = write_delete_file(store, table.path, file.path, Deletions.of(deletions))
                replace_delete_file(draft, table, file.id, old.get(file.id), new)
        return lambda: self.done("our delete", gone=gone)

    def _inlined(self, opened: Writer) -> set[int]:
        try:
            rows = opened.observer.execute(f"SELECT file_id FROM ducklake.ducklake_inlined_delete_{self.table.id}")
        except psycopg.errors.UndefinedTable:
            return set()
        return {row[0] for row in rows}

    @staticmethod
    def _values(store: object, path: str, places: list[int]) -> list[int]:
        import pyarrow.parquet as pq

        try:
            ids = pq.read_table(path, columns=["id"]).column(0).to_pylist()
        except FileNotFoundError as error:
            raise LakeConflict("the file was cleaned up") from error
        return [ids[place] for place in places]

    def _guarded(self, work: Callable[[int], None], seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:
            self.errors.append(error)


SECONDS = float(os.environ.get("RUNNEL_SOAK_SECONDS", "180" if os.environ.get("RUNNEL_LAKE_FULL") else "5"))


@pytest.mark.slow
def test_several_writers_lose_nothing(dsn: str, data_path: str, duck: Clients) -> None:
    with new_lake(dsn, data_path) as lake:
        with lake.commit() as draft:
            table = create_table(draft, "main", "t", [column("id", "int64"), column("name", "varchar")])
        race = Race(dsn, lake.lake, table, SECONDS)
        race.run(race.duckdb, race.ours, race.inserter, race.ours, race.maintainer)
        print(dict(race.count))
        client = duck()
        found = client.rows("SELECT id, rowid, name FROM t")
        assert len({row[1] for row in found}) == len(found)
        assert sorted(row[0] for row in found) == sorted(race.expected)
        assert all(row[2][1:] == str(row[0]) for row in found)
        assert client.rows("SELECT count(*), min(id), max(id) FROM t") == [
            (len(found), min(race.expected, default=None), max(race.expected, default=None))
        ]
        for kind in ("our insert", "our delete", "duckdb insert", "our maintenance"):
            assert race.count[kind] > 0, race.count
        assert_healthy(lake.observer)
        for report in (maintain(lake.conn, lake.observer, lake.lake) for _ in range(2)):
            assert not report.skipped
        assert sorted(row[0] for row in client.rows("SELECT id FROM t")) == sorted(race.expected)
        numbers = client.snapshots()
        assert numbers == list(range(len(numbers)))
