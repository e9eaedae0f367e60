"""The change feed: equal to DuckDB's where that is right, silent about compaction, and cheap."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from runnel.lake.format.catalog import find_table, open_lake
from runnel.lake.format.model import Lake
from runnel.lake.read.changes import ChangeSet, Expired, plan_changes, read_changes
from runnel.lake.read.scan import Tally
from tests.lake.duck import Duck
from tests.lake.histories import History
from tests.lake.rows import comparable, from_arrow

SEED = int(os.environ.get("RUNNEL_LAKE_SEED", "1"))
HISTORIES = int(os.environ.get("RUNNEL_LAKE_HISTORIES", "1"))
STEPS = int(os.environ.get("RUNNEL_LAKE_STEPS", "16"))


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


def changes(
    conn: psycopg.Connection[Any], lake: Lake, after: int, to: int, columns: list[str] | None = None, net: bool = True
) -> ChangeSet:
    table = find_table(conn, lake, "main", "t", to)
    assert table is not None
    return plan_changes(conn, lake, table.id, after, to, columns, net=net)


def feed(found: ChangeSet, tally: Tally | None = None) -> Counter[Any]:
    return Counter(from_arrow(read_changes(found, tally)))


def duckdb_feed(client: Duck, first: int, last: int) -> Counter[Any]:
    """DuckDB's own feed in our form: the columns, then rowid, snapshot and weight."""
    rows = client.rows(f"SELECT * FROM lake.table_changes('t', {first}, {last})")
    weights = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
    return Counter(comparable((*data, rowid, moment, weights[kind])) for moment, rowid, kind, *data in rows)


@pytest.mark.parametrize("inline", [0, 10])
@pytest.mark.parametrize("number", range(HISTORIES))
def test_the_feed_is_duckdbs(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str, inline: int, number: int
) -> None:
    client = duck(data_path)
    history = History(client, SEED * 100_000 + number * 10 + inline, inline=inline, calm=True)
    first = client.head()
    for _ in range(STEPS):
        history.step()
    lake = open_lake(conn, "lake", "ducklake")
    last = client.head()
    middle = history.random.randint(first, last)
    for a, b in ((first, last), (first, middle), (middle, last), (last, last)):
        message = f"seed {history.seed}, changes from {a} to {b}\n" + "\n".join(history.log)
        assert feed(changes(conn, lake, a - 1, b, net=False)) == duckdb_feed(client, a, b), message


def test_only_touched_files_are_opened(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(id bigint, k int, v varchar)")
    for part in range(8):
        client.run(f"INSERT INTO t SELECT i, i % 7, 'v' || i FROM range({part * 5000}, {part * 5000 + 5000}) r(i)")
    lake = open_lake(conn, "lake", "ducklake")
    start = client.head()

    def since(before: int) -> tuple[int, int]:
        tally = Tally()
        rows = read_changes(changes(conn, lake, before, client.head()), tally).num_rows
        return rows, tally.files

    assert since(start) == (0, 0)
    client.run("INSERT INTO t SELECT i, 0, 'new' FROM range(100000, 100100) r(i)")
    assert since(start) == (100, 1)
    step = client.head()
    client.run("DELETE FROM t WHERE id BETWEEN 7000 AND 7099")
    # The delete file, and the file that has the rows.
    assert since(step) == (100, 2)
    step = client.head()
    client.run("UPDATE t SET k = 99 WHERE id = 12000")
    rows, files = since(step)
    assert rows == 2 and files <= 2
    step = client.head()
    client.run("INSERT INTO t VALUES (-1, 0, 'inlined')")
    assert since(step) == (1, 0)
    client.run("DELETE FROM t WHERE id = -1")
    # Came and went: no row, and no file.
    assert since(step) == (0, 0)
    step = client.head()
    client.run("DELETE FROM t WHERE id BETWEEN 0 AND 4999")
    # A whole file ended; there is nothing but the file itself to read.
    assert since(step) == (5000, 1)


def test_compaction_and_flushes_are_silent(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(id bigint, v varchar)")
    for part in range(4):
        client.run(f"INSERT INTO t SELECT i, 'v' FROM range({part * 100}, {part * 100 + 100}) r(i)")
    client.run("INSERT INTO t VALUES (1000, 'few')").run("DELETE FROM t WHERE id BETWEEN 30 AND 80")
    client.run("UPDATE t SET v = 'w' WHERE id = 1000").run("DELETE FROM t WHERE id = 150")
    lake = open_lake(conn, "lake", "ducklake")
    start = client.head()
    for call in ("ducklake_flush_inlined_data('lake')", "ducklake_merge_adjacent_files('lake')"):
        before = client.head()
        client.run(f"CALL {call}")
        assert client.head() > before
        assert not feed(changes(conn, lake, before, client.head(), net=False)), call
    before = client.head()
    client.run("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0)")
    assert client.head() > before
    moved = changes(conn, lake, before, client.head(), net=False)
    assert moved.is_empty
    assert not feed(changes(conn, lake, start, client.head(), net=False))
    # What happens around it is still seen, each row once.
    client.run("DELETE FROM t WHERE id = 250").run("INSERT INTO t VALUES (2000, 'x')")
    found = feed(changes(conn, lake, start, client.head()))
    assert Counter((row[0], row[-1]) for row in found) == {(250, -1): 1, (2000, 1): 1}


def test_a_window_whose_snapshots_are_gone_is_refused(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(id bigint)").run("INSERT INTO t SELECT * FROM range(20)")
    start = client.head()
    client.run("INSERT INTO t SELECT * FROM range(20, 40)").run("DELETE FROM t WHERE id < 20")
    last = client.head()
    lake = open_lake(conn, "lake", "ducklake")
    assert sum(feed(changes(conn, lake, start, last)).values()) == 40
    client.run(f"CALL ducklake_expire_snapshots('lake', versions => [{start}])")
    with pytest.raises(Expired, match=f"after snapshot {start - 1} are no longer known"):
        changes(conn, lake, start - 1, last)
    # The snapshot before is gone, but the first one of the window deleted nothing.
    assert sum(feed(changes(conn, lake, start, last - 1)).values()) == 20
    client.run(f"CALL ducklake_expire_snapshots('lake', versions => [{last - 1}])")
    with pytest.raises(Expired):
        changes(conn, lake, last - 1, last)


def test_names_that_look_like_verbs_hide_nothing(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(id bigint)")
    start = client.head()
    client.run("BEGIN").run("INSERT INTO t SELECT * FROM range(20)")
    client.run('CREATE TABLE "x,rewrite_delete:1,""y"(id bigint)').run("COMMIT")
    lake = open_lake(conn, "lake", "ducklake")
    assert sum(feed(changes(conn, lake, start, client.head())).values()) == 20


def test_planning_takes_a_handful_of_queries(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(id bigint, v varchar)")
    for part in range(10):
        client.run(f"INSERT INTO t SELECT i, 'v' FROM range({part * 50}, {part * 50 + 50}) r(i)")
        client.run(f"DELETE FROM t WHERE id = {part * 50}").run(f"INSERT INTO t VALUES ({-part}, 'few')")
    lake = open_lake(conn, "lake", "ducklake")
    texts: list[Any] = []
    execute = psycopg.Cursor.execute
    monkeypatch.setattr(psycopg.Cursor, "execute", lambda *a, **k: (texts.append(a[1]), execute(*a, **k))[1])
    found = plan_changes(conn, lake, 1, 0, client.head())
    assert len(found.files) == 10
    assert len(texts) <= 14
