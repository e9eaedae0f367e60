"""Lake tables of which everything is large: tasks read rows and changes, whoever evaluates them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

import runnel
from runnel.model.names import Name
from runnel.sources.ducklake.lent import Lent
from tests.lake.duck import Duck

Check = Callable[..., None]
TABLE = """
CREATE TABLE sales (id BIGINT, k INTEGER, name VARCHAR, price DECIMAL(15,2), tax DECIMAL(15,2), rate DOUBLE, day DATE,
    ts TIMESTAMP, due TIMESTAMPTZ, ok BOOLEAN)
"""
FILL = """
INSERT INTO sales SELECT i, i % 20 + 1, 'Name ' || (i % 9), (i % 1000) / 4.0, (i % 9) / 100.0, i / 8.0,
    CASE WHEN i = 7 THEN DATE 'infinity' ELSE DATE '2024-01-01' + (i % 400)::INTEGER END,
    TIMESTAMP '2024-01-01' + INTERVAL (i) SECOND, TIMESTAMPTZ '2020-01-01 00:00:00+00' + INTERVAL (i) DAY, i % 3 = 0
FROM range({}, {}) r(i)
"""
QUERIES = {
    "exact": """SELECT k, day, count(*) AS n, sum(price * (1 - tax) * (1 + tax)) AS s, max(ts) AS t,
        sum(CASE WHEN name LIKE '%3' THEN price ELSE 0 END) AS three FROM lake.sales
        WHERE ok AND price > 5 AND day < DATE '2024-01-01' + INTERVAL '1 year' GROUP BY 1, 2""",
    "parts": """SELECT date_trunc('month', ts) AS month, substring(name, 6, 1) AS digit, count(*) AS n,
        sum(round(price, 1)) AS s, min(left(name, 4) || k) AS m FROM lake.sales GROUP BY 1, 2""",
    "upper": "SELECT upper(name) AS name, count(*) AS n, avg(rate) AS a FROM lake.sales GROUP BY 1",
    "raising": "SELECT 1000 / k AS part, count(*) AS n FROM lake.sales GROUP BY 1",
    "moving": "SELECT k, count(*) AS n, sum(price) AS s FROM lake.sales WHERE due <= now() GROUP BY 1",
    "joined": "SELECT f.note, b.price, b.day, b.rate FROM lake.sales b JOIN few f ON f.id = b.id",
    "all_rows": "SELECT * FROM lake.sales WHERE id % 7 = 1",
}


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The tables to which the driver copies rows."""
    names: list[str] = []
    fill = Lent.fill

    def noted(self: Lent, conn: psycopg.Connection, name: Name, *arguments: object, **how: object) -> int:
        names.append(name.name)
        return fill(self, conn, name, *arguments, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Lent, "fill", noted)
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 0)
    yield names


@pytest.mark.slow
def test_tasks_read_changes(
    duck: Callable[..., Duck],
    data_path: str,
    client: runnel.Client,
    db: psycopg.Connection,
    check: Check,
    lent: list[str],
) -> None:
    lake = duck(data_path).run(TABLE).run(FILL.format(0, 600)).run(FILL.format(600, 1200))
    client.attach_lake("lake", catalog_schema="ducklake")
    db.execute("CREATE TABLE few (id bigint PRIMARY KEY, note text)")
    db.execute("INSERT INTO few SELECT i, 'note ' || i FROM generate_series(1, 2000, 13) i")
    for name, query in QUERIES.items():
        client.create_stream_table(name, query)
    check(*QUERIES)
    lent.clear()
    for step in (
        ["INSERT INTO sales (id, k) VALUES (5000, 0), (5001, 2)"],
        ["UPDATE sales SET k = 3, price = price + 1 WHERE id = 5000"],
        [FILL.format(1200, 1700), "UPDATE sales SET price = price + 1, tax = 0.01 WHERE id < 40"],
        ["DELETE FROM sales WHERE id % 10 = 3", "UPDATE sales SET ok = NOT ok WHERE k = 5"],
        ["DELETE FROM sales WHERE id >= 1700"],
    ):
        for statement in step:
            lake.run(statement)
        if step[0].startswith("INSERT INTO sales (id, k) VALUES (5000"):
            # A row on which an expression fails waits until the next statement has mended it.
            continue
        check(*QUERIES)
    assert [name for name in lent if name.startswith("pgt_lent_delta")] == []
    modes = {r[0] for r in db.execute("SELECT action FROM pgtrickle.pgt_refresh_history").fetchall()}
    assert modes == {"INITIAL", "DIFFERENTIAL"}
    expected = lake.bag("SELECT k, count(*), sum(price)::DECIMAL(38,2) FROM sales WHERE due <= now() GROUP BY 1")
    assert dict.fromkeys(db.execute("SELECT k, n, s FROM moving").fetchall(), 1) == expected


@pytest.mark.slow
def test_tasks_follow_other_columns_and_moved_files(
    duck: Callable[..., Duck],
    data_path: str,
    client: runnel.Client,
    db: psycopg.Connection,
    check: Check,
    lent: list[str],
) -> None:
    lake = duck(data_path).run("CALL lake.set_option('data_inlining_row_limit', 20)").run(TABLE)
    lake.run(FILL.format(0, 300)).run(FILL.format(300, 310))
    client.attach_lake("lake", catalog_schema="ducklake")
    wanted = {name: QUERIES[name] for name in ("exact", "upper", "raising")}
    for name, query in wanted.items():
        client.create_stream_table(name, query)
    check(*wanted)
    lent.clear()
    for step in (
        [
            FILL.format(310, 320),
            "DELETE FROM sales WHERE id BETWEEN 300 AND 304",
            "UPDATE sales SET k = 7 WHERE id < 3",
        ],
        ["CALL ducklake_flush_inlined_data('lake')", FILL.format(320, 330)],
        [
            "ALTER TABLE sales ADD COLUMN more INTEGER DEFAULT 5",
            FILL.format(330, 400).replace("sales", "sales (id, k, name, price, tax, rate, day, ts, due, ok)"),
        ],
        ["CALL ducklake_merge_adjacent_files('lake')", "DELETE FROM sales WHERE id % 4 = 0"],
        ["ALTER TABLE sales RENAME COLUMN more TO less", "CALL ducklake_rewrite_data_files('lake')"],
        ["UPDATE sales SET k = 1, name = 'x' WHERE k > 15"],
        ["ALTER TABLE sales ALTER k TYPE BIGINT", "INSERT INTO sales (id, k, price) VALUES (900, 5000000000, 9)"],
    ):
        for statement in step:
            lake.run(statement)
        check(*wanted)
    assert [name for name in lent if name.startswith("pgt_lent_delta")] == []
    # `upper` does not use the column that was widened: it is not rebuilt.
    actions = db.execute(
        """SELECT action, count(*) FROM pgtrickle.pgt_refresh_history JOIN pgtrickle.pgt_stream_tables USING (pgt_id)
        WHERE pgt_name = 'upper' GROUP BY 1"""
    ).fetchall()
    assert dict(actions)["INITIAL"] == 1 and set(dict(actions)) == {"INITIAL", "DIFFERENTIAL"}
    expected = lake.bag("SELECT upper(name), count(*) FROM sales GROUP BY 1")
    assert dict.fromkeys(db.execute("SELECT name, n FROM upper").fetchall(), 1) == expected


def test_explain_says_who_computes_many_rows(
    duck: Callable[..., Duck], data_path: str, client: runnel.Client, db: psycopg.Connection
) -> None:
    duck(data_path).run(TABLE)
    client.attach_lake("lake", catalog_schema="ducklake")
    db.execute("CREATE TABLE few (id bigint PRIMARY KEY, note text)")
    said = {}
    for name in ("parts", "upper", "exact"):
        client.create_stream_table(name, QUERIES[name])
        lines = " ".join(str(client.explain(name)).split())
        said[name] = lines.partition("many rows are computed by ")[2]
    assert said["parts"].startswith("Spark")
    assert said["upper"].startswith("PostgreSQL, because of upper(sales.name)"), said["upper"][:80]
    assert said["exact"].startswith("Spark, if statistics leave room for the digits of"), said["exact"][:80]
