"""Maintenance changes nothing that anybody can see: every snapshot, every change feed, row ids, statistics."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from runnel.lake.format.catalog import data_files, head, table_by_id
from runnel.lake.read.changes import plan_changes, read_changes
from runnel.lake.read.scan import plan_scan, read_all
from runnel.lake.upkeep.compact import Tasks
from runnel.lake.upkeep.maintain import alone, maintain
from runnel.lake.upkeep.settings import Settings
from runnel.lake.write.files import end_data_file
from runnel.lake.write.parquet import file_name
from runnel.lake.write.tables import column, create_table
from tests.lake.duck import Duck
from tests.lake.health import assert_counts_right, assert_healthy
from tests.lake.s3 import S3
from tests.lake.writing import Writer, append, delete, new_lake

Clients = Callable[..., Duck]
Bag = Counter[tuple[Any, ...]]

NOW = dt.timedelta(0)
EAGER = Settings(min_files=2, deleted_share=0.01, grace=NOW, orphan_grace=NOW)


def numbers(first: int, last: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, last), pa.int64()), "name": [f"n{i}" for i in range(first, last)]})


@pytest.fixture
def lake(dsn: str, data_path: str) -> Iterator[Writer]:
    with new_lake(dsn, data_path) as opened:
        yield opened


def new_table(lake: Writer, name: str = "t") -> Any:
    with lake.commit() as draft:
        return create_table(draft, "main", name, [column("id", "int64"), column("name", "varchar")])


def live(lake: Writer, table: Any) -> list[Any]:
    return data_files(lake.observer, lake.lake, table, head(lake.observer, lake.lake))


TOLD_WRONG = b"""
SELECT d.begin_snapshot FROM ducklake.ducklake_delete_file d JOIN ducklake.ducklake_data_file f USING (data_file_id)
WHERE f.end_snapshot IS NOT NULL AND f.partial_max IS NOT NULL AND d.path NOT LIKE '%-moved-%'
"""


class Memory:
    """What a table looked like at every snapshot, to DuckDB and to us."""

    def __init__(self, lake: Writer, client: Duck, table_id: int) -> None:
        self.lake, self.client, self.table_id = lake, client, table_id
        last = head(lake.observer, lake.lake)
        self.snapshots = [n for n in client.snapshots() if table_by_id(lake.observer, lake.lake, table_id, n)]
        self.states = {n: self._state(n) for n in self.snapshots}
        self.ours = {n: self._scan(n) for n in self.snapshots}
        self.feed = self._changes(self.snapshots[0], last)
        self.last = last

    def check(self) -> None:
        for n in self.snapshots:
            assert self._state(n) == self.states[n], f"snapshot {n} for DuckDB"
            assert self._scan(n) == self.ours[n], f"snapshot {n} for us"
        # Not compared with what DuckDB said before: of its own deletes in merged files it tells the wrong snapshot,
        # and goes on to do so when it has ended such a file.
        wrong = {number for (number,) in self.lake.observer.execute(TOLD_WRONG)}
        truth = {n: self._difference(n) for n in self.snapshots}
        told = {n: changes for n, changes in truth.items() if changes is not None and n not in wrong}
        for n, changes in told.items():
            assert self._feed(n, n) == changes, f"DuckDB's changes of snapshot {n}"
        if len(told) == len(self.snapshots):
            everything = self._feed(self.snapshots[0], head(self.lake.observer, self.lake.lake))
            assert everything == sum(told.values(), Counter())
        assert self._changes(self.snapshots[0], self.last) == self.feed
        now = head(self.lake.observer, self.lake.lake)
        assert not self._changes(self.last, now)
        if now > self.last:
            assert not self._feed(self.last + 1, now)

    def _state(self, n: int) -> Bag:
        return Counter(self.client.at("t", n, "rowid, *"))

    def _feed(self, first: int, last: int) -> Bag:
        return Counter(self.client.changes("t", first, last, "change_type, rowid, snapshot_id, *"))

    def _difference(self, n: int) -> Bag | None:
        """The changes of one snapshot by comparing states; None where the columns changed."""
        before, after = self.states.get(n - 1, Counter()), self.states[n]
        gone, come = before - after, after - before
        if gone and come and len(next(iter(gone))) != len(next(iter(come))):
            return None
        both = {row[0] for row in gone} & {row[0] for row in come}
        return Counter(
            (kinds[row[0] in both], row[0], n, n, row[0], kinds[row[0] in both], *row[1:])
            for bag, kinds in ((gone, ("delete", "update_preimage")), (come, ("insert", "update_postimage")))
            for row in bag.elements()
        )

    def _scan(self, n: int) -> Bag:
        table = table_by_id(self.lake.observer, self.lake.lake, self.table_id, n)
        assert table is not None
        return _bag(read_all(plan_scan(self.lake.observer, self.lake.lake, table, n, row_ids=True)))

    def _changes(self, after: int, to: int) -> Bag:
        return _bag(read_changes(plan_changes(self.lake.observer, self.lake.lake, self.table_id, after, to, net=False)))


def _bag(table: pa.Table) -> Bag:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


SEEDS = int(os.environ.get("RUNNEL_SEEDS", "20" if os.environ.get("RUNNEL_LAKE_FULL") else "2"))


@pytest.mark.parametrize(
    ("seed", "encrypted"),
    [pytest.param(seed, seed % 2 == 1, marks=pytest.mark.slow if seed else ()) for seed in range(SEEDS)],
)
def test_random_histories_read_the_same_after_maintenance(
    dsn: str, data_path: str, duck: Clients, seed: int, encrypted: bool
) -> None:
    with new_lake(dsn, data_path, encrypted=encrypted) as lake:
        check_random_history(lake, duck(), random.Random(seed))


def check_random_history(lake: Writer, client: Duck, choice: random.Random, tasks: Tasks | None = None) -> None:
    """Some steps by DuckDB, then maintenance, three times."""
    table = new_table(lake)
    for _ in range(3):
        for _ in range(7):
            _step(choice, client)
        memory = Memory(lake, client, table.id)
        report = maintain(lake.conn, lake.observer, lake.lake, EAGER, tasks=tasks)
        assert report.skipped == {}
        assert_healthy(lake.observer)
        assert_counts_right(client, "t")
        memory.check()
        rest = client.value("SELECT count(*) FROM ducklake_list_files('lake', 't') WHERE delete_file IS NOT NULL")
        assert rest == 0
    again = maintain(lake.conn, lake.observer, lake.lake, EAGER, tasks=tasks)
    assert not again.tables


def _step(choice: random.Random, client: Duck) -> None:
    start = choice.randrange(1000)
    count = choice.choice([1, 3, 30])
    match choice.choices(["insert", "delete", "update", "alter", "all"], [8, 4, 3, 1, 0.5])[0]:
        case "insert":
            rows = ", ".join(f"({id}, 'v{id}')" for id in range(start, start + count))
            client.run(f"INSERT INTO t (id, name) VALUES {rows}")
        case "delete":
            client.run(f"DELETE FROM t WHERE id % {choice.choice([2, 7, 40])} = {choice.randrange(2)}")
        case "update":
            client.run(f"UPDATE t SET name = name || '!' WHERE id % {choice.choice([3, 20])} = 1")
        case "alter":
            names = [row[0] for row in client.rows("DESCRIBE t")]
            if "extra" in names:
                client.run("ALTER TABLE t DROP COLUMN extra")
            else:
                client.run(f"ALTER TABLE t ADD COLUMN extra DOUBLE DEFAULT {choice.choice(['NULL', '0.5'])}")
        case _:
            client.run("DELETE FROM t")


def test_small_files_become_one_and_the_old_ones_go_after_a_while(lake: Writer, duck: Clients) -> None:
    table = new_table(lake)
    for i in range(12):
        append(lake, table, numbers(i * 10, i * 10 + 10))
    delete(lake, table, live(lake, table)[3], [0, 1, 2])
    before = set(Path(table.path).iterdir())
    client = duck()
    report = maintain(lake.conn, lake.observer, lake.lake, Settings())
    assert (report.merged_files, report.new_files, report.removed_files) == (12, 2, 0)
    assert len(live(lake, table)) == 1
    # Readers of older catalogs still find their files.
    assert before <= set(Path(table.path).iterdir())
    assert client.rows("SELECT count(*), sum(id), count(DISTINCT rowid) FROM t") == [(117, sum(range(120)) - 93, 117)]
    report = maintain(lake.conn, lake.observer, lake.lake, Settings(grace=NOW))
    assert report.removed_files == len(before)
    assert not before & set(Path(table.path).iterdir())
    assert client.rows("SELECT count(*), sum(id) FROM t") == [(117, sum(range(120)) - 93)]
    assert len(client.at("t", head(lake.observer, lake.lake) - 2)) == 120
    # DuckDB goes on from there.
    client.run("UPDATE t SET name = 'x' WHERE id = 5").run("DELETE FROM t WHERE id = 6")
    client.run("INSERT INTO t VALUES (1000, 'new')")
    assert client.rows("SELECT count(*), max(id), count(DISTINCT rowid) FROM t") == [(117, 1000, 117)]
    for call in ("ducklake_flush_inlined_data", "ducklake_rewrite_data_files", "ducklake_merge_adjacent_files"):
        client.run(f"CALL {call}('lake')")
    client.run("CALL ducklake_expire_snapshots('lake', older_than => now())")
    client.run("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    assert client.rows("SELECT count(*), max(id), count(DISTINCT rowid) FROM t") == [(117, 1000, 117)]


def test_a_merged_file_is_deleted_from_and_ended(lake: Writer, duck: Clients) -> None:
    """DuckDB tells the right snapshot of each deletion, also from a file whose rows are of several."""
    table, client = new_table(lake), duck()
    for i in range(3):
        append(lake, table, numbers(i * 3, i * 3 + 3))
    maintain(lake.conn, lake.observer, lake.lake, EAGER)
    (file,) = live(lake, table)
    assert file.partial_max is not None
    one = delete(lake, table, file, [0, 4])
    two = delete(lake, table, file, [8])
    with lake.commit() as draft:
        end_data_file(draft, table, file.id)
    three = draft.id
    gone = {one: {0, 4}, two: {8}, three: {1, 2, 3, 5, 6, 7}}
    for n, ids in gone.items():
        assert set(client.changes("t", n, n, "snapshot_id, id, change_type")) == {(n, id, "delete") for id in ids}
    everything = client.changes("t", one, three, "snapshot_id, id, change_type")
    assert sorted(everything) == sorted((n, id, "delete") for n, ids in gone.items() for id in ids)


def test_rows_that_no_snapshot_shows_are_not_kept(lake: Writer, duck: Clients) -> None:
    table, client = new_table(lake), duck()
    append(lake, table, numbers(0, 100))
    delete(lake, table, live(lake, table)[0], range(50))
    append(lake, table, numbers(200, 210))
    client.run("CALL ducklake_expire_snapshots('lake', older_than => now())")
    report = maintain(lake.conn, lake.observer, lake.lake, EAGER)
    assert report.new_files == 1
    assert client.rows("SELECT count(*), min(id), min(rowid) FROM t") == [(60, 50, 50)]


def test_partitions_stay_apart(lake: Writer, duck: Clients) -> None:
    client = duck()
    client.run("CALL lake.set_option('data_inlining_row_limit', 0)")
    client.run("CREATE TABLE t (id BIGINT, region VARCHAR)").run("ALTER TABLE t SET PARTITIONED BY (region)")
    for i in range(4):
        client.run(f"INSERT INTO t VALUES ({i}, 'a/b'), ({i}, NULL)")
    assert maintain(lake.conn, lake.observer, lake.lake, EAGER).merged_files == 8
    values = "SELECT partition_value FROM ducklake.ducklake_file_partition_value ORDER BY 1"
    assert lake.observer.execute(values.encode()).fetchall() == [("a/b",), (None,)]
    assert client.rows("SELECT count(*), sum(id) FROM t WHERE region = 'a/b'") == [(4, 6)]
    client.run("INSERT INTO t VALUES (9, 'a/b')").run("DELETE FROM t WHERE id = 2")
    assert client.rows("SELECT count(*), sum(id) FROM t WHERE region IS NULL") == [(3, 4)]


def test_types_that_only_duckdb_writes_are_left_to_it(lake: Writer, duck: Clients) -> None:
    client = duck()
    client.run("CALL lake.set_option('data_inlining_row_limit', 0)")
    client.run("CREATE TABLE t (i INTERVAL, h HUGEINT)").run("CREATE TABLE u (u UUID[])")
    for _ in range(3):
        client.run("INSERT INTO t VALUES (INTERVAL 1 DAY, 5)").run("INSERT INTO u VALUES ([uuid()])")
    report = maintain(lake.conn, lake.observer, lake.lake, EAGER)
    assert (report.merged_files, report.skipped) == (0, {})
    assert client.rows("SELECT count(*) FROM t WHERE i = INTERVAL 1 DAY") == [(3,)]


def test_structs_in_the_catalog_are_written_to_files_as_they_were_given(lake: Writer, duck: Clients) -> None:
    client = duck()
    client.run("CALL lake.set_option('data_inlining_row_limit', 100)")
    client.run("CREATE TABLE t (id BIGINT, s STRUCT(v VARCHAR, d DATE, b BLOB, l VARCHAR[]))")
    client.run(
        "INSERT INTO t VALUES (1, {'v': 'it''s a \\', 'd': DATE '2020-01-02', 'b': '\\x00,'::BLOB,"
        " 'l': ['q]', 'it''s']})"
    )
    maintain(lake.conn, lake.observer, lake.lake, EAGER)
    # DuckDB cannot read them as long as they are in the catalog; from a file it can.
    given = {"v": "it's a \\", "d": dt.date(2020, 1, 2), "b": b"\x00,", "l": ["q]", "it's"]}
    assert duck().rows("SELECT id, s FROM t") == [(1, given)]


def test_unknown_files_go_when_they_are_old(lake: Writer, duck: Clients) -> None:
    table, client = new_table(lake), duck()
    append(lake, table, numbers(0, 10))
    client.run("INSERT INTO t SELECT range, 'x' FROM range(100)").run("DELETE FROM t WHERE id = 5")
    folder = Path(table.path)
    kept = set(folder.iterdir())
    for name in ("ducklake-orphan.parquet", "ducklake-waiting.parquet", ".ducklake-x.parquet.1.part", "readme.txt"):
        (folder / name).write_bytes(b"x")
    quiet = Settings(min_files=1000, deleted_share=2, flush_rows=10**9, orphan_grace=dt.timedelta(hours=1))
    assert maintain(lake.conn, lake.observer, lake.lake, quiet).removed_orphans == 0
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    pending = [f"{table.path}ducklake-waiting.parquet"]
    report = maintain(lake.conn, lake.observer, lake.lake, quiet, pending=pending)
    assert report.removed_orphans == 2
    assert set(folder.iterdir()) == kept | {folder / "ducklake-waiting.parquet", folder / "readme.txt"}


def test_one_maintenance_at_a_time_and_what_a_killed_one_left(lake: Writer, dsn: str) -> None:
    table = new_table(lake)
    for i in range(3):
        append(lake, table, numbers(i * 10, i * 10 + 10))
    left = Path(table.path) / file_name("moved-delete")
    left.write_bytes(b"x")
    uncommitted = Path(table.path) / file_name()
    uncommitted.write_bytes(b"x")
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as other:
        with alone(one, lake.lake) as first, alone(other, lake.lake) as second:
            assert (first, second) == (True, False)
            assert maintain(lake.conn, lake.observer, lake.lake, EAGER).skipped.keys() == {"*"}
        with alone(other, lake.lake) as again:
            assert again
    report = maintain(lake.conn, lake.observer, lake.lake, Settings(min_files=2), stopping=lambda: True)
    assert (report.tables, left.exists()) == ([], True)
    report = maintain(lake.conn, lake.observer, lake.lake, Settings(min_files=2))
    assert (report.merged_files, report.removed_orphans) == (3, 1)
    assert not left.exists()
    assert uncommitted.exists()


def test_an_object_store_is_maintained_too(dsn: str, s3: S3, bucket: str) -> None:
    with new_lake(dsn, bucket) as made:
        lake = Writer(type(made.lake)(**{**_fields(made.lake), "options": s3.options}), made.conn, made.observer)
        table = new_table(lake)
        for i in range(5):
            append(lake, table, numbers(i * 10, i * 10 + 10))
        report = maintain(lake.conn, lake.observer, lake.lake, EAGER)
        assert (report.merged_files, report.removed_files) == (5, 5)
        assert len(s3.files(bucket)) == 1
        with Duck(dsn, s3=s3) as client:
            assert client.rows("SELECT count(*), sum(id) FROM t") == [(50, sum(range(50)))]


def _fields(lake: Any) -> dict[str, Any]:
    return {name: getattr(lake, name) for name in ("name", "schema", "data_path", "encrypted", "dsn")}
