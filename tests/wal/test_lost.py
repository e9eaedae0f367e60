"""Slots that go away, and slots that nobody reads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import runnel
from runnel.sources.postgres.wal import slot
from tests.conftest import running_engine
from tests.wal.conftest import Captured, drop_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Check = Callable[..., None]


def test_a_slot_is_dropped(
    dsn: str, db: psycopg.Connection, client: runnel.Client, captured: Captured, check: Check
) -> None:
    db.execute("CREATE TABLE src (id int, v int); CREATE TABLE other (id int)")
    client.create_stream_table("summed", "SELECT sum(v) AS s FROM src", schedule="1s", cdc_mode="wal")
    client.create_stream_table("strict", "SELECT count(*) AS n FROM src", schedule="1s", ducklake_expired="error")
    client.create_stream_table("apart", "SELECT id FROM other", schedule="1s", cdc_mode="trigger")
    captured("wal", "src")
    db.execute("INSERT INTO src SELECT i, i FROM generate_series(1, 100) i")
    check("summed", "strict")
    generation = _generation(db)
    drop_slots(db, str(conninfo_to_dict(dsn)["dbname"]))
    db.execute("INSERT INTO src VALUES (1, 1000)")
    _until(lambda: _generation(db) > generation)
    db.execute("UPDATE src SET v = v + 1 WHERE id < 50")
    check("summed", "apart")
    actions = db.execute(
        "SELECT pgt_name, action FROM pgtrickle.pgt_refresh_history JOIN pgtrickle.pgt_stream_tables "
        "USING (pgt_id) WHERE action NOT IN ('INITIAL', 'DIFFERENTIAL')"
    ).fetchall()
    assert set(actions) == {("summed", "FULL")}
    ask = "SELECT status = 'ERROR' AND last_error LIKE %s FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'strict'"
    _until(lambda: db.execute(ask, ("%were lost: replication slot % is gone%",)).fetchone() == (True,))
    health = db.execute(
        "SELECT severity, detail FROM pgtrickle.health_check() WHERE check_name = 'wal_capture'"
    ).fetchone()
    assert health is not None and health[0] == "WARN" and "is gone" in health[1]
    db.execute("SELECT pgtrickle.resume_stream_table('strict')")
    check("strict")


@pytest.mark.slow
def test_a_slot_is_invalidated_while_no_engine_runs(
    dsn: str, db: psycopg.Connection, spark: SparkSession, captured: Captured
) -> None:
    db.execute("CREATE TABLE src (id int, v int)")
    with running_engine(dsn, spark), contextlib.closing(runnel.connect(dsn)) as client:
        client.create_stream_table("summed", "SELECT sum(v) AS s FROM src", schedule="1s", cdc_mode="wal")
        captured("wal", "src")
    status = "SELECT wal_status FROM pg_replication_slots WHERE database = current_database()"
    _keep_wal(db, "1MB")
    try:
        for number in range(8):
            db.execute("INSERT INTO src VALUES (%s, 1)", (number,))
            db.execute("SELECT pg_switch_wal()")
        db.execute("CHECKPOINT")
        _until(lambda: db.execute(status).fetchone() == ("lost",))
    finally:
        _keep_wal(db, "-1")
    with running_engine(dsn, spark), contextlib.closing(runnel.connect(dsn)) as client:
        _until(lambda: db.execute(status).fetchone() == ("reserved",))
        captured("wal", "src")
        client.refresh("summed")
        assert client.verify("summed").ok
        assert db.execute("SELECT s FROM summed").fetchone() == (8,)
        told = db.execute("SELECT reason FROM pgtrickle.pgt_refresh_history WHERE action = 'FULL'").fetchall()
        assert len(told) == 1 and "was invalidated: the server has removed WAL" in told[0][0], told
        db.execute("INSERT INTO src VALUES (9, 1)")
        client.refresh("summed")
        assert db.execute("SELECT s FROM summed").fetchone() == (9,)


def _keep_wal(db: psycopg.Connection, size: str) -> None:
    """How much WAL a server keeps for its slots."""
    db.execute(f"ALTER SYSTEM SET max_slot_wal_keep_size = '{size}'".encode())
    db.execute("SELECT pg_reload_conf()")
    _until(lambda: db.execute("SHOW max_slot_wal_keep_size").fetchone() == (size,))


def test_a_server_that_cannot_be_decoded_any_more(
    dsn: str, db: psycopg.Connection, spark: SparkSession, captured: Captured
) -> None:
    db.execute("CREATE TABLE src (id int, v int)")
    with running_engine(dsn, spark), contextlib.closing(runnel.connect(dsn)) as client:
        client.create_stream_table("summed", "SELECT sum(v) AS s FROM src", schedule="1s", cdc_mode="wal")
        captured("wal", "src")
    db.execute("INSERT INTO src VALUES (1, 1)")
    state = slot.look(db)
    assert state is not None and state.lost is None and slot.obstacle(db) is None
    slot.give_up(db, state, [_oid(db, "src")])
    assert slot.look(db) is None
    # A wish is a wish; here the server still could.
    db.execute("UPDATE pgtrickle.pgt_stream_tables SET cdc_mode = 'trigger'")
    db.execute("INSERT INTO src VALUES (2, 2)")
    with running_engine(dsn, spark), contextlib.closing(runnel.connect(dsn)) as client:
        assert client.verify("summed").ok
        assert db.execute("SELECT s FROM summed").fetchone() == (3,)
        assert db.execute("SELECT capture FROM pgtrickle.pgt_change_tracking").fetchone() == ("trigger",)


def _oid(db: psycopg.Connection, name: str) -> int:
    row = db.execute("SELECT %s::regclass::oid::int8", (name,)).fetchone()
    assert row is not None
    return int(row[0])


def test_the_publication_is_dropped(
    db: psycopg.Connection, client: runnel.Client, captured: Captured, check: Check
) -> None:
    db.execute("CREATE TABLE src (id int, v int)")
    client.create_stream_table("summed", "SELECT sum(v) AS s FROM src", schedule="1s", cdc_mode="wal")
    captured("wal", "src")
    db.execute("INSERT INTO src VALUES (1, 1)")
    check("summed")
    db.execute("DROP PUBLICATION runnel")
    db.execute("INSERT INTO src VALUES (2, 2)")
    _until(lambda: db.execute("SELECT count(*) FROM pg_publication_tables WHERE pubname = 'runnel'").fetchone() == (1,))
    db.execute("INSERT INTO src VALUES (3, 3)")
    check("summed")
    assert db.execute("SELECT s FROM summed").fetchone() == (6,)


def test_a_slot_that_holds_back_much_is_told(db: psycopg.Connection, client: runnel.Client, captured: Captured) -> None:
    db.execute("CREATE TABLE src (id int, v int)")
    client.create_stream_table("summed", "SELECT sum(v) AS s FROM src", schedule="1s", cdc_mode="wal")
    captured("wal", "src")
    ask = "SELECT severity, detail FROM pgtrickle.health_check() WHERE check_name = 'wal_capture'"
    health = db.execute(ask).fetchone()
    assert health is not None and health[0] == "OK" and "of WAL for replication slot" in health[1]
    db.execute("UPDATE pgtrickle.pgt_wal SET warn_bytes = -1")
    health = db.execute(ask).fetchone()
    assert health is not None and health[0] == "WARN"
    (row,) = db.execute("SELECT cdc_mode, slot_name, lag_bytes, alert FROM pgtrickle.check_cdc_health()").fetchall()
    assert row[0] == "WAL" and row[1].startswith("runnel_") and row[2] >= 0 and row[3] is None


@pytest.mark.slow
def test_all_goes_when_nobody_needs_it(db: psycopg.Connection, client: runnel.Client, captured: Captured) -> None:
    db.execute("CREATE TABLE src (id int PRIMARY KEY, v int); CREATE TABLE other (id int PRIMARY KEY)")
    client.create_stream_table("summed", "SELECT sum(v) AS s FROM src", schedule="1s", cdc_mode="wal")
    client.create_stream_table("counted", "SELECT count(*) AS n FROM other", schedule="1s", cdc_mode="wal")
    captured("wal", "src", "other")
    assert _identities(db) == {("src", "f"), ("other", "f")}
    client.alter_stream_table("counted", cdc_mode="trigger")
    captured("trigger", "other")
    client.drop_stream_table("summed")
    _until(lambda: db.execute("SELECT count(*) FROM pgtrickle.pgt_wal").fetchone() == (0,))
    assert _identities(db) == {("src", "d"), ("other", "d")}
    assert db.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert db.execute(slots).fetchone() == (0,)


def _identities(db: psycopg.Connection) -> set[tuple[str, str]]:
    found = db.execute("SELECT relname, relreplident::text FROM pg_class WHERE relname IN ('src', 'other')")
    return {(name, identity) for name, identity in found}


def _generation(db: psycopg.Connection) -> int:
    row = db.execute("SELECT generation FROM pgtrickle.pgt_wal").fetchone()
    assert row is not None
    return int(row[0])


def _until(true: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)
