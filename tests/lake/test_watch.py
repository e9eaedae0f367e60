"""A lake watched by stream tables over its own catalog: they follow DuckDB, and leave it alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from typer.testing import CliRunner

import runnel
from runnel.cli.main import app
from runnel.errors import RunnelError
from runnel.lake.watch import TABLES, Limits
from tests.conftest import running_engine
from tests.lake.duck import Duck

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = [f"lake_watch.{table.name}" for table in TABLES]
CAPTURED = """
SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relname LIKE 'ducklake\\_%' AND t.tgname ~ '^pgtrickle_[0-9]'
"""
SECONDS = 120.0


@pytest.fixture
def engine(dsn: str, spark: SparkSession, tmp_path: Path) -> Iterator[runnel.Engine]:
    """An engine with a lake."""
    with running_engine(dsn, spark, home=tmp_path) as started:
        yield started


def rows(client: runnel.Client, table: str) -> list[dict[str, Any]]:
    """A watch table, refreshed."""
    client.refresh(f"lake_watch.{table}")
    return list(client.table(f"lake_watch.{table}").arrow().to_pylist())


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_the_watch_follows_whoever_writes(
    client: runnel.Client, dsn: str, db: psycopg.Connection, duck: Callable[..., Duck], check: Callable[..., None]
) -> None:
    def cli(*args: str) -> str:
        result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["lake", "watch", *args, "--dsn", dsn])
        assert result.exit_code == 0, result.output
        return result.output

    said = cli("--too-many", "4", "--every", "1s")
    assert all(f"{name}:" in said for name in NAMES)
    # Each is maintained by deltas: none reads the clock, or is recomputed every period.
    assert {each.effective_mode for each in client.status()} == {"DIFFERENTIAL"}
    lake = duck()
    lake.run("CREATE TABLE clicks AS SELECT range AS id FROM range(1000)")
    for _ in range(4):
        lake.run("INSERT INTO clicks SELECT range FROM range(1000)")
    lake.run("DELETE FROM clicks WHERE id % 4 = 0")
    (files,) = rows(client, "files_per_table")
    assert (files["table_name"], files["files"], files["small_files"], files["rows"]) == ("clicks", 5, 5, 5000)
    assert files["bytes"] > 0 and files["small_percent"] == 100
    (deletes,) = rows(client, "deletes_waiting")
    assert (deletes["table_name"], deletes["deleted_rows"]) == ("clicks", 1250)
    # Nobody has to refresh it: the alert comes and goes with the schedule.
    until(
        lambda: [r["small_files"] for r in client.table("lake_watch.too_many_small_files").arrow().to_pylist()] == [5]
    )
    assert sum(row["snapshots"] for row in rows(client, "snapshots_per_minute")) == lake.head() + 1
    check(*NAMES)

    client.maintain_lake()
    until(lambda: client.table("lake_watch.too_many_small_files").arrow().num_rows == 0)
    lake.run("CALL ducklake_rewrite_data_files('lake', 'clicks', delete_threshold => 0.1)")
    assert rows(client, "deletes_waiting") == []
    lake.run("BEGIN").run("INSERT INTO clicks VALUES (7)").run(
        "CALL lake.set_commit_message('Ann', 'a \"quoted:9\" word')"
    )
    lake.run("COMMIT")
    db.execute("CREATE TABLE orders (id int); INSERT INTO orders SELECT generate_series(1, 10)")
    client.create_stream_table("doubled", "SELECT id * 2 AS twice FROM orders", schedule="1s", sink="ducklake")
    (lag,) = rows(client, "refresh_to_snapshot")
    assert (lag["stream_table"], lag["snapshots"], lag["rows"]) == ("doubled", 1, 10)
    assert 0 <= lag["average_ms"] <= lag["longest_ms"] < 60_000
    wrote = {(row["writer"], row["did"], row["table_name"]) for row in rows(client, "who_wrote_what")}
    assert ("unnamed client", "deleted_from_table", "clicks") in wrote
    assert ("Ann", "inlined_insert", "clicks") in wrote
    assert ("stream table doubled", "inserted_into_table", "doubled__rows") in wrote
    check(*NAMES)

    client.watch_lake(limits=Limits(small_bytes=1, small_files=1))
    assert {row["small_files"] for row in rows(client, "files_per_table")} == {0}
    assert "6 stream tables dropped" in cli("--remove")
    assert [each.name for each in client.status()] == ["doubled"]
    assert db.execute("SELECT to_regnamespace('lake_watch')").fetchone() == (None,)
    until(lambda: db.execute(CAPTURED).fetchone() == (0,))
    assert "not watched" in cli("--remove")


@pytest.mark.slow
def test_an_idle_lake_comes_to_rest(client: runnel.Client, db: psycopg.Connection, duck: Callable[..., Duck]) -> None:
    db.execute("CREATE TABLE orders (id int); INSERT INTO orders SELECT generate_series(1, 10)")
    client.create_stream_table("doubled", "SELECT id * 2 AS twice FROM orders", schedule="1s", sink="ducklake")
    client.watch_lake(schedule="1s")
    duck().run("CREATE TABLE clicks AS SELECT range AS id FROM range(100)")
    db.execute("INSERT INTO orders VALUES (11)")
    shown = "SELECT snapshots FROM lake_watch.refresh_to_snapshot WHERE snapshots = 2"
    until(lambda: db.execute(shown).fetchone() == (2,))
    until(lambda: all(each.pending_changes == 0 for each in client.status()))

    def done() -> Any:
        return db.execute(
            "SELECT (SELECT count(*) FROM pgtrickle.pgt_refresh_history), "
            "(SELECT max(snapshot_id) FROM ducklake.ducklake_snapshot)"
        ).fetchone()

    time.sleep(1.5)
    before = done()
    time.sleep(5)
    assert done() == before


@pytest.mark.slow
def test_a_watch_table_is_not_published_to_the_lake_it_watches(client: runnel.Client, db: psycopg.Connection) -> None:
    client.watch_lake()
    for name in ("snapshots_per_minute", "too_many_small_files"):
        with pytest.raises(RunnelError, match="for ever"):
            client.alter_stream_table(f"lake_watch.{name}", sink="ducklake")
    with pytest.raises(RunnelError, match="for ever"):
        client.create_stream_table("mine", "SELECT minute FROM lake_watch.snapshots_per_minute", sink="ducklake")
    assert db.execute("SELECT count(*) FROM pgtrickle.pgt_sinks WHERE sink <> 'none'").fetchone() == (0,)
    assert db.execute("SELECT to_regclass('mine')").fetchone() == (None,)
    with pytest.raises(RunnelError, match="no lake sea"):
        client.watch_lake("sea")


@pytest.mark.slow
def test_a_publication_in_the_same_transaction_counts_once(
    client: runnel.Client, db: psycopg.Connection, check: Callable[..., None]
) -> None:
    """The publication changes the catalog in the middle of a refresh of who reads both."""
    db.execute("CREATE TABLE orders (id int)")
    client.create_stream_table("published", "SELECT id FROM orders", schedule="1h", sink="ducklake")
    client.create_stream_table("seen", "SELECT count(*) AS n FROM ducklake.ducklake_snapshot", schedule="1h")
    client.create_stream_table("both", "SELECT p.id, s.n FROM published p CROSS JOIN seen s", schedule="1h")
    for number in range(3):
        db.execute("INSERT INTO orders VALUES (%s)", (number,))
        client.refresh("both")
        check("both", "seen", "published")


@pytest.mark.slow
def test_what_duckdb_does_to_the_catalog_is_followed(
    client: runnel.Client, db: psycopg.Connection, duck: Callable[..., Duck], check: Callable[..., None]
) -> None:
    """Tables of inlined rows come and go, and a newer format adds columns."""
    client.watch_lake(schedule="1h")
    lake = duck()
    lake.run("CREATE TABLE small (id int)").run("INSERT INTO small VALUES (1), (2)")
    lake.run("ALTER TABLE small ADD COLUMN word text").run("INSERT INTO small VALUES (3, 'x')")
    lake.run("DELETE FROM small WHERE id = 1")
    check(*NAMES)
    lake.run("CALL ducklake_flush_inlined_data('lake')")
    lake.run("ALTER TABLE small RENAME TO tiny").run("CREATE SCHEMA other").run("CREATE TABLE other.t (a int)")
    for table in ("data_file", "delete_file", "snapshot_changes"):
        db.execute(f"ALTER TABLE ducklake.ducklake_{table} ADD COLUMN of_tomorrow text DEFAULT 'x'".encode())
        db.execute(f"ALTER TABLE ducklake.ducklake_{table} DROP COLUMN of_tomorrow".encode())
    lake.run("INSERT INTO tiny SELECT range, 'y' FROM range(100)").run("DROP TABLE other.t").run("DROP SCHEMA other")
    check(*NAMES)
    lake.run("CALL ducklake_expire_snapshots('lake', older_than => now())")
    check(*NAMES)
    assert [row["table_name"] for row in rows(client, "files_per_table")] == ["tiny"]
    assert {each.status for each in client.status()} == {"ACTIVE"}


@pytest.mark.slow
def test_commits_go_on_while_the_watch_comes_and_goes(client: runnel.Client, duck: Callable[..., Duck]) -> None:
    clients = [duck() for _ in range(2)]
    for number, each in enumerate(clients):
        each.run("SET ducklake_max_retry_count = 1000")  # they are in each other's way
        each.run(f"CREATE TABLE t{number} AS SELECT range AS id FROM range(100)")
    ended, errors, longest, commits = threading.Event(), list[Exception](), [0.0, 0.0], [0, 0]

    def write(number: int) -> None:
        try:
            while not ended.is_set():
                began = time.monotonic()
                clients[number].run(f"INSERT INTO t{number} SELECT range FROM range(100)")
                longest[number] = max(longest[number], time.monotonic() - began)
                commits[number] += 1
        except Exception as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(3):
            client.watch_lake(schedule="1s")
            client.unwatch_lake()
    finally:
        ended.set()
        for writer in writers:
            writer.join()
    assert errors == []
    assert min(commits) > 5 and max(longest) < 30, (commits, longest)
