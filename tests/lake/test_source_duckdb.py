"""Builds over a lake's files that tasks let DuckDB compute: the same as PostgreSQL's, or left to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

import runnel
from runnel.refresh import stagework
from tests.lake.duck import Duck

Check = Callable[..., None]
TABLE = """
CREATE TABLE sales (id BIGINT, k INTEGER, small SMALLINT, name VARCHAR, price DECIMAL(15,2), tax DECIMAL(15,2),
    wide DECIMAL(38,6), rate DOUBLE, day DATE, ts TIMESTAMP, ok BOOLEAN)
"""
FILL = """
INSERT INTO sales SELECT i, i % 20 + 1, i % 300, CASE WHEN i % 11 = 0 THEN NULL ELSE 'Näme ''' || (i % 9) END,
    CASE WHEN i % 13 = 0 THEN NULL ELSE (i % 1000) / 4.0 - 99 END, (i % 9) / 100.0,
    1234567890123456789012345678.654321 - i, i / 8.0, DATE '2024-01-01' + (i % 400)::INTEGER,
    TIMESTAMP '2024-01-01' + INTERVAL (i) SECOND, CASE i % 3 WHEN 0 THEN true WHEN 1 THEN false END
FROM range({}, {}) r(i)
"""
BY_DUCKDB = {
    "by_day": """SELECT k, day, count(*) AS n, sum(price * (1 - tax)) AS s, count(price) AS c, avg(price) AS a
        FROM lake.sales WHERE price > 5 AND day < DATE '2025-02-01' AND name <> 'x' GROUP BY 1, 2""",
    "whole": "SELECT count(*) AS n, sum(k) AS k, sum(small) AS small, sum(price) AS s, count(ok) AS c FROM lake.sales",
    "nothing": "SELECT count(*) AS n, sum(price) AS s FROM lake.sales WHERE id < 0",
    "only_nulls": "SELECT k, sum(price) AS s, avg(price) AS a FROM lake.sales WHERE price IS NULL GROUP BY 1",
    "names": "SELECT name, ok, count(*) AS n FROM lake.sales GROUP BY 1, 2",
    "chosen": """SELECT CASE WHEN price > 50 THEN 'dear' ELSE 'cheap' END AS sort, coalesce(name, 'none') AS name,
        sum(CASE WHEN ok THEN price ELSE 0 END) AS s, count(*) FILTER (WHERE k IN (1, 2, 3)) AS few
        FROM lake.sales WHERE k IS NOT NULL AND NOT (name = 'Näme ''3') GROUP BY 1, 2""",
    "spread": "SELECT ok, var_pop(k) AS v, stddev_samp(small) AS d FROM lake.sales GROUP BY 1",
    "sorts": "SELECT DISTINCT k, ok, day FROM lake.sales",
    "joined": """SELECT c.label, s.day, count(*) AS n, sum(s.price) AS total FROM lake.sales s
        JOIN lake.kinds c ON c.k = s.k WHERE s.ok IS NOT TRUE GROUP BY 1, 2""",
    "pairs": "SELECT a.id, b.label, a.day FROM lake.sales a JOIN lake.kinds b ON a.k = b.k AND a.small > b.least",
    "same": "SELECT a.label, count(*) AS n FROM lake.kinds a JOIN lake.kinds b ON a.k = b.k GROUP BY 1",
}
BY_OTHERS = {
    "divided": "SELECT k, sum(id / 7) AS s FROM lake.sales GROUP BY 1",
    "raising": "SELECT k, count(*) AS n FROM lake.sales WHERE 100 / k > 2 GROUP BY 1",
    "floats": "SELECT rate, count(*) AS n FROM lake.sales GROUP BY 1",
    "moments": "SELECT ts, count(*) AS n FROM lake.sales GROUP BY 1",
    "shouted": "SELECT upper(name) AS name, count(*) AS n FROM lake.sales GROUP BY 1",
    "too_wide": "SELECT k, sum(wide * tax) AS s FROM lake.sales GROUP BY 1",
    "padded": "SELECT c.label, count(s.id) AS n FROM lake.kinds c LEFT JOIN lake.sales s ON s.k = c.k GROUP BY 1",
    "both": "SELECT f.note, count(*) AS n FROM lake.sales s JOIN few f ON f.id = s.id GROUP BY 1",
}


@pytest.fixture
def by_duckdb(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The stream tables that DuckDB has computed; everything is large."""
    names: set[str] = set()
    load = stagework.StageWork._load_files

    def noted(self: stagework.StageWork, *arguments: object) -> bool:
        names.add(self.table.name.name)
        return load(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(stagework.StageWork, "_load_files", noted)
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 0)
    yield names


@pytest.fixture
def lake(duck: Callable[..., Duck], data_path: str, client: runnel.Client, db: psycopg.Connection) -> Duck:
    """Sales in several files and kinds in one; a table of PostgreSQL beside them."""
    made = duck(data_path).run("CALL lake.set_option('data_inlining_row_limit', 10)").run(TABLE)
    made.run(FILL.format(0, 900)).run(FILL.format(900, 1500)).run(FILL.format(1500, 1505))
    made.run(
        "CREATE TABLE kinds AS SELECT i::INTEGER AS k, 'label ' || i % 4 AS label, 7 AS least FROM range(1, 25) r(i)"
    )
    client.attach_lake("lake", catalog_schema="ducklake")
    db.execute("CREATE TABLE few (id bigint PRIMARY KEY, note text)")
    db.execute("INSERT INTO few SELECT i, 'note ' || i FROM generate_series(1, 2000, 13) i")
    return made


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["by_day", "joined", "too_wide", "padded"], id="a few"),
        pytest.param([*BY_DUCKDB, *BY_OTHERS], id="all", marks=pytest.mark.slow),
    ],
)
def test_duckdb_computes_what_it_understands_as_postgresql_does(
    lake: Duck, client: runnel.Client, check: Check, by_duckdb: set[str], names: list[str]
) -> None:
    for name in names:
        client.create_stream_table(name, {**BY_DUCKDB, **BY_OTHERS}[name], refresh_mode="FULL")
    assert by_duckdb == set(BY_DUCKDB) & set(names)
    for name, who in (("joined", "a rebuild by tasks with DuckDB"), ("padded", "a rebuild by tasks")):
        assert f"the stream table: {who}" in map(str.strip, client.explain(name).splitlines())
    check(*names)


@pytest.mark.slow
def test_duckdb_reads_files_as_they_are_now(
    lake: Duck, client: runnel.Client, check: Check, by_duckdb: set[str]
) -> None:
    wanted = {name: BY_DUCKDB[name] for name in ("by_day", "whole", "joined", "sorts")}
    for name, query in wanted.items():
        client.create_stream_table(name, query, refresh_mode="FULL")
    columns = "(id, k, small, name, price, tax, wide, rate, day, ts, ok)"
    for step in (
        ["DELETE FROM sales WHERE id % 10 = 3", "UPDATE sales SET price = price + 1 WHERE id < 40"],
        ["DELETE FROM sales WHERE id BETWEEN 1500 AND 1502", FILL.format(1505, 1510)],
        ["ALTER TABLE sales ALTER COLUMN small SET DATA TYPE INTEGER", FILL.format(1510, 2100)],
        ["CALL ducklake_merge_adjacent_files('lake')", "DELETE FROM sales WHERE id % 4 = 0"],
        [
            "ALTER TABLE sales ADD COLUMN more INTEGER DEFAULT 5",
            FILL.format(2100, 2200).replace("sales", f"sales {columns}"),
        ],
        ["CALL ducklake_flush_inlined_data('lake')", "CALL ducklake_rewrite_data_files('lake')"],
        ["DELETE FROM sales"],
    ):
        by_duckdb.clear()
        for statement in step:
            lake.run(statement)
        check(*wanted)
        assert by_duckdb == set(wanted), step


@pytest.mark.slow
def test_duckdb_computes_changes(
    lake: Duck, client: runnel.Client, db: psycopg.Connection, check: Check, by_duckdb: set[str]
) -> None:
    wanted = {**BY_DUCKDB, "divided": BY_OTHERS["divided"]}
    for name, query in wanted.items():
        client.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
    check(*wanted)
    columns = "(id, k, small, name, price, tax, wide, rate, day, ts, ok)"
    for step in (
        [FILL.format(1505, 2300)],
        ["DELETE FROM sales WHERE id % 10 = 3", "UPDATE sales SET price = price + 1, k = k + 1 WHERE id < 40"],
        ["UPDATE kinds SET label = 'other' WHERE k < 5", FILL.format(2300, 2310)],
        [
            "DELETE FROM sales WHERE id BETWEEN 2299 AND 2304",
            "INSERT INTO kinds VALUES (3, 'twice', 1), (90, 'none', 1)",
        ],
        ["CALL ducklake_merge_adjacent_files('lake')", "DELETE FROM sales WHERE id % 4 = 0", FILL.format(2310, 2900)],
        [
            "ALTER TABLE sales ADD COLUMN more INTEGER DEFAULT 5",
            FILL.format(2900, 3000).replace("sales", f"sales {columns}"),
        ],
        ["DELETE FROM sales", "DELETE FROM kinds WHERE k > 10"],
        [FILL.format(0, 100).replace("sales", f"sales {columns}")],
    ):
        by_duckdb.clear()
        for statement in step:
            lake.run(statement)
        check(*wanted)
        assert "by_day" in by_duckdb and "divided" not in by_duckdb
    modes = {r[0] for r in db.execute("SELECT action FROM pgtrickle.pgt_refresh_history").fetchall()}
    assert modes == {"INITIAL", "DIFFERENTIAL"}


@pytest.mark.slow
def test_duckdb_reads_encrypted_files_through_us(
    duck: Callable[..., Duck], data_path: str, client: runnel.Client, check: Check, by_duckdb: set[str]
) -> None:
    made = duck(data_path, encrypted=True).run(TABLE).run(FILL.format(0, 300))
    made.run("DELETE FROM sales WHERE id % 7 = 0")
    client.attach_lake("lake", catalog_schema="ducklake")
    client.create_stream_table("whole", BY_DUCKDB["whole"], refresh_mode="FULL")
    check("whole")
    assert by_duckdb == {"whole"}
