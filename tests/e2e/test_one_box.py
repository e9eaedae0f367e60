"""The tutorial's three stream tables, exactly as printed there, through psql's own way in."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from importlib import resources

import psycopg

import runnel
from runnel.server.account import binaries


def test_shop_tables_follow_their_sources(
    client: runnel.Client, dsn: str, db: psycopg.Connection, check: Callable[..., None]
) -> None:
    """Inserts, updates, deletes and key changes in all three sources reach all three stream tables."""
    script = resources.files("runnel.demo").joinpath("shop.sql").read_text()
    subprocess.run([binaries() / "psql", dsn, "-q", "-v", "ON_ERROR_STOP=1"], input=script, text=True, check=True)
    names = ("revenue_by_day", "customer_lifetime_value", "inventory_health")
    db.execute("INSERT INTO customers (email, name) SELECT 'e' || i, 'n' || i FROM generate_series(1, 30) i")
    db.execute(
        "INSERT INTO products (sku, name, category, price_usd, stock_count) "
        "SELECT 's' || i, 'p' || i, 'c' || i % 4, i, i * 2 FROM generate_series(1, 12) i"
    )
    db.execute(
        "INSERT INTO orders (customer_id, product_id, quantity, total_usd, status, ordered_at) "
        "SELECT 1 + i % 28, 1 + i % 11, i % 5, i * 1.25, CASE i % 3 WHEN 0 THEN 'shipped' ELSE 'pending' END, "
        "now() - i * interval '7 hours' FROM generate_series(1, 150) i"
    )
    check(*names)
    db.execute("UPDATE orders SET status = 'shipped' WHERE id % 7 = 1")
    db.execute("DELETE FROM orders WHERE id % 11 = 3")
    db.execute("UPDATE products SET category = 'moved' WHERE id < 4")
    check(*names)
    db.execute("UPDATE orders SET customer_id = 29 WHERE id % 13 = 2")
    db.execute("DELETE FROM orders WHERE customer_id = 5")
    db.execute("TRUNCATE orders")
    check(*names)
    row = db.execute("SELECT count(*), max(total_orders) FROM customer_lifetime_value").fetchone()
    assert row == (30, 1), "a customer without orders keeps one padded row"
