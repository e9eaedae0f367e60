"""Digits after the point of published numbers: as many as the query can make, and no more."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.types.json import Jsonb

import runnel
from tests.lake.duck import Duck
from tests.lake.places import Place
from tests.lake.sinks import lake, place, same

__all__ = ["lake", "place"]

Db = psycopg.Connection[Any]

SHOP = """
CREATE TABLE products (id int PRIMARY KEY, category text, price numeric(8,3));
CREATE TABLE orders (id int PRIMARY KEY, product_id int, total_usd numeric(10,2));
INSERT INTO products VALUES (1, 'books', 20.125), (2, 'coffee', 12);
INSERT INTO orders SELECT g, 1 + g % 2, g * 1.01 FROM generate_series(1, 20) g
"""
REVENUE = """
SELECT p.category, sum(o.total_usd) AS revenue_usd, max(o.total_usd) AS largest, sum(o.total_usd * p.price) AS product,
       avg(o.total_usd) AS average
FROM orders o JOIN products p ON p.id = o.product_id GROUP BY p.category
"""


def decimals(lake: Duck, table: str) -> dict[str, str]:
    described = f"SELECT column_name, column_type FROM (DESCRIBE {table}) WHERE column_type LIKE 'DECIMAL%'"
    return {name: kind.removeprefix("DECIMAL") for name, kind in lake.rows(described)}


def test_joins_and_chains_keep_their_digits(db: Db, place: Place, lake: Duck, client: runnel.Client) -> None:
    db.execute(SHOP.encode())
    client.create_stream_table("revenue", REVENUE, schedule="1h", sink="ducklake")
    client.create_stream_table(
        "whole", "SELECT sum(revenue_usd) AS total, max(average) AS best FROM revenue", schedule="1h", sink="ducklake"
    )
    assert decimals(lake, "revenue") == {
        "revenue_usd": "(38,2)",
        "largest": "(38,2)",
        "product": "(38,5)",
        "average": "(38,20)",
    }
    assert decimals(lake, "whole") == {"total": "(38,2)", "best": "(38,20)"}
    db.execute("INSERT INTO orders VALUES (100, 2, 99999999.99), (101, 1, -0.01)")
    client.refresh("whole")
    same(db, lake, "revenue")
    same(db, lake, "whole")


def test_a_reader_learns_that_its_source_has_more_digits(
    db: Db, place: Place, lake: Duck, client: runnel.Client
) -> None:
    db.execute(SHOP.encode())
    client.create_stream_table("sums", "SELECT product_id, sum(total_usd) AS s FROM orders GROUP BY 1", schedule="1h")
    client.create_stream_table("total", "SELECT sum(s) AS s FROM sums", schedule="1h", sink="ducklake")
    assert decimals(lake, "total") == {"s": "(38,2)"}
    client.alter_stream_table(
        "sums", query="SELECT product_id, sum(total_usd * 0.1234) AS s FROM orders GROUP BY product_id"
    )
    client.refresh("total")
    assert decimals(lake, "total") == {"s": "(38,6)"}
    same(db, lake, "total")


def test_a_published_column_keeps_its_type(db: Db, place: Place, lake: Duck, client: runnel.Client) -> None:
    """What earlier releases published with twenty digits stays so until the query is defined anew."""
    db.execute(SHOP.encode())
    client.create_stream_table("revenue", REVENUE, schedule="1h")
    client.alter_stream_table("revenue", sink="ducklake")
    # As an earlier release has left it: no digits known.
    columns = [
        ["category", "text", "varchar"],
        ["revenue_usd", "numeric", "decimal(38,20)"],
        ["largest", "numeric", "decimal(38,20)"],
        ["product", "numeric", "decimal(38,20)"],
        ["average", "numeric", "decimal(38,20)"],
    ]
    db.execute("UPDATE pgtrickle.pgt_sinks SET columns = %s, row_count = NULL", (Jsonb(columns),))
    db.execute("INSERT INTO orders VALUES (100, 2, 5.55)")
    client.refresh("revenue")
    assert decimals(lake, "revenue")["revenue_usd"] == "(38,20)"
    db.execute("INSERT INTO orders VALUES (101, 2, 5.55)")
    client.refresh("revenue")
    assert decimals(lake, "revenue")["revenue_usd"] == "(38,20)"
    same(db, lake, "revenue")
    client.alter_stream_table("revenue", query=REVENUE.replace("avg(o.total_usd)", "min(o.total_usd)"))
    assert decimals(lake, "revenue")["revenue_usd"] == "(38,2)"
    same(db, lake, "revenue")
