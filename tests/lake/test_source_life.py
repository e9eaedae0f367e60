"""What happens to lake tables under stream tables: compaction, expiry, DDL, other refresh modes, wake-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import runnel
from runnel.errors import RunnelError
from tests.e2e.helpers import eventually
from tests.lake.duck import Duck

Check = Callable[..., None]

ROWS = "INSERT INTO t SELECT i, i % 5, 'v' || i FROM range({}, {}) r(i)"
GROUPS = "SELECT g, count(*) AS n, max(v) AS v FROM lake.t GROUP BY g"


@pytest.fixture
def lake(duck: Callable[..., Duck], data_path: str, client: runnel.Client, db: psycopg.Connection) -> Duck:
    """A lake with a table, attached as `lake`."""
    writer = duck(data_path).run("CREATE TABLE t (id BIGINT, g INTEGER, v VARCHAR)").run(ROWS.format(0, 100))
    client.attach_lake("lake", catalog_schema="ducklake")
    return writer


def refreshes(db: psycopg.Connection, name: str) -> list[tuple[Any, ...]]:
    return db.execute(
        "SELECT action, reason, lake_io FROM pgtrickle.get_refresh_history(%s) ORDER BY refresh_id", (name,)
    ).fetchall()


def frontier(db: psycopg.Connection, name: str, key: str = "ducklake:lake.main.t") -> int:
    row = db.execute(
        "SELECT frontier -> %s FROM pgtrickle.pgt_stream_tables WHERE pgt_name = %s", (key, name)
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_commits_wake_the_engine_and_compaction_is_no_work(
    lake: Duck, db: psycopg.Connection, client: runnel.Client, check: Check
) -> None:
    client.create_stream_table("s", GROUPS, schedule="100ms")
    lake.run("INSERT INTO t VALUES (1000, 1, 'inlined')")
    eventually(lambda: db.execute("SELECT n FROM s WHERE g = 1").fetchall() == [(21,)])
    for start in (200, 300):
        lake.run(ROWS.format(start, start + 50))
    lake.run("DELETE FROM t WHERE id < 5")
    eventually(lambda: frontier(db, "s") == lake.head())
    before = refreshes(db, "s")
    assert {r[0] for r in before} == {"INITIAL", "DIFFERENTIAL"}
    assert before[1][2] == {"files": 0, "bytes": 0, "skipped": 0, "inlined_rows": 1}, "no file for an inlined row"
    lake.run("CALL ducklake_flush_inlined_data('lake')")
    lake.run("CALL ducklake_rewrite_data_files('lake')")
    lake.run("CALL ducklake_merge_adjacent_files('lake')")
    lake.run("CREATE TABLE other (x INTEGER)").run("INSERT INTO other FROM range(1000)")
    eventually(lambda: frontier(db, "s") == lake.head())
    assert refreshes(db, "s") == before, "moving rows between files is no change"
    lake.run("UPDATE t SET v = 'zz' WHERE id = 210")
    check("s")
    assert all(r[0] != "FULL" for r in refreshes(db, "s"))


def test_expired_snapshots(lake: Duck, db: psycopg.Connection, client: runnel.Client, check: Check) -> None:
    client.create_stream_table("kept", GROUPS, schedule="1h")
    db.execute("SELECT pgtrickle.create_stream_table('strict', %s, '1h', ducklake_expired => 'error')", (GROUPS,))
    for name in ("kept", "strict"):
        client.alter_stream_table(name, status="SUSPENDED")
    lake.run(ROWS.format(100, 120)).run("DELETE FROM t WHERE id < 50")
    lake.run("CALL ducklake_expire_snapshots('lake', older_than => now())")
    lake.run("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    lake.run(ROWS.format(120, 130))
    for name in ("kept", "strict"):
        client.resume(name)
    check("kept")
    assert [reason for action, reason, _ in refreshes(db, "kept") if action == "FULL" and "has expired" in reason]
    with pytest.raises(RunnelError, match="has expired"):
        client.refresh("strict")
    (status,) = [s for s in client.status() if s.name == "strict"]
    assert status.status == "ERROR"
    client.alter_stream_table("strict", ducklake_expired="fallback")
    check("strict")


def test_ddl_in_the_lake(lake: Duck, db: psycopg.Connection, client: runnel.Client, check: Check) -> None:
    client.create_stream_table("s", GROUPS, schedule="1h")
    client.create_stream_table("ids", "SELECT id FROM lake.main.t WHERE id > 5", schedule="1h")
    lake.run("ALTER TABLE t ADD COLUMN extra INTEGER DEFAULT 7").run(
        ROWS.replace("'v' || i", "'v' || i, 1").format(100, 110)
    )
    check("s", "ids")
    lake.run("ALTER TABLE t RENAME COLUMN v TO w")
    check("ids")
    with pytest.raises(RunnelError, match='column "v" was renamed to "w"'):
        client.refresh("s")
    client.alter_stream_table("s", query="SELECT g, count(*) AS n, max(w) AS v, sum(extra) AS e FROM lake.t GROUP BY g")
    check("s")
    lake.run("ALTER TABLE t ALTER COLUMN g TYPE BIGINT")
    check("ids", "s")
    assert db.execute("SELECT pg_typeof(g)::text FROM s LIMIT 1").fetchone() == ("bigint",)
    lake.run("ALTER TABLE t RENAME TO u").run("CREATE SCHEMA other").run("CREATE TABLE other.t2 (id INTEGER)")
    check("ids", "s")
    lake.run("INSERT INTO other.t2 FROM range(5)")
    client.create_stream_table("three", 'SELECT sum(a.id) AS n FROM lake.other.t2 a JOIN "lake.other".t2 b USING (id)')
    check("three")
    lake.run("DROP TABLE u")
    with pytest.raises(RunnelError, match="was dropped"):
        client.refresh("ids")
    assert db.execute("SELECT to_regclass('lake.u')").fetchone() == (None,)
    lake.run("CREATE OR REPLACE TABLE other.t2 AS SELECT 1 AS id")
    with pytest.raises(RunnelError, match="was dropped"):
        client.refresh("three")
    with pytest.raises(psycopg.Error, match="no handler"):
        db.execute('SELECT * FROM "lake.other".t2')


def test_full_refreshes_and_queries_without_a_plan(
    lake: Duck, db: psycopg.Connection, client: runnel.Client, check: Check
) -> None:
    db.execute("CREATE VIEW seen AS SELECT id, g FROM lake.t WHERE id % 2 = 0")
    client.create_stream_table("full_", GROUPS, schedule="1h", refresh_mode="FULL")
    client.create_stream_table("planless", "SELECT g, pg_typeof(v)::text AS k FROM lake.t WHERE g < 2", schedule="1h")
    client.create_stream_table("viewed", "SELECT g, count(*) AS n FROM seen GROUP BY g", schedule="1h")
    client.create_stream_table("recent", "SELECT count(*) AS n FROM lake.t", schedule="1h")
    assert {s.name: s.effective_mode for s in client.status()} == {
        "full_": "FULL", "planless": "FULL", "viewed": "DIFFERENTIAL", "recent": "DIFFERENTIAL",
    }  # fmt: skip
    for change in (ROWS.format(100, 103), "DELETE FROM t WHERE id % 7 = 0", "UPDATE t SET g = g + 1 WHERE id < 20"):
        lake.run(change)
        check("full_", "planless", "viewed", "recent")
    with pytest.raises(RunnelError, match="is used by"):
        client.detach_lake("lake")
    for name in ("full_", "planless", "viewed", "recent"):
        client.drop_stream_table(name)
    db.execute("DROP VIEW seen")
    client.detach_lake("lake")
    assert db.execute("SELECT to_regnamespace('lake')").fetchone() == (None,)
