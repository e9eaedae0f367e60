"""Change rows leave their buffer when, and only when, nobody will read them again."""

from __future__ import annotations

import psycopg
import pytest

from runnel.catalog import store
from tests.catalog.helpers import changes, oid_of, stream_table


@pytest.fixture
def orders(db: psycopg.Connection) -> int:
    db.execute("CREATE TABLE orders (id int)")
    return oid_of(db, "orders")


def advance_to_now(db: psycopg.Connection, pgt_id: int) -> None:
    row = db.execute("SELECT pg_current_snapshot()::text, now()").fetchone()
    assert row is not None
    store.advance(db, pgt_id, {"postgres": row[0]}, 1, row[1])


def clean(db: psycopg.Connection) -> int:
    row = db.execute("SELECT pgtrickle._capture_cleanup()").fetchone()
    assert row is not None
    return int(row[0])


def test_the_slowest_consumer_decides(db: psycopg.Connection, orders: int) -> None:
    fast, slow = stream_table(db, "fast", "orders", "id"), stream_table(db, "slow", "orders", "id")
    advance_to_now(db, slow)
    advance_to_now(db, fast)
    db.execute("INSERT INTO orders VALUES (1)")
    advance_to_now(db, fast)
    assert clean(db) == 0
    advance_to_now(db, slow)
    db.execute("INSERT INTO orders VALUES (2)")
    assert clean(db) == 1
    assert changes(db, orders) == [(1, 2)]


def test_a_late_commit_survives(db: psycopg.Connection, dsn: str, orders: int) -> None:
    pgt_id = stream_table(db, "st", "orders", "id")
    with psycopg.connect(dsn) as late:
        late.execute("INSERT INTO orders VALUES (1)")
        db.execute("INSERT INTO orders VALUES (2)")
        advance_to_now(db, pgt_id)
        late.commit()
    clean(db)
    pending = db.execute("SELECT pending FROM pgtrickle._pending()").fetchone()
    assert pending == (1,)
    assert (1, 1) in changes(db, orders)


def test_a_build_in_progress_keeps_its_rows(db: psycopg.Connection, dsn: str, orders: int) -> None:
    building = stream_table(db, "building", "orders", "id", status="INITIALIZING")
    ready = stream_table(db, "ready", "orders", "id")
    with psycopg.connect(dsn) as late, psycopg.connect(dsn, autocommit=True) as builder:
        late.execute("INSERT INTO orders VALUES (1)")
        row = builder.execute("SELECT pg_current_snapshot()::text, now()").fetchone()
        assert row is not None
        late.commit()
        advance_to_now(db, ready)
        assert clean(db) == 0, "the build's snapshot does not have this row"
        store.advance(builder, building, {"postgres": row[0]}, 1, row[1])
    assert clean(db) == 0
    advance_to_now(db, building)
    assert clean(db) == 1


def test_an_open_snapshot_keeps_its_rows(db: psycopg.Connection, dsn: str, orders: int) -> None:
    """A rebuild of a populated table reads in a snapshot that no catalog row knows yet."""
    pgt_id = stream_table(db, "st", "orders", "id")
    advance_to_now(db, pgt_id)
    store.set_needs_reinit(db, pgt_id, True)
    with psycopg.connect(dsn) as late, psycopg.connect(dsn) as reader:
        late.execute("INSERT INTO orders VALUES (1)")
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT pg_current_snapshot()")
        late.commit()
        assert clean(db) == 0
    assert clean(db) == 1


def test_no_consumer_means_nothing_is_kept(db: psycopg.Connection, orders: int) -> None:
    pgt_id = stream_table(db, "st", "orders", "id", status="SUSPENDED")
    db.execute("INSERT INTO orders VALUES (1)")
    assert clean(db) == 1, "it was never populated and is not being built"
    advance_to_now(db, pgt_id)
    db.execute("INSERT INTO orders VALUES (2)")
    assert clean(db) == 0, "a suspended table continues where it stopped"
