"""Every operator that deltas maintain: after each change the stream table equals its query, without a FULL refresh."""

from __future__ import annotations

import time

import psycopg
import pytest

import runnel
from tests.e2e.helpers import Check, Stream, eventually, last_refresh, rows, script, value
from tests.sampling import sampled

SALES = """
CREATE TABLE sales (id int PRIMARY KEY, shop text, item text, qty int, price numeric(10,2), weight float8, paid bool);
INSERT INTO sales SELECT i, 'shop' || i % 3, 'item' || i % 5, i % 7, i * 1.25, i / 3.0::float8, i % 2 = 0
  FROM generate_series(1, 60) i;
"""
SHOPS = """
CREATE TABLE shops (name text PRIMARY KEY, town text);
INSERT INTO shops VALUES ('shop0', 'Ulm'), ('shop1', 'Bonn'), ('shop9', 'Kiel'), ('shop8', NULL);
"""
CHANGES = (
    "INSERT INTO sales VALUES (100, 'shop1', 'item9', 3, 7.77, 0.5, true), (101, NULL, 'item1', NULL, "
    "NULL, NULL, NULL)",
    "UPDATE sales SET qty = qty + 1, price = price * 2, paid = NOT paid WHERE id % 4 = 0",
    "UPDATE sales SET shop = 'shop9', id = id + 1000 WHERE id % 10 = 3",
    "DELETE FROM sales WHERE shop = 'shop2' OR id = 60",
    "DELETE FROM sales",
)

AGGREGATES = {
    "counts": "SELECT shop, count(*) AS n, count(qty) AS q, count(DISTINCT item) AS items FROM sales GROUP BY shop",
    "sums": "SELECT shop, sum(qty) AS q, sum(price) AS p, avg(price) AS a, avg(qty) AS aq FROM sales GROUP BY shop",
    "floats": "SELECT shop, sum(weight) AS s, avg(weight) AS a, min(weight) AS lo FROM sales GROUP BY shop",
    "extremes": "SELECT shop, min(price) AS lo, max(price) AS hi, min(item) AS first, max(qty) AS most "
    "FROM sales GROUP BY shop",
    "spread": "SELECT shop, stddev(qty) AS s, variance(price) AS v, stddev_pop(price) AS sp, var_pop(qty) AS vp, "
    "stddev_samp(weight) AS sw FROM sales GROUP BY shop",
    "bools": "SELECT shop, bool_and(paid) AS every_one, bool_or(paid) AS any_one, every(qty > 1) AS e "
    "FROM sales GROUP BY shop",
    "filtered": "SELECT shop, count(*) FILTER (WHERE paid) AS n, sum(price) FILTER (WHERE qty > 3) AS p, "
    "max(price) FILTER (WHERE NOT paid) AS m FROM sales GROUP BY shop",
    "having": "SELECT shop, sum(price) AS p FROM sales GROUP BY shop HAVING sum(price) > 500 AND count(*) > 5",
    "expressions": "SELECT upper(shop) AS s, sum(price) / nullif(count(*), 0) + 1 AS mean, "
    "CASE WHEN max(qty) > 5 THEN 'big' ELSE 'small' END AS size FROM sales GROUP BY upper(shop)",
    "overall": "SELECT count(*) AS n, sum(price) AS p, min(qty) AS lo, avg(weight) AS a, bool_or(paid) AS b FROM sales",
    "composite": "SELECT shop, item, paid, sum(qty) AS q FROM sales GROUP BY shop, item, paid",
    "distinct": "SELECT DISTINCT shop, paid FROM sales",
    "sum_distinct": "SELECT shop, sum(DISTINCT qty) AS q, avg(DISTINCT price) AS p FROM sales GROUP BY shop",
    "no_output_key": "SELECT count(*) AS n FROM sales GROUP BY shop",
    "two_levels": "SELECT q, count(*) AS shops FROM (SELECT shop, sum(qty) AS q FROM sales GROUP BY shop) t GROUP BY q",
    "cte_chain": "WITH a AS (SELECT shop, item, sum(price) AS p FROM sales GROUP BY shop, item), "
    "b AS (SELECT shop, max(p) AS best FROM a GROUP BY shop) "
    "SELECT a.shop, a.item, a.p FROM a JOIN b ON b.shop = a.shop AND b.best = a.p",
    "distinct_of_groups": "SELECT DISTINCT count(*) AS n FROM sales GROUP BY item",
}


@pytest.mark.parametrize("name", sampled(AGGREGATES, every=4))
def test_aggregates_follow_every_kind_of_change(
    name: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, SALES)
    stream("result", AGGREGATES[name])
    for change in CHANGES:
        db.execute(change.encode())
        check("result")
        assert last_refresh(client, "result").action == "DIFFERENTIAL"
    db.execute("INSERT INTO sales VALUES (1, 'shop1', 'item1', 1, 1.00, 1, false)")
    check("result")


UNIONS_AND_FILTERS = {
    "filter": "SELECT id, lower(shop) AS shop, price * 2 AS p FROM sales WHERE qty BETWEEN 2 AND 5 AND "
    "shop LIKE 'shop%'",
    "constants": "SELECT 1 AS one, 'x' AS x, NULL::int AS nothing FROM sales WHERE paid",
    "union_all": "SELECT shop AS s FROM sales WHERE paid UNION ALL SELECT item FROM sales WHERE NOT paid "
    "UNION ALL SELECT name FROM shops",
    "union": "SELECT shop AS s FROM sales UNION SELECT name FROM shops",
    "union_of_groups": "SELECT shop AS s, count(*) AS n FROM sales GROUP BY shop "
    "UNION ALL SELECT item, count(*) FROM sales GROUP BY item",
    "grouped_union": "SELECT s, count(*) AS n FROM (SELECT shop AS s FROM sales UNION ALL SELECT name FROM shops) u "
    "GROUP BY s",
    "inner": "SELECT s.id, h.town FROM sales s JOIN shops h ON h.name = s.shop WHERE h.town <> 'Ulm'",
    "left": "SELECT s.id, s.shop, h.town FROM sales s LEFT JOIN shops h ON h.name = s.shop",
    "right": "SELECT s.id, h.name, h.town FROM sales s RIGHT JOIN shops h ON h.name = s.shop",
    "full": "SELECT s.id, s.shop, h.name FROM sales s FULL JOIN shops h ON h.name = s.shop",
    "left_with_condition": "SELECT s.id, h.town FROM sales s LEFT JOIN shops h ON h.name = s.shop AND s.qty > 3",
    "anti": "SELECT h.name FROM shops h LEFT JOIN sales s ON s.shop = h.name WHERE s.id IS NULL",
    "cross": "SELECT s.id, h.name FROM sales s CROSS JOIN shops h WHERE s.qty = 1",
    "inequality": "SELECT s.id, h.name FROM sales s JOIN shops h ON h.name > s.shop WHERE s.qty < 2",
    "self": "SELECT a.id, b.id AS other FROM sales a JOIN sales b ON a.item = b.item AND a.shop = b.shop "
    "AND a.id < b.id",
    "null_safe": "SELECT s.id, h.name FROM sales s JOIN shops h ON h.town IS NOT DISTINCT FROM s.shop "
    "OR h.name = s.shop",
    "null_safe_key": "SELECT a.id, b.id AS other FROM sales a JOIN sales b ON a.shop IS NOT DISTINCT FROM b.shop "
    "AND a.qty IS NOT DISTINCT FROM b.qty WHERE a.id > 90",
    "composite": "SELECT a.id FROM sales a JOIN (SELECT shop, item, max(price) AS p FROM sales GROUP BY shop, item) b "
    "ON (a.shop, a.item, a.price) = (b.shop, b.item, b.p)",
    "chained_outer": "SELECT h.name, s.id, t.id AS twin FROM shops h LEFT JOIN sales s ON s.shop = h.name "
    "AND s.qty = 2 "
    "LEFT JOIN sales t ON t.id = s.id + 1",
    "outer_aggregate": "SELECT h.name, count(s.id) AS n, coalesce(sum(s.price), 0) AS p FROM shops h "
    "LEFT JOIN sales s ON s.shop = h.name GROUP BY h.name",
    "using": "SELECT shop, x.n, y.m FROM (SELECT shop, count(*) AS n FROM sales GROUP BY shop) x "
    "JOIN (SELECT shop, max(qty) AS m FROM sales GROUP BY shop) y USING (shop)",
}


@pytest.mark.parametrize("name", sampled(UNIONS_AND_FILTERS, every=4))
def test_joins_and_unions_follow_every_kind_of_change(
    name: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, SALES + SHOPS)
    stream("result", UNIONS_AND_FILTERS[name])
    both = (
        "INSERT INTO shops VALUES ('shop2', 'Jena'); UPDATE sales SET shop = 'shop8' WHERE id < 12",
        "DELETE FROM shops WHERE name = 'shop0'; INSERT INTO shops VALUES ('shopX', NULL); " + CHANGES[0],
        "UPDATE shops SET name = 'shop0' WHERE name = 'shop9'; " + CHANGES[2],
        "DELETE FROM shops; DELETE FROM sales WHERE id % 3 = 0",
    )
    for change in both:
        with db.transaction():
            script(db, change)
        check("result")
        assert last_refresh(client, "result").action == "DIFFERENTIAL"


def test_a_row_that_moved_on_still_leads_to_its_old_neighbours(
    db: psycopg.Connection, stream: Stream, check: Check
) -> None:
    script(
        db,
        "CREATE TABLE a (k int); CREATE TABLE b (k int, j int); CREATE TABLE c (j int);"
        "INSERT INTO b VALUES (1, 10); INSERT INTO c VALUES (10), (20)",
    )
    stream("chain", "SELECT a.k, c.j FROM a JOIN b ON a.k = b.k JOIN c ON c.j = b.j")
    with db.transaction():
        script(db, "INSERT INTO a VALUES (1); UPDATE b SET j = 20")
    check("chain")
    assert rows(db, "SELECT * FROM chain") == [(1, 20)]


def test_extremes_come_back_after_their_removal(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    script(db, "CREATE TABLE t (k int, v int); INSERT INTO t VALUES (1, 5), (1, 9), (1, 9), (1, 2), (2, 7)")
    stream("ends", "SELECT k, min(v) AS lo, max(v) AS hi FROM t GROUP BY k")
    db.execute("DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE v = 9)")
    client.refresh("ends")
    assert rows(db, "SELECT * FROM ends ORDER BY k") == [(1, 2, 9), (2, 7, 7)], "one of two equal maxima is left"
    db.execute("DELETE FROM t WHERE v IN (9, 2)")
    client.refresh("ends")
    assert rows(db, "SELECT * FROM ends ORDER BY k") == [(1, 5, 5), (2, 7, 7)]
    db.execute("DELETE FROM t WHERE k = 2")
    client.refresh("ends")
    assert rows(db, "SELECT * FROM ends ORDER BY k") == [(1, 5, 5)], "an empty group has no row"


def test_global_aggregates_over_nothing_have_one_row(
    db: psycopg.Connection, client: runnel.Client, stream: Stream
) -> None:
    db.execute("CREATE TABLE t (v int)")
    stream("whole", "SELECT count(*) AS n, sum(v) AS s, max(v) AS m, avg(v) AS a FROM t")
    stream("kept", "SELECT sum(v) AS s FROM t HAVING count(*) > 1")
    stream("grouped", "SELECT v, count(*) AS n FROM t GROUP BY v")
    assert rows(db, "SELECT * FROM whole") == [(0, None, None, None)]
    assert rows(db, "SELECT * FROM kept") == [] == rows(db, "SELECT * FROM grouped")
    db.execute("INSERT INTO t VALUES (4), (6)")
    client.refresh()
    assert rows(db, "SELECT * FROM whole") == [(2, 10, 6, 5)]
    assert rows(db, "SELECT * FROM kept") == [(10,)]
    db.execute("DELETE FROM t")
    client.refresh()
    assert rows(db, "SELECT * FROM whole") == [(0, None, None, None)]
    assert rows(db, "SELECT * FROM kept") == [] == rows(db, "SELECT * FROM grouped")


def test_nan_and_infinity_in_sums_leave_no_trace(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        "CREATE TABLE t (k int, n numeric, p numeric(12,3), f float8);"
        "INSERT INTO t VALUES (1, 1.5, 1.5, 1.5), (1, 'NaN', 'NaN', 'NaN'), (2, 'Infinity', 2, 'Infinity')",
    )
    stream(
        "sums",
        "SELECT k, sum(n) AS n, avg(n) AS a, sum(p) AS p, sum(f) AS f, max(f) AS m, stddev(p) AS sd FROM t GROUP BY k",
    )
    check("sums")
    db.execute("INSERT INTO t VALUES (2, '-Infinity', 3, '-Infinity'), (3, '-Infinity', 1, 1)")
    check("sums")
    db.execute("DELETE FROM t WHERE n IN ('NaN', 'Infinity', '-Infinity')")
    check("sums")
    assert rows(db, "SELECT k, n, p, f FROM sums") == [(1, value(db, "SELECT 1.5"), value(db, "SELECT 1.500"), 1.5)]


@pytest.mark.slow
def test_rows_leave_by_the_clock_without_any_write(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        "CREATE TABLE seen (id int, at timestamptz); CREATE INDEX ON seen (at);"
        "INSERT INTO seen SELECT i, now() - interval '1 hour' + i * interval '1500 ms' FROM generate_series(1, 3) i",
    )
    stream("recent", "SELECT id FROM seen WHERE at > now() - interval '1 hour'", schedule="1s")
    stream(
        "lately", "SELECT count(*) AS n FROM seen WHERE at >= now() - '1 hour'::interval AND at < now()", schedule="1s"
    )
    stream("later", "SELECT id FROM seen WHERE at < now() - interval '1 hour'", schedule="1s")
    time.sleep(5.5)
    assert rows(db, "SELECT * FROM recent") == []
    assert rows(db, "SELECT * FROM lately") == [(0,)]
    assert rows(db, "SELECT id FROM later ORDER BY id") == [(1,), (2,), (3,)]
    assert {h.action for h in client.history("recent")} == {"INITIAL", "DIFFERENTIAL"}
    check("recent", "lately", "later")


def test_rows_of_the_query_itself_move_by_the_clock_too(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    ticks = rows(db, "SELECT i, (now() + i * interval '1 s')::text FROM generate_series(-1, 30) i")
    listed = ", ".join(f"({i}, timestamptz '{at}')" for i, at in ticks)
    stream("over", f"SELECT v.id FROM (VALUES {listed}) AS v (id, at) WHERE v.at <= now()", schedule="1s")
    stream("ahead", f"SELECT count(*) AS n FROM (VALUES {listed}) AS v (id, at) WHERE v.at > now()", schedule="1s")
    over, ahead = value(db, "SELECT count(*) FROM over"), value(db, "SELECT n FROM ahead")
    eventually(lambda: value(db, "SELECT count(*) FROM over") > over and value(db, "SELECT n FROM ahead") < ahead)
    check("over", "ahead")
    assert {h.action for h in client.history("over")} == {"INITIAL", "DIFFERENTIAL"}


def test_full_writes_only_the_rows_that_differ(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, i FROM generate_series(1, 50) i")
    stream("ranked", "SELECT id, v, row_number() OVER (ORDER BY v) AS place FROM t", mode="FULL")
    stream("plain", "SELECT id, v * 2 AS v FROM t", mode="FULL")
    before = dict(rows(db, "SELECT id, xmin::text FROM ranked UNION ALL SELECT -id, xmin::text FROM plain"))
    db.execute("UPDATE t SET v = 1000 WHERE id = 50")
    check("ranked", "plain")
    after = dict(rows(db, "SELECT id, xmin::text FROM ranked UNION ALL SELECT -id, xmin::text FROM plain"))
    assert {i for i in before if before[i] != after[i]} == {50, -50}
    for name in ("ranked", "plain"):
        refresh = next(h for h in client.history(name) if h.rows_inserted)
        assert (refresh.action, refresh.rows_inserted, refresh.rows_deleted) == ("FULL", 1, 1)


def test_full_tables_follow_the_clock_too(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    script(
        db,
        "CREATE TABLE seen (id int, at timestamptz);"
        "INSERT INTO seen SELECT i, now() - interval '1 hour' + i * interval '1 s' FROM generate_series(1, 2) i",
    )
    query = "SELECT id, row_number() OVER (ORDER BY id) AS r FROM seen WHERE at > now() - interval '1 hour'"
    stream("ranked", query, mode="AUTO", schedule="1s")
    eventually(lambda: value(db, "SELECT count(*) FROM ranked") == 0, 10, what="rows did not leave")
    assert client.verify("ranked").ok
