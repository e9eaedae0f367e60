"""Compaction by a client moves rows between files, and is no change for anybody."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import runnel
from runnel.http.place import HttpPlace
from runnel.http.server import HttpServer
from tests.iceberg.clients import catalog, ducks
from tests.iceberg.comparing import assert_same
from tests.iceberg.handmade import Hand
from tests.lake.duck import Duck
from tests.lake.rows import comparable

Check = Callable[..., None]

COUNTED = "SELECT kind, count(*) AS n, sum(id) AS s FROM lake.events GROUP BY 1"
LISTED = "SELECT id, kind FROM lake.events WHERE id % 3 = 0"


@pytest.fixture
def lake(duck: Callable[..., Duck], data_path: str, client: runnel.Client, db: psycopg.Connection[Any]) -> Duck:
    """Several files, one with deletes, and two stream tables over them that are up to date."""
    writer = duck(data_path)
    writer.run("SET python_enable_replacements = false").run("CALL lake.set_option('data_inlining_row_limit', 0)")
    writer.run("CREATE TABLE events (id BIGINT, kind VARCHAR)")
    for first in (0, 100, 200):
        writer.run(f"INSERT INTO events SELECT i, 'k' || (i % 5) FROM range({first}, {first + 100}) r(i)")
    writer.run("DELETE FROM events WHERE id % 11 = 0")
    # Rows that are in no file yet, one of them gone.
    writer.run("CALL lake.set_option('data_inlining_row_limit', 10)")
    writer.run("INSERT INTO events SELECT i, 'in' FROM range(300, 306) r(i)").run("DELETE FROM events WHERE id = 302")
    db.execute("SELECT pgtrickle.attach_ducklake('lake', catalog_schema => 'ducklake')")
    client.create_stream_table("counted", COUNTED, schedule="100ms")
    client.create_stream_table("listed", LISTED, schedule="100ms")
    until(lambda: followed(db, writer))
    return writer


@pytest.fixture
def token(http: HttpServer, tmp_path: Path) -> str:
    return HttpPlace(tmp_path / "http").token()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def followed(db: psycopg.Connection[Any], lake: Duck) -> bool:
    """Whether all stream tables have seen the newest snapshot."""
    found = db.execute("SELECT frontier -> 'ducklake:lake.main.events' FROM pgtrickle.pgt_stream_tables")
    return {int(row[0]) for row in found.fetchall()} == {lake.head()}


def refreshes(db: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return db.execute(
        "SELECT pgt_name, r.refresh_id, r.action FROM pgtrickle.pgt_stream_tables,"
        " pgtrickle.get_refresh_history(pgt_name) r ORDER BY 1, 2"
    ).fetchall()


def whole(http: HttpServer, warehouse: str) -> pa.Table:
    """All rows as one file would have them; version 3 keeps the ids of rows."""
    table = (
        catalog(http, warehouse)
        .load_table("main.events")
        .scan()
        .to_arrow()
        .cast(pa.schema([("id", pa.int64()), ("kind", pa.string())]))
    )
    if warehouse == "lake@v2":
        return table
    with ducks(http) as ice:
        ids = dict(ice.execute("SELECT id, _row_id FROM ice.main.events").fetchall())
    return table.append_column("_ducklake_internal_row_id", pa.array([ids[i] for i in table["id"].to_pylist()]))


@pytest.mark.slow
@pytest.mark.parametrize("warehouse", ["lake@v2", "lake"])
def test_compaction_is_no_change_for_anybody(
    warehouse: str,
    lake: Duck,
    client: runnel.Client,
    check: Check,
    db: psycopg.Connection[Any],
    http: HttpServer,
    token: str,
) -> None:
    hand = Hand(http, token, "events", warehouse)
    before, known = refreshes(db), Counter(lake.rows("SELECT * FROM events"))
    ids = Counter(lake.rows("SELECT rowid, id FROM events"))
    answer = hand.replace(hand.data_file(whole(http, warehouse)))
    assert answer.status_code == 200, answer.text
    assert len(lake.rows("SELECT * FROM ducklake_list_files('lake', 'events')")) == 1
    assert Counter(lake.rows("SELECT * FROM events")) == known
    if warehouse == "lake":
        assert Counter(lake.rows("SELECT rowid, id FROM events")) == ids
    # Stream tables have looked, and had nothing to do.
    until(lambda: followed(db, lake))
    assert refreshes(db) == before
    # DuckDB's own feed tells of rewritten rows, also of its own rewriting: each as often gone as come.
    net: Counter[Any] = Counter()
    at = lake.head()
    for kind, *row in lake.changes("events", at, at, "change_type, id, kind"):
        net[tuple(row)] += 1 if kind in ("insert", "update_postimage") else -1
    assert not +net and not -net
    # What comes after it is a change again, for all.
    lake.run("DELETE FROM events WHERE id < 20")
    check("counted", "listed")
    appended = hand.append(hand.data_file(pa.table({"id": pa.array([1000], pa.int64()), "kind": ["late"]})))
    assert appended.status_code == 200, appended.text
    check("counted", "listed")
    assert {action for *_, action in refreshes(db)} == {"INITIAL", "DIFFERENTIAL"}
    for version in ("lake", "lake@v2"):
        table = catalog(http, version).load_table("main.events")
        with ducks(http, version) as reader:
            listed = [each.snapshot_id for each in table.metadata.snapshots]
            assert assert_same(lake, table, reader, "events", listed, lambda where=version: where) >= 6


@pytest.mark.slow
def test_a_replacement_of_other_rows_is_a_change(
    lake: Duck, client: runnel.Client, check: Check, db: psycopg.Connection[Any], http: HttpServer, token: str
) -> None:
    """What a client calls compaction and is none."""
    hand = Hand(http, token, "events")
    rows = whole(http, "lake@v2")
    assert hand.replace(hand.data_file(rows.slice(5))).status_code == 200
    check("counted", "listed")
    assert lake.rows("SELECT count(*) FROM events") == [(rows.num_rows - 5,)]
    other = rows.slice(5).set_column(0, "id", pa.array(range(5000, 5000 + rows.num_rows - 5), pa.int64()))
    assert hand.replace(hand.data_file(other)).status_code == 200
    assert lake.rows("SELECT min(id) FROM events") == [(5000,)]
    check("counted", "listed")
    assert db.execute("SELECT min(id) FROM listed").fetchone() == (5001,)


@pytest.mark.slow
def test_compaction_loses_no_race(lake: Duck, check: Check, http: HttpServer, token: str) -> None:
    hand = Hand(http, token, "events")
    rows, at = whole(http, "lake@v2"), hand.metadata()["current-snapshot-id"]
    must = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": at}]
    updates = hand.snapshot([hand.manifest(hand.data_file(rows))], "replace")
    lake.run("DELETE FROM events WHERE id = 1").run("INSERT INTO events VALUES (7777, 'new')")
    wanted = Counter(comparable(row) for row in lake.rows("SELECT * FROM events"))
    answer = hand.commit(*updates, requirements=must)
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "CommitFailedException")
    assert Counter(comparable(row) for row in lake.rows("SELECT * FROM events")) == wanted
    assert hand.replace(hand.data_file(whole(http, "lake@v2"))).status_code == 200
    assert Counter(comparable(row) for row in lake.rows("SELECT * FROM events")) == wanted
    check("counted", "listed")
