"""A test that holds publication back: the lake keeps the last good version, and catches up exactly."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.checks import run
from tests.lake.compare import duck_bag, pg_bag
from tests.lake.duck import Duck
from tests.lake.places import Place
from tests.lake.sinks import ROWS, lake, place, sales, same

__all__ = ["lake", "place", "sales"]

Db = psycopg.Connection[Any]
NOT_NEGATIVE = [{"empty": "SELECT 1 FROM rows WHERE amount > 1000"}, {"unique": ["id"]}]


def held(db: Db) -> bool:
    return db.execute("SELECT held_since IS NOT NULL FROM pgtrickle.pgt_sinks").fetchone() == (True,)


def reason(db: Db) -> Any:
    row = db.execute("SELECT reason FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id DESC LIMIT 1").fetchone()
    return None if row is None else row[0]


@pytest.mark.parametrize("mode", ["merge", "append", "replace"])
def test_the_lake_keeps_the_last_good_version(
    mode: str, sales: Db, place: Place, lake: Duck, client: runnel.Client
) -> None:
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake", ducklake_sink_mode=mode)
    client.set_tests("rows", NOT_NEGATIVE, on_violation="hold")
    sales.execute("UPDATE sales SET note = 'good' WHERE id < 5")
    client.refresh("rows")
    good = duck_bag(sales, lake, "rows")
    for bad in (
        "UPDATE sales SET amount = 5000 WHERE id IN (3, 4); DELETE FROM sales WHERE id > 45",
        "INSERT INTO sales SELECT i, 'new', i, NULL FROM generate_series(100, 120) i",
        "DELETE FROM sales WHERE id BETWEEN 100 AND 110; UPDATE sales SET kind = 'moved' WHERE id = 10",
    ):
        for statement in bad.split(";"):
            sales.execute(statement)
        client.refresh("rows")
        assert client.verify("rows").ok
        assert duck_bag(sales, lake, "rows") == good
        assert reason(sales) is None or "held back from the lake: empty" in reason(sales)
    assert pg_bag(sales, "rows") != good
    assert held(sales)
    status = client.status()[0].tests
    assert status is not None
    assert status.startswith("empty: 2 violations; not published since ")
    health = sales.execute("SELECT severity FROM pgtrickle.health_check() WHERE check_name = 'tests'").fetchone()
    assert health == ("ERROR",)
    sales.execute("UPDATE sales SET amount = 7 WHERE amount = 5000")
    client.refresh("rows")
    assert not held(sales)
    assert "published what was held back" in reason(sales)
    same(sales, lake, "rows")
    assert client.status()[0].tests == "ok"
    assert sales.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'held\\_%'").fetchone() == (0,)
    if mode == "append":
        # What came and went meanwhile never was in a good version.
        assert lake.value("SELECT count(*) FROM rows__log WHERE amount > 1000 OR id = 105") == 0
    sales.execute("DELETE FROM sales WHERE id < 20")
    client.refresh("rows")
    same(sales, lake, "rows")
    place.check(sales)


@pytest.mark.slow
def test_others_may_make_it_good_again(
    sales: Db, place: Place, lake: Duck, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "REPEAT_BAD", 0.5)
    sales.execute(
        "CREATE TABLE kinds (kind text PRIMARY KEY); INSERT INTO kinds SELECT 'k' || g FROM generate_series(0, 4) g"
    )
    client.create_stream_table("rows", ROWS, schedule="1s", sink="ducklake")
    tests = [{"relationships": {"column": "kind", "to": "kinds", "field": "kind"}, "on_violation": "hold"}]
    client.set_tests("rows", tests)
    sales.execute("UPDATE sales SET kind = 'k9' WHERE id < 10")
    client.refresh("rows")
    assert held(sales)
    sales.execute("INSERT INTO kinds VALUES ('k9')")
    deadline = time.monotonic() + 60
    while held(sales):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    same(sales, lake, "rows")


def test_what_was_never_good_is_not_published(sales: Db, place: Place, lake: Duck, client: runnel.Client) -> None:
    sales.execute("UPDATE sales SET amount = 2000 WHERE id = 1")
    client.create_stream_table("rows", ROWS, schedule="1h")
    client.set_tests("rows", NOT_NEGATIVE, on_violation="hold")
    client.alter_stream_table("rows", sink="ducklake")
    assert lake.rows("SELECT table_name FROM duckdb_tables()") == []
    client.set_tests("rows", NOT_NEGATIVE, on_violation="warn")
    client.refresh("rows")
    same(sales, lake, "rows")


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_an_altered_query_is_held_back_too(
    mode: str, sales: Db, place: Place, lake: Duck, client: runnel.Client
) -> None:
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake", ducklake_sink_mode=mode)
    client.set_tests("rows", NOT_NEGATIVE, on_violation="hold")
    good = duck_bag(sales, lake, "rows")
    sales.execute("UPDATE sales SET amount = 5000 WHERE id = 3")
    client.refresh("rows")
    client.alter_stream_table("rows", query="SELECT id, kind, amount, note, id * 2 AS twice FROM sales")
    sales.execute("DELETE FROM sales WHERE id = 9")
    client.refresh("rows")
    client.alter_stream_table("rows", query=ROWS)
    sales.execute("DELETE FROM sales WHERE id = 10")
    client.refresh("rows")
    assert held(sales)
    assert duck_bag(sales, lake, "rows") == good
    sales.execute("UPDATE sales SET amount = 3 WHERE id = 3")
    client.refresh("rows")
    same(sales, lake, "rows")
    client.drop_stream_table("rows")
    assert lake.rows("SELECT table_name FROM duckdb_tables()") == []
    place.check(sales)


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_a_plain_role_holds_its_own_back(mode: str, dsn: str, sales: Db, place: Place, lake: Duck) -> None:
    if sales.execute("SELECT FROM pg_roles WHERE rolname = 'held_ann'").fetchone() is None:
        sales.execute("CREATE ROLE held_ann LOGIN")
    sales.execute("GRANT pgtrickle_user TO held_ann; GRANT SELECT ON sales TO held_ann")
    sales.execute("GRANT CREATE ON SCHEMA public TO held_ann")
    with psycopg.connect(make_conninfo(dsn, user="held_ann"), autocommit=True) as ann:
        # A type of one's own: what compares its values is the owner's code.
        ann.execute("CREATE DOMAIN kind AS text CHECK (length(VALUE) < 100)")
        query = "SELECT id, kind::kind AS kind, amount, note FROM sales WHERE amount > 0"
        options = "sink => 'ducklake', ducklake_sink_mode => %s"
        ann.execute(f"SELECT pgtrickle.create_stream_table('rows', %s, '1h', {options})".encode(), (query, mode))
        tests = '[{"not_null": ["kind"]}, {"unique": ["kind", "id"]}]'
        ann.execute("SELECT pgtrickle.set_tests('rows', %s, 'hold')", (tests,))
        good = duck_bag(sales, lake, "rows")
        sales.execute("UPDATE sales SET kind = NULL WHERE id < 3; UPDATE sales SET note = 'x' WHERE id > 40")
        ann.execute("SELECT pgtrickle.refresh_stream_table('rows')")
        sales.execute("DELETE FROM sales WHERE id = 41")
        ann.execute("SELECT pgtrickle.refresh_stream_table('rows')")
        assert held(sales)
        assert duck_bag(sales, lake, "rows") == good
        sales.execute("UPDATE sales SET kind = 'k0' WHERE kind IS NULL")
        ann.execute("SELECT pgtrickle.refresh_stream_table('rows')")
        assert not held(sales)
        same(sales, lake, "rows")
        ann.execute("SELECT pgtrickle.drop_stream_table('rows')")
        ann.execute("DROP DOMAIN kind")
    place.check(sales)
