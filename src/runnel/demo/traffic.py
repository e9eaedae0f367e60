"""The shop's life: a past to start from, then orders, shipments, cancellations and price changes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import psycopg

CUSTOMERS = 300
PRODUCTS = 120
PAST_ORDERS = 5_000

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


@dataclass(slots=True)
class Tally:
    """What the shop did so far; written by the traffic's thread, read by the screen's."""

    orders: int = 0
    other: int = 0


def fill_shop(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Customers, products and two weeks of past orders."""
    text = _PAST.format(customers=CUSTOMERS, products=PRODUCTS, orders=PAST_ORDERS)
    connection.execute(text.encode())


class Traffic:
    """A thread that runs the shop at a rate until told to stop."""

    def __init__(self, dsn: str, rate: float) -> None:
        self.tally = Tally()
        self.error: Exception | None = None
        self._dsn = dsn
        self._rate = rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="demo-traffic", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=30)

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.error = error

    def _run(self) -> None:
        chance = random.Random(7)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            began = time.monotonic()
            while not self._stopping.is_set():
                due = int((time.monotonic() - began) * self._rate)
                while self.tally.orders < due and not self._stopping.is_set():
                    self._one_order(connection, chance)
                self._stopping.wait(min(1 / self._rate, 0.5))

    def _one_order(self, connection: psycopg.Connection[tuple[object, ...]], chance: random.Random) -> None:
        """An order, and now and then something else, so that each order is shipped a little later."""
        connection.execute(
            _ORDER,
            {
                "customer": chance.randint(1, CUSTOMERS),
                # A few products are much in demand, which is what empties their shelves.
                "product": min(1 + int(chance.expovariate(1 / 25)), PRODUCTS),
                "quantity": chance.randint(1, 4),
            },
        )
        self.tally.orders += 1
        for odds, act in self._sidelines(chance):
            if chance.random() < odds:
                self.tally.other += act(connection)

    @staticmethod
    def _sidelines(
        chance: random.Random,
    ) -> tuple[tuple[float, Callable[[psycopg.Connection[tuple[object, ...]]], int]], ...]:
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
