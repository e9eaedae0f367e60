"""The shop of the tutorial at any size, made inside PostgreSQL, and the changes that happen to it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.stack import Bench
from benchmarks.timing import count

PRODUCTS = 2_000
CATEGORIES = 12
DAYS = 365

REVENUE = """
SELECT date_trunc('day', o.ordered_at) AS day, p.category, SUM(o.total_usd) AS revenue_usd,
       COUNT(*) AS order_count, COUNT(DISTINCT o.customer_id) AS unique_customers
FROM {schema}.orders o JOIN {schema}.products p ON p.id = o.product_id
WHERE o.status = 'shipped'
GROUP BY date_trunc('day', o.ordered_at), p.category
"""

_TABLES = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.customers (
    id serial PRIMARY KEY, email text NOT NULL UNIQUE, name text NOT NULL, plan text NOT NULL DEFAULT 'free',
    created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE {schema}.products (
    id serial PRIMARY KEY, sku text NOT NULL UNIQUE, name text NOT NULL, category text NOT NULL,
    price_usd numeric(10,2) NOT NULL, stock_count int NOT NULL DEFAULT 0);
CREATE TABLE {schema}.orders (
    id bigserial, customer_id int NOT NULL, product_id int NOT NULL, quantity int NOT NULL DEFAULT 1,
    total_usd numeric(10,2) NOT NULL, status text NOT NULL DEFAULT 'pending',
    ordered_at timestamptz NOT NULL DEFAULT now());
INSERT INTO {schema}.customers (email, name)
SELECT 'customer' || i || '@example.com', 'Customer ' || i FROM generate_series(1, {customers}) i;
INSERT INTO {schema}.products (sku, name, category, price_usd, stock_count)
SELECT 'SKU-' || i, 'Product ' || i, 'category ' || i % {categories}, 3 + i % 97, i % 400
FROM generate_series(1, {products}) i;
INSERT INTO {schema}.orders (customer_id, product_id, quantity, total_usd, status, ordered_at)
SELECT 1 + floor(random() * {customers})::int, 1 + floor(random() * {products})::int, 1 + i % 4, (i % 9973) / 7.0,
       CASE i % 5 WHEN 0 THEN 'pending' WHEN 4 THEN 'cancelled' ELSE 'shipped' END,
       now() - random() * interval '{days} days'
FROM generate_series(1, {orders}) i;
ALTER TABLE {schema}.orders ADD PRIMARY KEY (id);
CREATE INDEX ON {schema}.orders (customer_id);
CREATE INDEX ON {schema}.orders (product_id);
ALTER TABLE {schema}.orders ADD FOREIGN KEY (customer_id) REFERENCES {schema}.customers;
ALTER TABLE {schema}.orders ADD FOREIGN KEY (product_id) REFERENCES {schema}.products;
"""


@dataclass
class Shop:
    """A shop in a schema of its own, and the orders that later changes will pick."""

    bench: Bench
    schema: str
    orders: int
    customers: int
    _pending: Iterator[int] = field(init=False)
    _shipped: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        chance = random.Random(self.orders)
        self._pending = _without_repeats(chance, self.orders, 0)
        self._shipped = _without_repeats(chance, self.orders, 1)

    @property
    def revenue(self) -> str:
        """The query of revenue_by_day over this shop."""
        return REVENUE.format(schema=self.schema)

    def thousand_changes(self) -> None:
        """1,000 captured rows in one transaction: 500 inserts, 200 updates (two rows each), 100 deletes."""
        conn = self.bench.conn
        with conn.transaction():
            self.place_orders(500)
            ship = [next(self._pending) for _ in range(200)]
            conn.execute(f"UPDATE {self.schema}.orders SET status = 'shipped' WHERE id = ANY(%s)".encode(), (ship,))
            gone = [next(self._shipped) for _ in range(100)]
            conn.execute(f"DELETE FROM {self.schema}.orders WHERE id = ANY(%s)".encode(), (gone,))

    def place_orders(self, number: int) -> None:
        """New shipped orders of today."""
        self.bench.conn.execute(
            f"INSERT INTO {self.schema}.orders (customer_id, product_id, total_usd, status) "
            f"SELECT 1 + floor(random() * {self.customers})::int, 1 + floor(random() * {PRODUCTS})::int, i, 'shipped' "
            f"FROM generate_series(1, {number}) i".encode()
        )


def _without_repeats(chance: random.Random, orders: int, remainder: int) -> Iterator[int]:
    """Order ids with one remainder by five, scattered over the table."""
    numbers = chance.sample(range(1, orders // 5), min(orders // 5 - 1, 50_000))
    return iter([5 * n + remainder for n in numbers])


def open_shop(bench: Bench, orders: int) -> Shop:
    """A shop of this size: made at the first time, shared afterwards."""
    schema = bench.shops.get(orders)
    customers = max(orders // 20, 1000)
    if schema is None:
        schema = f"shop_{count(orders).replace(' ', '').lower()}"
        began = time.monotonic()
        script = _TABLES.format(
            schema=schema, customers=customers, products=PRODUCTS, categories=CATEGORIES, days=DAYS, orders=orders
        )
        bench.conn.execute(script.encode())
        for table in ("customers", "products", "orders"):
            bench.conn.execute(f"VACUUM ANALYZE {schema}.{table}".encode())
        bench.shops[orders] = schema
        bench.say(f"a shop with {orders:,} orders ({time.monotonic() - began:.0f} s)")
    return Shop(bench, schema, orders, customers)
