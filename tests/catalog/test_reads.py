"""Migrations, the functions that only read, and the typed access to the catalog."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from runnel.catalog import migrate as migration
from runnel.catalog import store
from runnel.catalog.claim import claim, holder, release
from runnel.catalog.rows import Dependency, Refresh
from runnel.errors import UserError
from tests.catalog.helpers import capture, changes, oid_of, state_of, stream_table


@pytest.fixture
def st(db: psycopg.Connection) -> int:
    db.execute("CREATE TABLE orders (id int)")
    return stream_table(db, "st", "orders", "id")


def advance_to_now(db: psycopg.Connection, pgt_id: int, version: int = 1) -> None:
    row = db.execute("SELECT pg_current_snapshot()::text, now()").fetchone()
    assert row is not None
    store.advance(db, pgt_id, {"postgres": row[0]}, version, row[1])


def test_migrating_twice_does_nothing(dsn: str, db: psycopg.Connection) -> None:
    assert migration.migrate(dsn) == []
    assert migration.migrate(db, loopback="host=here") == []
    assert db.execute("SELECT value FROM pgtrickle.pgt_settings WHERE key = 'loopback'").fetchone() == ("host=here",)
    recorded = [v for (v,) in db.execute("SELECT version FROM pgtrickle.pgt_migrations ORDER BY 1")]
    assert recorded == [step.version for step in migration.migrations()] == list(range(1, len(recorded) + 1))


def test_a_database_from_the_future_is_refused(dsn: str, db: psycopg.Connection) -> None:
    db.execute("INSERT INTO pgtrickle.pgt_migrations VALUES (9000, 'later')")
    with pytest.raises(UserError, match="newer Runnel"):
        migration.migrate(dsn)


def test_an_old_server_is_refused_by_name(db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "MINIMUM_SERVER", 99)
    with pytest.raises(UserError, match=r"PostgreSQL 1[5-9]\.\d+.* is too old") as caught:
        migration.migrate(db)
    assert caught.value.hint is not None


def test_a_role_without_superuser_rights_can_install(catalog_server: str) -> None:
    with psycopg.connect(f"{catalog_server} dbname=postgres", autocommit=True) as admin:
        admin.execute("CREATE ROLE plain_owner LOGIN")
        admin.execute("CREATE DATABASE plain_db OWNER plain_owner")
    try:
        with psycopg.connect(f"{catalog_server} dbname=plain_db user=plain_owner", autocommit=True) as owner:
            assert migration.migrate(owner) == [step.version for step in migration.migrations()]
            owner.execute("CREATE TABLE t (a int, b int)")
            oid = capture(owner, "t", "a", "b")
            owner.execute("INSERT INTO t VALUES (1, 2)")
            owner.execute("ALTER TABLE t DROP COLUMN b")
            owner.execute("INSERT INTO t VALUES (3)")
            assert changes(owner, oid) == [(0, None, None), (1, 1, 2)]
            owner.execute("SELECT pgtrickle._capture_cleanup()")
            assert claim(owner, host="h", os_pid=7, version="1", spark_master=None)
            notices: list[str | None] = []
            owner.add_notice_handler(lambda said: notices.append(said.message_detail))
            owner.execute("SELECT pgtrickle.refresh_stream_table('x')")
            assert notices == ["the dblink extension is not installed"]
    finally:
        with psycopg.connect(f"{catalog_server} dbname=postgres", autocommit=True) as admin:
            admin.execute("DROP DATABASE plain_db WITH (FORCE)")
            admin.execute("DROP ROLE plain_owner")


def test_version(db: psycopg.Connection) -> None:
    assert db.execute("SELECT pgtrickle.version()").fetchone() == ("9.9.9",)


def test_status_and_staleness(db: psycopg.Connection, st: int) -> None:
    store.advance(db, st, {"postgres": "1:1:"}, 1, datetime.now(UTC) - timedelta(hours=1))
    status = "SELECT name, status, is_populated, pending_changes, staleness FROM pgtrickle.pgt_status()"
    assert db.execute(status).fetchone() == ("public.st", "ACTIVE", True, 0, timedelta(0))
    db.execute("INSERT INTO orders VALUES (1), (2)")
    row = db.execute(status).fetchone()
    assert row is not None and row[3] == 2 and row[4] > timedelta(minutes=59)
    behind = db.execute("SELECT pgtrickle.get_staleness('st')").fetchone()
    assert behind is not None and behind[0] > 3500
    advance_to_now(db, st)
    assert db.execute("SELECT pgtrickle.get_staleness('public.st')").fetchone() == (0.0,)
    with pytest.raises(psycopg.errors.UndefinedTable, match='stream table "nope" does not exist'):
        db.execute("SELECT pgtrickle.get_staleness('nope')")


def test_a_table_above_a_stale_one_is_stale(db: psycopg.Connection, st: int) -> None:
    db.execute("CREATE TABLE other (a int)")
    top = stream_table(db, "top", "other", "a")
    store.replace_dependencies(db, top, [Dependency(
        pgt_id=top, source_relid=oid_of(db, "st"), source_type="STREAM_TABLE", source_name="public.st",
        columns_used=(), column_types=(), source_pgt_id=st)])  # fmt: skip
    advance_to_now(db, st)
    row = db.execute("SELECT pg_current_snapshot()::text, now() - interval '1 minute'").fetchone()
    assert row is not None
    store.advance(db, top, {"postgres": row[0], "stream_tables": {str(st): 1}}, 1, row[1])
    assert db.execute("SELECT pgtrickle.get_staleness('top')").fetchone() == (0.0,)
    db.execute("INSERT INTO orders VALUES (1)")
    behind = db.execute("SELECT pgtrickle.get_staleness('top')").fetchone()
    assert behind is not None and behind[0] >= 60
    tree = db.execute("SELECT tree_line, node_type, depth FROM pgtrickle.dependency_tree()").fetchall()
    assert tree == [
        ("public.top", "stream_table", 0),
        ("└── public.st", "stream_table", 1),
        ("    └── public.orders", "table", 2),
    ]  # fmt: skip


def test_history_and_failures(db: psycopg.Connection, st: int) -> None:
    refresh = Refresh(
        action="DIFFERENTIAL", initiated_by="SCHEDULER", start_time=datetime.now(UTC), changes_read=3,
        rows_inserted=2, rows_deleted=1, timings={"read": 1.5}, spark_jobs=1,
    )  # fmt: skip
    store.record_success(db, st, refresh)
    for expected in [(1, "ACTIVE"), (2, "ACTIVE"), (3, "SUSPENDED")]:
        recorded = store.record_failure(db, st, refresh, "boom", backoff=timedelta(seconds=9), suspend_after=3)
        assert expected == recorded[:2]
    assert state_of(db, st) == ("SUSPENDED", "boom")
    history = db.execute(
        "SELECT status, rows_inserted, error_message, timings, duration_ms >= 0 "
        "FROM pgtrickle.get_refresh_history('st', 4)"
    ).fetchall()
    assert history == [("FAILED", None, "boom", {"read": 1.5}, True)] * 3 + [
        ("COMPLETED", 2, None, {"read": 1.5}, True)
    ]
    last = db.execute("SELECT last_rows, last_error FROM pgtrickle.pgt_status()").fetchone()
    assert last == (3, "boom")
    assert len(db.execute("SELECT * FROM pgtrickle.refresh_timeline()").fetchall()) == 4
    assert store.prune_history(db, 1) == 3
    store.set_status(db, st, "ACTIVE")
    assert state_of(db, st) == ("ACTIVE", None)


def test_advance_does_not_hide_an_error_set_meanwhile(db: psycopg.Connection, st: int) -> None:
    db.execute("ALTER TABLE orders DROP COLUMN id")
    advance_to_now(db, st)
    found = store.load_stream_table(db, st)
    assert found is not None and found.status == "ERROR" and found.needs_reinit and found.last_error


def test_health_and_buffers(db: psycopg.Connection, st: int) -> None:
    advance_to_now(db, st)
    health = dict(db.execute("SELECT check_name, severity FROM pgtrickle.health_check()").fetchall())
    assert health.pop("scheduler_running") == "ERROR"
    assert set(health.values()) == {"OK"}
    store.set_status(db, st, "ERROR", "broken")
    assert claim(db, host="h", os_pid=7, version="1", spark_master="local[2]")
    rows = {r[0]: r[1:] for r in db.execute("SELECT * FROM pgtrickle.health_check()")}
    assert rows["scheduler_running"][0] == "OK"
    assert rows["error_tables"] == ("ERROR", "public.st: broken")
    release(db)
    assert holder(db) is None
    db.execute("INSERT INTO orders VALUES (1)")
    sizes = db.execute(
        "SELECT stream_table, source_table, cdc_mode, pending_rows, buffer_bytes > 0 "
        "FROM pgtrickle.change_buffer_sizes()"
    ).fetchall()
    assert sizes == [("public.st", "public.orders", "trigger", 1, True)]
