"""Maintenance of large tables: rows pass in row groups, on the driver and in tasks, and nobody sees a difference."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import runnel
from runnel.errors import RunnelError
from runnel.lake.upkeep.lives import Move, NewFile
from runnel.lake.upkeep.maintain import maintain
from runnel.lake.upkeep.settings import Settings
from runnel.spark.ducklake.upkeep import UpkeepTasks
from runnel.spark.session import Sessions
from tests.lake.duck import Duck
from tests.lake.health import assert_counts_right, assert_healthy
from tests.lake.places import Place
from tests.lake.s3 import S3
from tests.lake.test_maintain import EAGER, Memory, check_random_history, live, new_table, numbers
from tests.lake.writing import Writer, append, delete, new_lake

Clients = Callable[..., Duck]


@pytest.fixture
def lake(dsn: str, data_path: str) -> Iterator[Writer]:
    with new_lake(dsn, data_path) as opened:
        yield opened


@dataclass
class Counted:
    """Spark's tasks for every move, however small, several at once; and what they were asked to do."""

    sessions: Sessions
    threshold: int = 0
    at_once: int = 3
    asked: list[int] = field(default_factory=list)

    def move(self, moves: Sequence[Move]) -> list[list[NewFile]]:
        self.asked.append(len(moves))
        return UpkeepTasks(self.sessions).move(moves)


@pytest.fixture
def tasks(sessions: Sessions) -> Counted:
    return Counted(sessions)


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
def test_rows_that_are_read_for_each_new_file_stay_what_they_are(
    dsn: str, data_path: str, duck: Clients, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.lake.upkeep.lives._FEW", 0)
    with new_lake(dsn, data_path, encrypted=encrypted) as lake:
        check_random_history(lake, duck(), random.Random(17 + encrypted))


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
def test_random_histories_read_the_same_after_maintenance_by_tasks(
    dsn: str, data_path: str, duck: Clients, encrypted: bool, tasks: Counted
) -> None:
    with new_lake(dsn, data_path, encrypted=encrypted) as lake:
        check_random_history(lake, duck(), random.Random(23 + encrypted), tasks)
    assert tasks.asked


def test_tasks_keep_partitions_apart_and_work_side_by_side(lake: Writer, duck: Clients, tasks: Counted) -> None:
    client = duck()
    client.run("CALL lake.set_option('data_inlining_row_limit', 0)")
    client.run("CREATE TABLE t (id BIGINT, region VARCHAR)").run("ALTER TABLE t SET PARTITIONED BY (region)")
    client.run("ALTER TABLE t SET SORTED BY (id DESC)")
    for i in range(4):
        client.run(f"INSERT INTO t VALUES ({i}, 'a/b'), ({i}, NULL), ({i}, 'c'), ({i}, 'd')")
    client.run("DELETE FROM t WHERE id = 1")
    (table_id,) = lake.observer.execute("SELECT table_id FROM ducklake.ducklake_table").fetchone() or ()
    memory = Memory(lake, client, table_id)
    assert maintain(lake.conn, lake.observer, lake.lake, EAGER, tasks=tasks).merged_files == 12
    assert tasks.asked == [3, 1]
    assert_healthy(lake.observer)
    memory.check()
    live_values = (
        "SELECT partition_value, count(*) FROM ducklake.ducklake_file_partition_value "
        "JOIN ducklake.ducklake_data_file USING (data_file_id) WHERE end_snapshot IS NULL GROUP BY 1 ORDER BY 1"
    )
    assert lake.observer.execute(live_values).fetchall() == [("a/b", 1), ("c", 1), ("d", 1), (None, 1)]
    assert client.rows("SELECT count(*), sum(id) FROM t WHERE region = 'a/b'") == [(3, 5)]
    client.run("INSERT INTO t VALUES (9, 'a/b')").run("DELETE FROM t WHERE id = 2")
    assert client.rows("SELECT count(*), sum(id) FROM t WHERE region IS NULL") == [(2, 3)]


def test_few_rows_are_moved_without_tasks(lake: Writer, sessions: Sessions) -> None:
    table = new_table(lake)
    for i in range(4):
        append(lake, table, numbers(i * 10, i * 10 + 10))
    tasks = Counted(sessions, threshold=40)
    assert maintain(lake.conn, lake.observer, lake.lake, EAGER, tasks=tasks).merged_files == 4
    assert tasks.asked == []


def test_tasks_write_to_an_object_store(dsn: str, s3: S3, bucket: str, tasks: Counted) -> None:
    with new_lake(dsn, bucket) as made:
        lake = Writer(replace(made.lake, options=s3.options), made.conn, made.observer)
        table = new_table(lake)
        for i in range(5):
            append(lake, table, numbers(i * 10, i * 10 + 10))
        report = maintain(lake.conn, lake.observer, lake.lake, EAGER, tasks=tasks)
        assert (report.merged_files, report.removed_files, tasks.asked) == (5, 5, [1])
        assert len(s3.files(bucket)) == 1
        with Duck(dsn, s3=s3) as client:
            assert client.rows("SELECT count(*), sum(id) FROM t") == [(50, sum(range(50)))]


def test_what_failing_tasks_have_written_goes(lake: Writer, duck: Clients, tasks: Counted) -> None:
    """One of two moves finds its file gone: the other's new file does not stay either, and the table is left alone."""
    client = duck()
    client.run("CALL lake.set_option('data_inlining_row_limit', 0)")
    client.run("CREATE TABLE t (id BIGINT, part BIGINT)").run("ALTER TABLE t SET PARTITIONED BY (part)")
    for i in range(3):
        client.run(f"INSERT INTO t VALUES ({i}, 0), ({i}, 1)")
    folder = next(Path(lake.lake.data_path).rglob("part=1"))
    hidden = next(folder.glob("*.parquet"))
    aside = hidden.with_suffix(".aside")
    hidden.rename(aside)
    before = set(Path(lake.lake.data_path).rglob("*.parquet"))
    report = maintain(lake.conn, lake.observer, lake.lake, EAGER, tasks=tasks)
    assert "no such file" in report.skipped["main.t"]
    assert set(Path(lake.lake.data_path).rglob("*.parquet")) == before
    aside.rename(hidden)
    assert maintain(lake.conn, lake.observer, lake.lake, EAGER, tasks=tasks).merged_files == 6
    assert client.rows("SELECT count(*), sum(id) FROM t") == [(6, 6)]


def test_a_change_under_the_hands_of_tasks_is_not_lost(
    lake: Writer, dsn: str, tasks: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(lake)
    for i in range(3):
        append(lake, table, numbers(i * 10, i * 10 + 10))
    plain, left = UpkeepTasks.move, [0, 1]

    def disturbed(self: UpkeepTasks, moves: Sequence[Move]) -> list[list[NewFile]]:
        done = plain(self, moves)
        if left:
            with psycopg.connect(dsn, autocommit=True) as conn:
                delete(Writer(lake.lake, conn, lake.observer), table, live(lake, table)[0], [left.pop()])
        return done

    monkeypatch.setattr(UpkeepTasks, "move", disturbed)
    maintain(lake.conn, lake.observer, lake.lake, EAGER, tasks=tasks)
    assert tasks.asked == [1, 1, 1]
    with Duck(dsn) as client:
        assert client.rows("SELECT count(*), min(id) FROM t") == [(28, 2)]
        assert_counts_right(client, "t")
    assert_healthy(lake.observer)


def test_many_inlined_rows_are_flushed_in_portions(
    lake: Writer, duck: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.lake.upkeep.flush.AT_ONCE", 15)
    client = duck()
    table = new_table(lake)
    for i in range(7):
        rows = ", ".join(f"({id}, 'v{id}')" for id in range(i * 8, i * 8 + 8))
        client.run(f"INSERT INTO t VALUES {rows}")
    client.run("DELETE FROM t WHERE id % 5 = 0")
    memory = Memory(lake, client, table.id)
    report = maintain(lake.conn, lake.observer, lake.lake, Settings(min_files=100, deleted_share=2))
    assert report.flushed_rows == 56
    flushes = "SELECT count(*) FROM ducklake.ducklake_snapshot_changes WHERE commit_message LIKE 'flush%'"
    assert lake.observer.execute(flushes).fetchone() == (7,)
    memory.check()
    assert_healthy(lake.observer)


def test_tasks_say_what_went_wrong(sessions: Sessions) -> None:
    from runnel.spark.errands import run_errands

    def errand(number: int) -> int:
        if number:
            raise RunnelError("the second one failed", hint="Try again.")
        return number

    with pytest.raises(RunnelError, match="the second one failed") as caught:
        run_errands(sessions, 2, errand)
    assert caught.value.hint == "Try again."


@pytest.mark.slow
def test_an_engine_maintains_large_tables_by_tasks(
    db: psycopg.Connection[Any], data_path: str, dsn: str, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    plain = UpkeepTasks.move

    def counted(self: UpkeepTasks, moves: Sequence[Move]) -> list[list[NewFile]]:
        asked.append(sum(each.rows for each in moves))
        return plain(self, moves)

    monkeypatch.setattr(UpkeepTasks, "move", counted)
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 50)
    place = Place(dsn, data_path)
    place.attach(db)
    db.execute("CREATE TABLE big AS SELECT i AS id FROM generate_series(1, 40) i")
    client.create_stream_table("b", "SELECT * FROM big", schedule="1h", sink="ducklake")
    for i in range(5):
        db.execute("INSERT INTO big SELECT i FROM generate_series(%s::int, %s::int) i", (i * 40 + 41, i * 40 + 80))
        client.refresh("b")
    db.execute("SELECT pgtrickle.maintain_ducklake('lake')")
    assert asked == [240]
    with place.duck() as duck:
        assert duck.rows("SELECT count(*), sum(id) FROM b") == [(240, sum(range(241)))]
        db.execute("DELETE FROM big WHERE id % 3 = 0")
        client.refresh("b")
        assert duck.rows("SELECT count(*) FROM b") == [(160,)]
    place.check(db)
