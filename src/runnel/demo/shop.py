"""From orders to the lake: a shop on PostgreSQL, its stream tables in DuckLake, and DuckDB over both."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal

from runnel.demo.story import Connection, Done, Question, Story, script

CUSTOMERS = 300
PRODUCTS = 120
PAST_ORDERS = 5_000
ARCHIVED_ORDERS = 200_000

_PAST = """
SELECT setseed(0.42);

INSERT INTO customers (email, name, plan, created_at)
SELECT format('customer%s@example.com', i), format('Customer %s', i),
       (ARRAY['free', 'free', 'free', 'pro', 'pro', 'enterprise'])[1 + floor(random() * 6)],
       now() - random() * interval '300 days'
FROM generate_series(1, {customers}) i;

INSERT INTO products (sku, name, category, price_usd, stock_count)
SELECT format('SKU-%s', to_char(i, 'FM0000')), format('Product %s', i),
       (ARRAY['books', 'coffee', 'games', 'garden', 'music', 'tools'])[1 + i % 6],
       (3 + random() * 120)::numeric(10,2), floor(random() * 400)
FROM generate_series(1, {products}) i;

INSERT INTO orders (customer_id, product_id, quantity, total_usd, status, ordered_at)
SELECT o.customer_id, p.id, o.quantity, o.quantity * p.price_usd, o.status, o.ordered_at
FROM (
    SELECT 1 + floor(random() * {customers})::int AS customer_id,
           1 + floor(random() * {products})::int AS product_id,
           1 + floor(random() * 4)::int AS quantity,
           (ARRAY['shipped', 'shipped', 'shipped', 'pending', 'cancelled'])[1 + floor(random() * 5)]
               AS status,
           now() - random() * interval '14 days' AS ordered_at
    FROM generate_series(1, {orders})
) o JOIN products p ON p.id = o.product_id;
"""

_ORDER = """
WITH bought AS (
    UPDATE products SET stock_count = greatest(stock_count - %(quantity)s, 0) WHERE id = %(product)s
    RETURNING id, price_usd)
INSERT INTO orders (customer_id, product_id, quantity, total_usd)
SELECT %(customer)s, id, %(quantity)s, %(quantity)s * price_usd FROM bought
RETURNING id
"""
_SHIP = """
UPDATE orders SET status = 'shipped'
WHERE id IN (SELECT id FROM orders WHERE status = 'pending' ORDER BY id LIMIT %(count)s)
"""
_CANCEL = """
UPDATE orders SET status = 'cancelled'
WHERE id = (SELECT id FROM orders WHERE status = 'shipped' ORDER BY id DESC OFFSET %(skip)s LIMIT 1)
"""
_FORGET = """
DELETE FROM orders WHERE id = (SELECT id FROM orders WHERE status = 'cancelled' ORDER BY id LIMIT 1)
"""
_REPRICE = "UPDATE products SET price_usd = round(price_usd * %(factor)s, 2) WHERE id = %(product)s"
_RESTOCK = "UPDATE products SET stock_count = stock_count + 250 WHERE id = %(product)s"
_UPGRADE = "UPDATE customers SET plan = 'pro' WHERE id = %(customer)s AND plan = 'free'"

_ARCHIVE = f"""
CREATE TABLE lake.orders_archive AS
SELECT i AS id, 1 + (hash(i) % {CUSTOMERS})::INT AS customer_id,
       -- Everybody loves the first products.
       1 + (hash(i + 1) % {PRODUCTS} * (hash(i + 2) % 100) // 100)::INT AS product_id,
       (5 + hash(i + 3) % 20000 / 100)::DECIMAL(10, 2) AS total_usd,
       now() - to_days(15) - to_seconds((hash(i + 4) % (350 * 86400))::BIGINT) AS ordered_at
FROM range({ARCHIVED_ORDERS}) t(i)
"""

QUESTIONS = (
    Question(
        "what runs out",
        "PostgreSQL",
        """
        SELECT sku, stock_count AS stock, units_sold_7d AS sold_7d, stock_status AS status
        FROM inventory_health WHERE stock_status <> 'OK'
        ORDER BY stock_status DESC, units_sold_7d DESC, id LIMIT 6""",
    ),
    Question(
        "revenue by region, from Parquet",
        "DuckDB",
        """
        SELECT region, revenue_usd::DECIMAL(18, 2) AS revenue, order_count AS orders, buyers, newest_order
        FROM lake.revenue_by_region ORDER BY region""",
    ),
    Question(
        "a year in the lake, joined with the live tables",
        "DuckDB",
        """
        SELECT p.category, sum(a.total_usd) AS archived_year, any_value(d.revenue) AS live_days,
               count(*) AS archived_orders
        FROM lake.orders_archive a
        JOIN live.public.products p ON p.id = a.product_id
        JOIN (SELECT category, sum(revenue_usd)::DECIMAL(18, 2) AS revenue FROM live.public.revenue_by_day GROUP BY 1) d
          ON d.category = p.category
        GROUP BY p.category ORDER BY p.category""",
    ),
    Question(
        "time travel: what the last 15 seconds brought",
        "DuckDB",
        """
        SELECT region, (now.revenue_usd - past.revenue_usd)::DECIMAL(18, 2) AS revenue,
               now.order_count - past.order_count AS orders, {then} AS since_snapshot
        FROM lake.revenue_by_region AS now
        JOIN lake.revenue_by_region AS past AT (VERSION => {then}) USING (region) ORDER BY region""",
    ),
)


def fill_shop(connection: Connection) -> str:
    """Customers, products and two weeks of past orders."""
    connection.execute(_PAST.format(customers=CUSTOMERS, products=PRODUCTS, orders=PAST_ORDERS).encode())
    return f"A shop with {CUSTOMERS} customers, {PRODUCTS} products, {PAST_ORDERS:,} orders"


def place_order(connection: Connection, chance: random.Random) -> Done:
    """An order, and now and then something else, so that each order is shipped a little later."""
    placed = connection.execute(
        _ORDER,
        {
            "customer": chance.randint(1, CUSTOMERS),
            # A few products are much in demand, which is what empties their shelves.
            "product": min(1 + int(chance.expovariate(1 / 25)), PRODUCTS),
            "quantity": chance.randint(1, 4),
        },
    ).fetchone()
    assert placed is not None
    return Done(placed[0], sum(act(connection) for odds, act in _sidelines(chance) if chance.random() < odds))


def _sidelines(chance: random.Random) -> tuple[tuple[float, Callable[[Connection], int]], ...]:
    product = {"product": chance.randint(1, PRODUCTS)}
    customer = {"customer": chance.randint(1, CUSTOMERS)}
    factor = {"factor": chance.choice((Decimal("0.9"), Decimal("1.05"), Decimal("1.1"))), **product}
    return (
        (0.25, lambda c: c.execute(_SHIP, {"count": 4}).rowcount),
        (0.05, lambda c: c.execute(_CANCEL, {"skip": chance.randint(0, 50)}).rowcount),
        (0.02, lambda c: c.execute(_FORGET).rowcount),
        (0.02, lambda c: c.execute(_REPRICE, factor).rowcount),
        (0.03, lambda c: c.execute(_RESTOCK, product).rowcount),
        (0.01, lambda c: c.execute(_UPGRADE, customer).rowcount),
    )


def shop_story() -> Story:
    """The demo of `make demo`."""
    tables, stream_tables = script("shop.sql").split("-- step 2", 1)
    return Story(
        name="shop",
        unit="orders",
        rate=20,
        tables=tables,
        fill=fill_shop,
        stream_tables="-- step 2" + stream_tables + script("lake.sql"),
        archive=(_ARCHIVE,),
        act=place_order,
        questions=QUESTIONS,
        newest="SELECT max(newest_order) FROM lake.revenue_by_region",
        probed="revenue_by_region",
    )
