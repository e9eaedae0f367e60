"""The SQL functions, as a user types them into psql."""

from __future__ import annotations

import psycopg
import pytest

import runnel
from tests.e2e.helpers import Check, Stream, eventually, leftovers, rows, script, value

ORDERS = """
CREATE TABLE orders (id int PRIMARY KEY, customer text, amount numeric(10,2));
INSERT INTO orders SELECT i, 'c' || i % 4, i FROM generate_series(1, 20) i;
"""


def catalog(db: psycopg.Connection, name: str, column: str) -> object:
    return value(
        db,
        f"SELECT {column} FROM pgtrickle.pgt_stream_tables WHERE pgt_name = '{name}' AND pgt_schema = current_schema()",
    )


def test_create_fills_the_table_before_it_returns(db: psycopg.Connection, schema: str) -> None:
    script(db, ORDERS)
    db.execute(
        "SELECT pgtrickle.create_stream_table(name => 'totals', "
        "query => 'SELECT customer, sum(amount) AS total FROM orders GROUP BY customer;', "
        "schedule => '@yearly', refresh_mode => 'DIFFERENTIAL')"
    )
    assert rows(db, "SELECT customer, total::int FROM totals ORDER BY 1") == [
        ("c0", 60),
        ("c1", 45),
        ("c2", 50),
        ("c3", 55),
    ]
    assert catalog(db, "totals", "status") == "ACTIVE"
    assert catalog(db, "totals", "is_populated") is True
    assert catalog(db, "totals", "schedule") == "@yearly"
    assert catalog(db, "totals", "original_query").endswith("GROUP BY customer;")
    assert f"{schema}.orders" in str(catalog(db, "totals", "defining_query")), "names are pinned at creation"
    assert rows(db, "SELECT action, status, rows_inserted FROM pgtrickle.get_refresh_history('totals')") == [
        ("INITIAL", "COMPLETED", 4)
    ]


def test_names_are_found_along_the_search_path_and_by_schema(db: psycopg.Connection, schema: str) -> None:
    db.execute("CREATE TABLE t (v int)")
    db.execute("SELECT pgtrickle.create_stream_table(%s, 'SELECT v FROM t', '@yearly')", (f"{schema}.a",))
    db.execute("SELECT pgtrickle.create_stream_table('\"B b\"', 'SELECT v FROM t', '@yearly')")
    db.execute("SELECT pgtrickle.refresh_stream_table('a')")
    db.execute("SELECT pgtrickle.refresh_stream_table('\"B b\"')")
    with pytest.raises(psycopg.errors.UndefinedTable, match="does not exist"):
        db.execute("SELECT pgtrickle.refresh_stream_table('nothing_here')")
    with pytest.raises(psycopg.errors.UndefinedTable, match="does not exist"):
        db.execute("SELECT * FROM pgtrickle.get_refresh_history('nothing_here')")
    assert rows(
        db, "SELECT pgt_name FROM pgtrickle.pgt_stream_tables WHERE pgt_schema = current_schema() ORDER BY 1"
    ) == [
        ("B b",),
        ("a",),
    ]


def test_create_or_replace_and_if_not_exists(db: psycopg.Connection) -> None:
    script(db, ORDERS)
    replace = "SELECT pgtrickle.create_or_replace_stream_table('big', %s, %s)"
    db.execute(replace, ("SELECT id FROM orders WHERE amount > 15", "@yearly"))
    oid = catalog(db, "big", "pgt_relid")
    history = "SELECT count(*) FROM pgtrickle.get_refresh_history('big', 100)"
    before = value(db, history)
    db.execute(replace, ("select id from orders where (amount > 15)", "@yearly"))
    assert value(db, history) == before, "the same definition is left alone"
    db.execute(replace, ("SELECT id FROM orders WHERE amount > 15", "2h"))
    assert (value(db, history), catalog(db, "big", "schedule")) == (before, "2h"), "a schedule needs no rebuild"
    db.execute(replace, ("SELECT id FROM orders WHERE amount > 18", "2h"))
    assert rows(db, "SELECT id FROM big ORDER BY id") == [(19,), (20,)]
    assert catalog(db, "big", "pgt_relid") == oid, "the same columns keep the same table"
    notices: list[str] = []
    db.add_notice_handler(lambda d: notices.append(d.message_primary or ""))
    db.execute("SELECT pgtrickle.create_stream_table_if_not_exists('big', 'SELECT 1 AS other')")
    assert any("already exists, skipping" in n for n in notices)
    assert value(db, "SELECT count(*) FROM big") == 2
    db.execute(
        "SELECT pgtrickle.create_stream_table_if_not_exists('small', 'SELECT id FROM orders WHERE amount "
        "< 2', '@yearly')"
    )
    assert rows(db, "SELECT id FROM small") == [(1,)]


def test_alter_query_same_added_and_other_columns(db: psycopg.Connection, stream: Stream, check: Check) -> None:
    script(db, ORDERS)
    stream("t", "SELECT customer, count(*) AS n FROM orders GROUP BY customer")
    oid = catalog(db, "t", "pgt_relid")
    db.execute("CREATE VIEW reader AS SELECT customer FROM t")
    alter = "SELECT pgtrickle.alter_stream_table('t', query => %s)"
    db.execute(alter, ("SELECT customer, count(*) AS n FROM orders WHERE amount > 10 GROUP BY customer",))
    assert value(db, "SELECT sum(n)::int FROM t") == 10
    db.execute(alter, ("SELECT customer, count(*) AS n, max(amount) AS m FROM orders GROUP BY customer",))
    assert rows(db, "SELECT n, m::int FROM t ORDER BY customer LIMIT 1") == [(5, 20)]
    assert catalog(db, "t", "pgt_relid") == oid, "an added column keeps the table and what depends on it"
    db.execute("INSERT INTO orders VALUES (99, 'c0', 500)")
    check("t")
    incompatible = "SELECT amount, count(*) AS n FROM orders GROUP BY amount"
    before = rows(db, "SELECT * FROM t ORDER BY 1")
    with pytest.raises(psycopg.Error, match="depend"):
        db.execute(alter, (incompatible,))
    assert rows(db, "SELECT * FROM t ORDER BY 1") == before, "a refused alter changes nothing"
    db.execute("UPDATE orders SET customer = 'c9' WHERE id = 99")
    check("t")
    db.execute("DROP VIEW reader")
    db.execute(alter, (incompatible,))
    assert value(db, "SELECT count(*) FROM t") == 21
    db.execute("DELETE FROM orders WHERE id < 5")
    check("t")
    assert value(db, "SELECT count(*) FROM t") == 17
    with pytest.raises(psycopg.errors.UndefinedColumn, match='column "nope" does not exist'):
        db.execute(alter, ("SELECT nope FROM orders",))
    check("t")


def test_alter_switches_sources_and_releases_the_old_ones(db: psycopg.Connection, stream: Stream, check: Check) -> None:
    script(db, "CREATE TABLE a (v int); CREATE TABLE b (v int); INSERT INTO a VALUES (1); INSERT INTO b VALUES (2)")
    stream("t", "SELECT v FROM a")
    db.execute("SELECT pgtrickle.alter_stream_table('t', query => 'SELECT v FROM b')")
    assert rows(db, "SELECT v FROM t") == [(2,)]
    captured = rows(
        db, "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgrelid IN ('a'::regclass, 'b'::regclass) GROUP BY 1"
    )
    assert captured == [("b",)]
    script(db, "INSERT INTO b VALUES (3); INSERT INTO a VALUES (9)")
    check("t")


def test_alter_mode_schedule_and_status(db: psycopg.Connection, stream: Stream, check: Check) -> None:
    script(db, ORDERS)
    stream("t", "SELECT customer, sum(amount) AS s FROM orders GROUP BY customer")
    db.execute("SELECT pgtrickle.alter_stream_table('t', refresh_mode => 'FULL')")
    assert (catalog(db, "t", "refresh_mode"), catalog(db, "t", "effective_mode")) == ("FULL", "FULL")
    db.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1")
    check("t")
    db.execute("SELECT pgtrickle.alter_stream_table('t', refresh_mode => 'DIFFERENTIAL', schedule => '30m')")
    assert (catalog(db, "t", "effective_mode"), catalog(db, "t", "schedule")) == ("DIFFERENTIAL", "30m")
    db.execute("UPDATE orders SET amount = amount + 1 WHERE id = 2")
    check("t")
    db.execute("SELECT pgtrickle.alter_stream_table('t', status => 'SUSPENDED')")
    assert catalog(db, "t", "status") == "SUSPENDED"
    db.execute("SELECT pgtrickle.alter_stream_table('t', schedule => '1s')")
    db.execute("INSERT INTO orders VALUES (77, 'c7', 7)")
    with pytest.raises(psycopg.Error, match="is suspended") as refused:
        db.execute("SELECT pgtrickle.refresh_stream_table('t')")
    assert "resume_stream_table" in str(refused.value.diag.message_hint)
    assert value(db, "SELECT count(*) FROM t WHERE customer = 'c7'") == 0
    db.execute("SELECT pgtrickle.resume_stream_table('t')")
    eventually(lambda: value(db, "SELECT count(*) FROM t WHERE customer = 'c7'"), what="resume did not catch up")
    with pytest.raises(psycopg.Error, match="not suspended"):
        db.execute("SELECT pgtrickle.resume_stream_table('t')")


def test_drop_takes_everything_along_and_asks_about_readers(db: psycopg.Connection, stream: Stream) -> None:
    script(db, ORDERS)
    before = leftovers(db)
    stream("base", "SELECT customer, sum(amount) AS s, max(amount) AS m FROM orders GROUP BY customer")
    stream("over", "SELECT s, count(*) AS n FROM base GROUP BY s")
    with pytest.raises(psycopg.Error, match=r"is read by stream table .*over") as refused:
        db.execute("SELECT pgtrickle.drop_stream_table('base')")
    assert "cascade" in str(refused.value.diag.message_hint)
    db.execute("SELECT pgtrickle.drop_stream_table('base', cascade => true)")
    assert leftovers(db) == before
    stream("base", "SELECT customer FROM orders")
    db.execute("CREATE VIEW plain_view AS SELECT * FROM base")
    with pytest.raises(psycopg.Error, match="depend"):
        db.execute("SELECT pgtrickle.drop_stream_table('base')")
    db.execute("DROP VIEW plain_view")
    db.execute("SELECT pgtrickle.drop_stream_table('base')")
    assert leftovers(db) == before
    db.execute("INSERT INTO orders VALUES (1000, 'x', 1)")


def test_drop_table_leaves_nothing_either(db: psycopg.Connection, stream: Stream) -> None:
    script(db, ORDERS)
    before = leftovers(db)
    stream("t", "SELECT customer, count(DISTINCT amount) AS n FROM orders GROUP BY customer")
    db.execute("DROP TABLE t")
    eventually(lambda: leftovers(db) == before, 8, what="DROP TABLE left something behind")
    assert db.execute("INSERT INTO orders VALUES (1000, 'x', 1)").rowcount == 1


def test_validate_says_how_a_query_would_run(db: psycopg.Connection) -> None:
    script(db, ORDERS)
    before = leftovers(db)
    said = dict(
        rows(db, "SELECT check_name, result FROM pgtrickle.validate_query('SELECT sum(amount) AS s FROM orders')")
    )
    assert said["refresh_mode"].startswith("DIFFERENTIAL")
    assert "orders" in said["sources"]
    sampled = (
        "SELECT check_name, result, severity "
        "FROM pgtrickle.validate_query('SELECT id FROM orders TABLESAMPLE SYSTEM (10)')"
    )
    checks = {name: (result, severity) for name, result, severity in rows(db, sampled)}
    assert checks["refresh_mode"] == ("FULL: TABLESAMPLE cannot be maintained incrementally", "WARNING")
    assert checks["reason"][0].endswith("LINE 1: SELECT id FROM orders TABLESAMPLE SYSTEM (10)\n" + " " * 30 + "^")
    assert "condition over their columns" in checks["way_out"][0]
    limited = "SELECT result FROM pgtrickle.validate_query('SELECT id FROM orders ORDER BY amount LIMIT 1') "
    decided = value(db, f"{limited} WHERE check_name = 'decided'")
    assert "ORDER BY does not decide ties for LIMIT" in decided
    with pytest.raises(psycopg.errors.UndefinedTable, match='relation "nothing" does not exist'):
        db.execute("SELECT * FROM pgtrickle.validate_query('SELECT * FROM nothing')")
    assert leftovers(db) == before


def test_explain_shows_stages_rules_pushdown_and_pending_rows(db: psycopg.Connection, stream: Stream) -> None:
    script(db, ORDERS + "CREATE TABLE customers (name text PRIMARY KEY, town text)")
    stream(
        "t",
        "SELECT c.town, sum(o.amount) AS s, max(o.amount) AS m FROM orders o LEFT JOIN customers c ON "
        "c.name = o.customer "
        "WHERE o.amount > 3 GROUP BY c.town",
    )
    db.execute("INSERT INTO orders VALUES (50, 'c1', 5), (51, 'c1', 5)")
    text = "\n".join(r[0] for r in rows(db, "SELECT * FROM pgtrickle.explain_stream_table('t')"))
    for expected in (
        "DIFFERENTIAL",
        "groups by c.town",
        "left join on c.name = o.customer",
        "filter: o.amount > 3",
        "sum(o.amount): counters",
        "max(o.amount): a bag",
        "2 changed row",
    ):
        assert expected in text
    stream("w", "SELECT id, now() AS seen FROM orders", mode="AUTO")
    text = "\n".join(r[0] for r in rows(db, "SELECT * FROM pgtrickle.explain_stream_table('w')"))
    assert "Why FULL: the current time as a value cannot be maintained incrementally" in text


def test_status_history_tree_buffers_health_and_version(db: psycopg.Connection, schema: str, stream: Stream) -> None:
    script(db, ORDERS)
    stream("base", "SELECT customer, sum(amount) AS s FROM orders GROUP BY customer")
    stream("over", "SELECT max(s) AS m FROM base")
    db.execute("INSERT INTO orders VALUES (50, 'c1', 5), (51, 'c1', 5)")
    status = {
        r[0]: r[1:]
        for r in rows(
            db,
            "SELECT name, status, pending_changes, staleness > interval '0', refresh_mode, schedule, "
            "last_refresh_ms > 0, "
            f"last_rows FROM pgtrickle.pgt_status() WHERE name LIKE '{schema}.%'",
        )
    }
    assert status[f"{schema}.base"] == ("ACTIVE", 2, True, "DIFFERENTIAL", "@yearly", True, 4)
    assert status[f"{schema}.over"][:3] == ("ACTIVE", 0, True), "a table over a stale one is stale"
    sizes = (
        f"SELECT source_table, pending_rows FROM pgtrickle.change_buffer_sizes() WHERE stream_table = '{schema}.base'"
    )
    assert rows(db, sizes) == [(f"{schema}.orders", 2)]
    db.execute("SELECT pgtrickle.refresh_stream_table('over')")
    assert rows(db, sizes) == [(f"{schema}.orders", 0)]
    newest = (
        "SELECT action, initiated_by, changes_read, rows_inserted, rows_deleted "
        "FROM pgtrickle.get_refresh_history(%s, 1)"
    )
    assert db.execute(newest, ("base",)).fetchall() == [("DIFFERENTIAL", "MANUAL", 2, 1, 1)]
    tree = rows(db, "SELECT node, node_type, depth FROM pgtrickle.dependency_tree()")
    assert tree == [
        (f"{schema}.over", "stream_table", 0),
        (f"{schema}.base", "stream_table", 1),
        (f"{schema}.orders", "table", 2),
    ]
    health = rows(db, "SELECT check_name, severity, detail FROM pgtrickle.health_check()")
    assert ("scheduler_running", "OK") in {check[:2] for check in health}
    assert [check for check in health if check[1] != "OK"] == []
    assert value(db, "SELECT pgtrickle.version()") == runnel.__version__


def test_not_initialized_at_creation_is_filled_by_the_first_refresh(db: psycopg.Connection) -> None:
    script(db, ORDERS)
    db.execute("SELECT pgtrickle.create_stream_table('t', 'SELECT id FROM orders', '@yearly', initialize => false)")
    db.execute("SELECT pgtrickle.refresh_stream_table('t')")
    assert value(db, "SELECT count(*) FROM t") == 20
    assert catalog(db, "t", "status") == "ACTIVE"


def test_python_client_sees_and_does_the_same(db: psycopg.Connection, client: runnel.Client, schema: str) -> None:
    script(db, ORDERS)
    client.create_stream_table("t", "SELECT customer, count(*) AS n FROM orders GROUP BY customer", schedule="@yearly")
    db.execute("DELETE FROM orders WHERE customer = 'c0'")
    (status,) = [s for s in client.status() if s.schema == schema]
    assert (status.name, status.pending_changes, status.effective_mode, status.last_action) == (
        "t",
        5,
        "DIFFERENTIAL",
        "INITIAL",
    )
    client.refresh()
    assert client.history("t")[0].rows_deleted == 1
    assert client.verify("t").ok
    assert client.verify("t").counts["rows"] == 3
    assert "groups by orders.customer" in client.explain("t")
    assert {c.severity for c in client.validate("SELECT id FROM orders")} == {"OK"}
    client.alter_stream_table("t", status="SUSPENDED")
    client.resume("t")
    with pytest.raises(runnel.RunnelError, match="syntax error") as refused:
        client.create_stream_table("u", "SELEC 1")
    assert refused.value.sqlstate == "42601"
    client.drop_stream_table("t")
    assert [s for s in client.status() if s.schema == schema] == []
