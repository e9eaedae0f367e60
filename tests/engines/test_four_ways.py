"""Every engine writes, every engine reads what all the others wrote, and a stream table follows each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.engines.conftest import Place
from tests.iceberg.clients import catalog, ducks

SELECT = "SELECT id, kind, amount FROM {}"
Bag = Counter[tuple[int, str | None, str]]


def bag(rows: Any) -> Bag:
    return Counter((int(i), k, str(Decimal(str(a)).quantize(Decimal("0.01")))) for i, k, a in rows)


def readers(place: Place, table: str) -> dict[str, Callable[[], Any]]:
    """What each engine reads of a table, by its name."""

    def pyiceberg(warehouse: str) -> list[tuple[Any, ...]]:
        found = catalog(place.http, warehouse).load_table(f"main.{table}").scan().to_arrow()
        return [tuple(row[name] for name in ("id", "kind", "amount")) for row in found.to_pylist()]

    def duckdb(warehouse: str) -> list[tuple[Any, ...]]:
        with ducks(place.http, warehouse) as reader:
            return reader.execute(SELECT.format(f"ice.main.{table}")).fetchall()

    found: dict[str, Callable[[], Any]] = {"ducklake": lambda: place.duck.rows(SELECT.format(table))}
    for name, warehouse in (("ice", "lake"), ("ice2", "lake@v2")):
        found[f"pyiceberg {warehouse}"] = lambda where=warehouse: pyiceberg(where)
        found[f"duckdb-iceberg {warehouse}"] = lambda where=warehouse: duckdb(where)
        found[f"trino {warehouse}"] = lambda at=name: place.trino.rows(SELECT.format(f"{at}.main.{table}"))
        # Spark keeps tables that it has loaded.
        found[f"spark {warehouse}"] = lambda at=name: (
            place.spark.rows(f"REFRESH TABLE {at}.main.{table}"),
            place.spark.rows(SELECT.format(f"{at}.main.{table}")),
        )[1]
    return found


def all_same(place: Place, table: str, what: str) -> Bag:
    read = readers(place, table)
    wanted = bag(read.pop("ducklake")())
    for name, rows in read.items():
        got = bag(rows())
        assert got == wanted, f"{name} after {what}: too many {got - wanted}, missing {wanted - got}"
    return wanted


def moved(place: Place, table: str, what: str) -> Bag:
    """The stream table over the table is exact, and everybody reads the same."""
    result = place.client.verify(f"by_kind_{table}")
    assert result.ok, f"{what}: missing {result.missing[:5]}, unexpected {result.unexpected[:5]}"
    wanted = all_same(place, table, what)
    counts: Counter[str | None] = Counter()
    for (_, kind, _), n in wanted.items():
        counts[kind] += n
    assert dict(place.db.execute(f"SELECT kind, n FROM by_kind_{table}".encode()).fetchall()) == dict(counts), what
    return wanted


def start(place: Place, table: str) -> None:
    place.duck.run(f"CREATE TABLE {table} (id BIGINT, kind VARCHAR, amount DECIMAL(10,2))")
    place.duck.run(f"INSERT INTO {table} SELECT i, 'k' || (i % 4), i / 4 FROM range(100) r(i)")
    place.client.create_stream_table(
        f"by_kind_{table}", f"SELECT kind, count(*) AS n, sum(amount) AS s FROM lake.{table} GROUP BY 1"
    )


@pytest.fixture(params=["ice", "ice2"])
def version(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def test_trino_writes(place: Place, version: str) -> None:
    table = f"trino_{version}"
    start(place, table)
    name = f"{version}.main.{table}"
    for text in (
        f"INSERT INTO {name} VALUES (1000, 'trino', 1.25), (1001, NULL, 2.5)",
        f"DELETE FROM {name} WHERE id % 10 = 3",
        f"UPDATE {name} SET kind = 'up', amount = amount + 1 WHERE id % 10 = 4",
        f"MERGE INTO {name} t USING (VALUES (1000, 'merged'), (2000, 'new')) s (id, kind) ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET kind = s.kind WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.kind, 9.75)",
    ):
        place.trino.rows(text)
        moved(place, table, text)
        place.duck.run(f"INSERT INTO {table} VALUES (5000, 'duck', 1)").run(f"DELETE FROM {table} WHERE id = 5000")
    place.trino.rows(f"ALTER TABLE {name} EXECUTE optimize")
    moved(place, table, "optimize")


def test_spark_writes(place: Place, version: str) -> None:
    table = f"spark_{version}"
    start(place, table)
    name = f"{version}.main.{table}"
    for mode in ("copy-on-write", "merge-on-read"):
        place.spark.rows(
            f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='{mode}', 'write.update.mode'='{mode}',"
            f" 'write.merge.mode'='{mode}')"
        )
        for text in (
            f"INSERT INTO {name} VALUES (1000, 'spark', 1.25), (1001, NULL, 2.5)",
            f"DELETE FROM {name} WHERE id % 10 = {3 if mode == 'copy-on-write' else 5}",
            f"UPDATE {name} SET kind = 'up', amount = amount + 1 WHERE id % 10 = 4",
            f"MERGE INTO {name} t USING (SELECT 1000 AS id, 'merged' AS kind UNION ALL SELECT 2000, 'new') s"
            " ON t.id = s.id WHEN MATCHED THEN UPDATE SET kind = s.kind"
            " WHEN NOT MATCHED THEN INSERT (id, kind, amount) VALUES (s.id, s.kind, 9.75)",
        ):
            place.spark.rows(text)
            moved(place, table, f"{mode}: {text}")
            place.duck.run(f"INSERT INTO {table} VALUES (5000, 'duck', 1)").run(f"DELETE FROM {table} WHERE id = 5000")
            place.spark.rows(f"REFRESH TABLE {name}")
    place.spark.rows(f"INSERT OVERWRITE {name} SELECT id, kind, amount FROM {name} WHERE id < 50")
    moved(place, table, "overwrite")
    before = place.duck.head()
    place.spark.rows(f"REFRESH TABLE {name}")
    place.spark.rows(
        f"CALL {version}.system.rewrite_data_files(table => 'main.{table}', options => map('rewrite-all', 'true'))"
    )
    moved(place, table, "rewrite")
    assert place.duck.head() > before


def test_tables_are_created_by_each(place: Place, version: str) -> None:
    columns = "id, kind, amount"
    source = "SELECT CAST(7 AS BIGINT) AS id, 'a' AS kind, CAST(1.5 AS DECIMAL(10,2)) AS amount"
    for engine, rows in (("trino", place.trino.rows), ("spark", place.spark.rows)):
        made = f"{version}.main.made_{engine}_{version}"
        using = " USING iceberg" if engine == "spark" else ""
        types = "id BIGINT, kind STRING, amount DECIMAL(10,2)" if engine == "spark" else (
            "id BIGINT, kind VARCHAR, amount DECIMAL(10,2)"
        )  # fmt: skip
        rows(f"CREATE TABLE {made} ({types}){using}")
        rows(f"INSERT INTO {made} {source}")
        all_same(place, f"made_{engine}_{version}", f"{engine} creates")
        rows(f"CREATE TABLE {made}_as{using} AS {source}")
        all_same(place, f"made_{engine}_{version}_as", f"{engine} creates with rows")
        rows(f"ALTER TABLE {made} ADD COLUMN{'S (more STRING)' if engine == 'spark' else ' more VARCHAR'}")
        rows(f"INSERT INTO {made} SELECT {columns}, 'm' FROM {made}_as")
        assert place.duck.rows(f"SELECT more, count(*) FROM made_{engine}_{version} GROUP BY 1 ORDER BY 1") == [
            ("m", 1), (None, 1)
        ]  # fmt: skip
        rows(f"ALTER TABLE {made} RENAME COLUMN kind TO label")
        rows(f"ALTER TABLE {made} DROP COLUMN more")
        assert place.duck.rows(f"SELECT * FROM made_{engine}_{version}") == [(7, "a", Decimal("1.50"))] * 2
        to = "main." if engine == "spark" else f"{version}.main."
        rows(f"ALTER TABLE {made}_as RENAME TO {to}renamed_{engine}_{version}")
        assert place.duck.rows(f"SELECT count(*) FROM renamed_{engine}_{version}") == [(1,)]
        rows(f"DROP TABLE {made}")
        assert not place.duck.rows(f"SELECT 1 FROM duckdb_tables() WHERE table_name = 'made_{engine}_{version}'")


def test_partitions_comments_types_and_namespaces_by_each(place: Place, version: str) -> None:
    for engine, rows in (("trino", place.trino.rows), ("spark", place.spark.rows)):
        schema = f"{engine}_{version}"
        rows(f"CREATE SCHEMA {version}.{schema}")
        made = f"{version}.{schema}.parts"
        if engine == "trino":
            rows(
                f"CREATE TABLE {made} (id INTEGER, kind VARCHAR, amount DECIMAL(10,2))"
                " WITH (partitioning = ARRAY['kind'])"
            )
            alter = (
                f"COMMENT ON TABLE {made} IS 'what it is'",
                f"COMMENT ON COLUMN {made}.kind IS 'of which kind'",
                f"ALTER TABLE {made} ALTER COLUMN id SET DATA TYPE BIGINT",
                f"ALTER TABLE {made} ALTER COLUMN amount SET DATA TYPE DECIMAL(12,2)",
                f"ALTER TABLE {made} SET PROPERTIES partitioning = ARRAY['kind', 'bucket(id, 4)']",
            )
        else:
            rows(
                f"CREATE TABLE {made} (id INT, kind STRING, amount DECIMAL(10,2)) USING iceberg PARTITIONED BY (kind)"
                " COMMENT 'what it is'"
            )
            alter = (
                f"ALTER TABLE {made} ALTER COLUMN kind COMMENT 'of which kind'",
                f"ALTER TABLE {made} ALTER COLUMN id TYPE BIGINT",
                f"ALTER TABLE {made} ALTER COLUMN amount TYPE DECIMAL(12,2)",
                f"ALTER TABLE {made} ADD PARTITION FIELD bucket(4, id)",
            )
        rows(f"INSERT INTO {made} VALUES (1, 'a', 1.5), (2, 'b', 2.5), (3, NULL, 3.5)")
        for text in alter:
            rows(text)
        rows(f"INSERT INTO {made} VALUES (5000000000, 'a', 1234567890.5)")
        rows(f"DELETE FROM {made} WHERE kind = 'b'")
        place.duck.run(f"INSERT INTO {schema}.parts VALUES (7, 'd', 7)")
        wanted = bag(place.duck.rows(SELECT.format(f"{schema}.parts")))
        assert {row[0] for row in wanted} == {1, 3, 7, 5000000000}
        for other in ("ice", "ice2"):
            place.spark.rows(f"REFRESH TABLE {other}.{schema}.parts")
            for read in (place.trino.rows, place.spark.rows):
                assert bag(read(SELECT.format(f"{other}.{schema}.parts"))) == wanted, (engine, version, other)
        assert place.duck.rows(
            f"SELECT comment FROM duckdb_tables() WHERE schema_name = '{schema}' AND table_name = 'parts'"
        ) == [("what it is",)]
        told = f"SELECT comment, data_type FROM duckdb_columns() WHERE schema_name = '{schema}' ORDER BY column_index"
        assert place.duck.rows(told) == [
            (None, "BIGINT"), ("of which kind", "VARCHAR"), (None, "DECIMAL(12,2)")
        ]  # fmt: skip
        rows(f"DROP TABLE {made}")
        rows(f"DROP SCHEMA {version}.{schema}")
        assert not place.duck.rows(
            f"SELECT 1 FROM duckdb_schemas() WHERE schema_name = '{schema}' AND database_name = 'lake'"
        )


def test_what_a_stream_table_publishes_is_read_by_all(place: Place) -> None:
    place.db.execute("CREATE TABLE orders (id bigint PRIMARY KEY, kind text, amount numeric(10,2))")
    place.db.execute("INSERT INTO orders SELECT i, 'k' || i % 3, i FROM generate_series(1, 50) i")
    place.client.create_stream_table("shown", "SELECT id, kind, amount FROM orders WHERE id > 5", sink="ducklake")
    schema = place.duck.rows("SELECT schema_name FROM duckdb_views() WHERE view_name = 'shown'")[0][0]
    for change in ("SELECT", "DELETE FROM orders WHERE id % 4 = 0", "UPDATE orders SET kind = 'x' WHERE id % 5 = 0"):
        place.db.execute(change)
        assert place.client.verify("shown").ok
        wanted = bag(place.db.execute("SELECT id, kind, amount FROM shown").fetchall())
        for version in ("ice", "ice2"):
            assert bag(place.trino.rows(SELECT.format(f"{version}.{schema}.shown"))) == wanted
            place.spark.rows(f"REFRESH TABLE {version}.{schema}.shown")
            assert bag(place.spark.rows(SELECT.format(f"{version}.{schema}.shown"))) == wanted
    for rows in (place.trino.rows, place.spark.rows):
        with pytest.raises(RuntimeError, match="belongs to a stream table"):
            rows(f"DELETE FROM ice.{schema}.shown WHERE id = 7")


def test_pyiceberg_and_duckdb_write(place: Place) -> None:
    start(place, "others")
    rows = pa.table(
        {"id": pa.array([1], pa.int64()), "kind": ["p"], "amount": pa.array([Decimal(1)], pa.decimal128(10, 2))}
    )
    catalog(place.http, "lake@v2", token=place.token).load_table("main.others").append(rows)
    moved(place, "others", "PyIceberg")
    for warehouse in ("lake", "lake@v2"):
        with ducks(place.http, warehouse, token=place.token) as writer:
            writer.execute("DELETE FROM ice.main.others WHERE id = 50")
            writer.execute("INSERT INTO ice.main.others VALUES (50, 'd', 1)")
        moved(place, "others", f"DuckDB {warehouse}")
