"""Everything large: with the line between small and large at one row, tasks read, and their results are passed on."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

import runnel

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text, country text);
CREATE TABLE orders (id int, customer int, total numeric(10,2), at timestamptz, note text);
INSERT INTO customers SELECT i, 'name ' || i, CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN 'é' ELSE 'a,"b' END
FROM generate_series(1, 40) i;
INSERT INTO orders SELECT i, nullif(i % 43, 7), (i % 17) * 1.25,
       timestamptz '2024-03-01 00:00Z' + i * interval '7 hours',
       CASE WHEN i % 5 = 0 THEN NULL WHEN i % 5 = 1 THEN '' ELSE repeat('x', i % 9) END
FROM generate_series(1, 400) i;
"""

QUERIES = {
    "rows": "SELECT id, total, note FROM orders WHERE total > 2",
    "groups": "SELECT note, count(*) AS n, sum(total) AS usd, max(at) AS latest FROM orders GROUP BY note",
    "total": "SELECT count(*) AS n, sum(total) AS usd, count(DISTINCT customer) AS people FROM orders",
    "joined": "SELECT o.id, c.name, o.total FROM orders o JOIN customers c ON c.id = o.customer",
    "padded": "SELECT c.id, c.country, o.total FROM customers c LEFT JOIN orders o ON o.customer = c.id",
    "either": "SELECT c.id, c.name, o.id AS number, o.total FROM customers c FULL JOIN orders o ON o.customer = c.id",
    "busy": """
        SELECT c.id, c.name, t.n, o.id AS number FROM customers c
        JOIN (SELECT customer, count(*) AS n FROM orders GROUP BY customer HAVING count(*) > 2) t ON t.customer = c.id
        JOIN orders o ON o.customer = c.id AND o.id > t.n
    """,
    "absent": "SELECT id, name FROM customers c WHERE NOT EXISTS (SELECT FROM orders o WHERE o.customer = c.id)",
    "by_country": """
        SELECT c.country, date_trunc('month', o.at AT TIME ZONE 'UTC') AS month, sum(o.total) AS usd, count(*) AS n,
               count(DISTINCT o.customer) AS people
        FROM orders o JOIN customers c ON c.id = o.customer GROUP BY 1, 2
    """,
    "moments": """
        SELECT c.country, o.at, o.at::date AS day, md5(o.note)::uuid AS token, o.at::timestamp AS local, count(*) AS n,
               count(DISTINCT o.total) AS totals
        FROM customers c FULL JOIN orders o ON o.customer = c.id GROUP BY 1, 2, 3, 4, 5
    """,
    "sums": """
        SELECT o.note, count(o.customer) AS n, sum(o.total) FILTER (WHERE o.id % 3 = 0) AS some, avg(o.total) AS mean,
               sum((o.total * 12345678901234567890.5)::numeric(38,6)) AS huge, var_pop(o.total) AS spread,
               stddev(o.id) AS ids, sum(9000000000000000000 + o.id) AS longs, bool_and(o.total > 2) AS every,
               bool_or(o.id % 9 = 0) AS any, sum(nullif(o.id, 7)) AS known,
               avg(CASE WHEN o.id % 90 = 0 THEN 'NaN' ELSE o.total END::numeric(10,2)) AS poisoned,
               variance((o.total * 1000000000000000.25)::numeric(30,4)) AS wide
        FROM orders o LEFT JOIN customers c ON c.id = o.customer GROUP BY o.note
    """,
    "newest": "SELECT DISTINCT ON (customer) customer, id, at FROM orders ORDER BY customer, at DESC, id",
    "union": "SELECT id FROM customers UNION ALL SELECT customer FROM orders",
    "divided": "SELECT id, 10 / (id - 1000) AS share FROM orders",
}


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1)


CHANGES = (
    "INSERT INTO orders SELECT i, i % 45, i, now(), 'new' FROM generate_series(401, 460) i",
    "UPDATE orders SET total = total + 1, customer = customer + 1 WHERE id % 4 = 0",
    "UPDATE orders SET at = CASE id % 16 WHEN 0 THEN timestamptz 'infinity' ELSE '4000-01-01 BC' END WHERE id % 8 = 0",
    "DELETE FROM orders WHERE id % 7 = 0; INSERT INTO customers VALUES (41, 'late', 'x'), (43, 'later', NULL)",
    "UPDATE customers SET country = 'moved' WHERE id % 5 = 0; DELETE FROM customers WHERE id % 9 = 0",
    "INSERT INTO orders VALUES (1000, 1, 1, now(), NULL), (1001, 1, 1, now(), NULL);DELETE FROM orders WHERE id = 1000",
    "DELETE FROM orders",
    "INSERT INTO orders SELECT i, i % 45, -i, '2024-01-01', 'again' FROM generate_series(1, 50) i",
)


JOINS = ("joined", "padded", "by_country", "either")
QUICK = {("groups", False)}


WAYS = [
    pytest.param(*way, marks=() if way in QUICK else pytest.mark.slow)
    for way in (*((name, False) for name in QUERIES), *((name, True) for name in JOINS))
]
"""Each query as PostgreSQL joins it for tasks, and the joins by Spark as well."""


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize(("name", "by_spark"), WAYS)
def test_what_tasks_compute_equals_the_query(
    db: psycopg.Connection,
    client: runnel.Client,
    check: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    by_spark: bool,
) -> None:
    monkeypatch.setattr("runnel.spark.session.Sessions.joins", by_spark)
    db.execute(TABLES.encode())
    client.create_stream_table("s", QUERIES[name], refresh_mode="DIFFERENTIAL")
    check("s")
    for change in CHANGES:
        db.execute(change.encode())
        check("s")
        assert client.history("s", 1)[0].action == "DIFFERENTIAL"
    client.alter_stream_table("s", refresh_mode="FULL")
    db.execute(CHANGES[1].encode())
    check("s")


@pytest.mark.slow
@pytest.mark.usefixtures("everything_is_large")
def test_another_owner_reads_in_slices_with_its_own_rights(
    db: psycopg.Connection, client: runnel.Client, check: Callable[..., None]
) -> None:
    db.execute(TABLES.encode())
    (schema,) = db.execute("SELECT quote_ident(current_schema())").fetchone() or ("",)
    db.execute("DROP ROLE IF EXISTS e2e_clerk")
    db.execute("CREATE ROLE e2e_clerk; GRANT pgtrickle_user TO e2e_clerk")
    db.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO e2e_clerk".encode())
    db.execute("GRANT SELECT ON orders, customers TO e2e_clerk")
    db.execute("SET ROLE e2e_clerk")
    for name in ("groups", "by_country"):
        db.execute("SELECT pgtrickle.create_stream_table(%s, %s, '1h', 'DIFFERENTIAL')", (name, QUERIES[name]))
    db.execute("RESET ROLE")
    for change in CHANGES:
        db.execute(change.encode())
        check("groups", "by_country")


def test_few_rows_pass_the_driver_and_many_do_not(
    db: psycopg.Connection, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute(TABLES.encode())
    client.create_stream_table("s", QUERIES["joined"], schedule="@yearly", refresh_mode="DIFFERENTIAL")
    db.execute(CHANGES[0].encode())
    client.refresh("s")
    assert _rows_read(db) == {"orders": 60, "customers": 40}
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 10)
    db.execute(CHANGES[1].encode())
    client.refresh("s")
    assert _rows_read(db) == {"orders": None, "customers": None}


def _rows_read(db: psycopg.Connection) -> dict[str, int | None]:
    row = db.execute(
        "SELECT rows_read FROM pgtrickle.pgt_refresh_history JOIN pgtrickle.pgt_stream_tables USING (pgt_id) "
        "WHERE pgt_relid = 's'::regclass ORDER BY refresh_id DESC LIMIT 1"
    ).fetchone()
    assert row is not None
    return {name.rpartition(".")[2]: rows for name, rows in row[0].items()}


def test_a_join_that_an_index_answers_is_read_as_a_whole(db: psycopg.Connection, client: runnel.Client) -> None:
    db.execute("CREATE TABLE kinds (id int PRIMARY KEY, name text)")
    db.execute("INSERT INTO kinds SELECT i, 'kind ' || i FROM generate_series(1, 5000) i")
    db.execute("CREATE TABLE facts (id int, kind int, pad text)")
    db.execute("INSERT INTO facts SELECT i, i % 5000, repeat('x', 200) FROM generate_series(1, 150000) i")
    db.execute("CREATE INDEX ON facts (kind)")
    for table in ("kinds", "facts"):
        db.execute(f"ANALYZE {table}".encode())
    found = {}
    for name, condition in (("rare", "k.name = 'kind 7'"), ("common", "k.name <> 'kind 7'")):
        # An index alone does not have the ids: else it would serve the common kinds, too, once the table is vacuumed.
        query = f"SELECT k.name, sum(f.id) AS n FROM facts f JOIN kinds k ON k.id = f.kind WHERE {condition} GROUP BY 1"
        client.create_stream_table(name, query, schedule="@yearly", refresh_mode="DIFFERENTIAL")
        work = client.history(name, 1)[0].work
        assert client.verify(name).ok
        assert work is not None
        found[name] = work.tasks // work.jobs
        assert work.read_rows >= (1 if name == "rare" else 4999)
    assert found["rare"] == 1
    assert found["common"] > 1


def test_tasks_leave_no_connection_behind(db: psycopg.Connection, client: runnel.Client) -> None:
    db.execute("CREATE TABLE facts (id int, kind int, pad text)")
    db.execute("INSERT INTO facts SELECT i, i % 5000, repeat('x', 500) FROM generate_series(1, 150000) i")
    client.create_stream_table("s", "SELECT kind, count(*) AS n FROM facts GROUP BY 1", schedule="@yearly")
    work = client.history("s", 1)[0].work
    assert work is not None
    assert work.tasks > work.jobs, "several slices"
    for _ in range(100):
        (left,) = db.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'DISCARD ALL'"
        ).fetchone() or (None,)
        if not left:
            break
        time.sleep(0.1)
    assert left == 0
