"""Continuous writes for crash tests: transactions over several tables, rollbacks, savepoints, lost connections.

Every writer keeps its own account of what was acknowledged, so that a test can tell a lost or doubled row without
asking the engine.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, plan text NOT NULL DEFAULT 'free');
CREATE TABLE products (id int PRIMARY KEY, category text NOT NULL, price numeric(10,2) NOT NULL, stock int NOT NULL);
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id int REFERENCES customers, product_id int NOT NULL,
    quantity int NOT NULL, total numeric(12,2) NOT NULL, status text NOT NULL DEFAULT 'pending',
    ordered_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON orders (customer_id);
CREATE INDEX ON orders (product_id);
CREATE TABLE accounts (id int PRIMARY KEY, region text NOT NULL, balance bigint NOT NULL);
CREATE TABLE journal (writer int NOT NULL, number int NOT NULL, fate text NOT NULL);   -- no key, on purpose
INSERT INTO customers SELECT i, 'customer ' || i FROM generate_series(1, 60) i;
INSERT INTO products SELECT i, 'category ' || i % 5, i, 1000 FROM generate_series(1, 25) i;
INSERT INTO accounts SELECT i, 'region ' || i % 3, 1000 FROM generate_series(1, 40) i;
INSERT INTO orders (customer_id, product_id, quantity, total, status)
SELECT 1 + i % 60, 1 + i % 25, 1 + i % 4, i % 97, 'shipped' FROM generate_series(1, 3000) i;
ANALYZE;
"""

STREAM_TABLES = {
    "revenue": """
        SELECT date_trunc('minute', o.ordered_at) AS minute, p.category, sum(o.total) AS revenue, count(*) AS orders,
               count(DISTINCT o.customer_id) AS customers
        FROM orders o JOIN products p ON p.id = o.product_id WHERE o.status = 'shipped' GROUP BY 1, 2""",
    "lifetime": """
        SELECT c.id, c.plan, sum(o.total) AS spent, count(*) AS orders, max(o.ordered_at) AS latest
        FROM customers c LEFT JOIN orders o ON o.customer_id = c.id AND o.status = 'shipped' GROUP BY c.id, c.plan""",
    "balances": "SELECT region, sum(balance) AS balance, count(*) AS accounts FROM accounts GROUP BY region",
    "total": "SELECT sum(balance) AS balance, sum(accounts) AS accounts FROM balances",
    "entries": "SELECT writer, number, fate FROM journal WHERE fate <> 'ignored'",
}
"""In order of creation: `total` reads the stream table `balances`."""


@dataclass
class Writer:
    """One thread of writes, and what it knows about them."""

    number: int
    dsn: str
    stopping: threading.Event
    chance: random.Random
    pause: float
    acknowledged: set[int] = field(default_factory=set)
    rolled_back: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    """The connection was lost while committing: either outcome is right."""
    errors: list[BaseException] = field(default_factory=list)
    _next: int = 0

    def run(self) -> None:
        """Write until told to stop; a lost server is waited for."""
        while not self.stopping.is_set():
            try:
                with psycopg.connect(self.dsn, autocommit=True) as conn:
                    while not self.stopping.is_set():
                        self._transaction(conn)
                        time.sleep(self.chance.uniform(0, 2 * self.pause))
            except psycopg.OperationalError:
                time.sleep(0.05)
            except BaseException as error:  # a broken writer must fail the test, not end silently
                self.errors.append(error)
                return

    def _transaction(self, conn: psycopg.Connection[Any]) -> None:
        self._next += 1
        number = self._next
        keep = self.chance.random() > 0.2
        self.unknown.add(number)
        try:
            with conn.transaction(force_rollback=not keep):
                self._entry(conn, number, "kept" if keep else "rolled back")
                for _ in range(self.chance.randint(1, 4)):
                    self._change(conn)
                if self.chance.random() < 0.1:
                    time.sleep(self.chance.uniform(0, 0.5))  # late commits
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
            keep = False
        self.unknown.discard(number)
        (self.acknowledged if keep else self.rolled_back).add(number)

    def _entry(self, conn: psycopg.Connection[Any], number: int, fate: str) -> None:
        conn.execute("INSERT INTO journal VALUES (%s, %s, %s)", (self.number, number, fate))
        with conn.transaction(force_rollback=True):
            conn.execute("INSERT INTO journal VALUES (%s, %s, 'in a savepoint')", (self.number, -number))

    def _change(self, conn: psycopg.Connection[Any]) -> None:
        pick = self.chance.random
        customer, product = self.chance.randint(1, 60), self.chance.randint(1, 25)
        kind = self.chance.randrange(8)
        if kind <= 2:
            conn.execute(
                "INSERT INTO orders (customer_id, product_id, quantity, total, status) "
                "SELECT %s, %s, 1 + i %% 3, %s, CASE i %% 3 WHEN 0 THEN 'shipped' ELSE 'pending' END "
                "FROM generate_series(1, %s) i",
                (customer, product, round(pick() * 100, 2), self.chance.choice((1, 1, 1, 20))),
            )
            conn.execute("UPDATE products SET stock = stock - 1 WHERE id = %s", (product,))
        elif kind == 3:
            conn.execute(
                "UPDATE orders SET status = 'shipped' WHERE status = 'pending' AND product_id = %s", (product,)
            )
        elif kind == 4:
            conn.execute(
                "DELETE FROM orders WHERE id IN (SELECT id FROM orders WHERE customer_id = %s ORDER BY id LIMIT 3)",
                (customer,),
            )
        elif kind == 5:
            conn.execute("UPDATE customers SET plan = %s WHERE id = %s", (self.chance.choice("abc"), customer))
            conn.execute(
                "UPDATE products SET category = 'category ' || %s WHERE id = %s", (self.chance.randrange(5), product)
            )
        else:
            self._transfer(conn)

    def _transfer(self, conn: psycopg.Connection[Any]) -> None:
        first, second = sorted(self.chance.sample(range(1, 41), 2))
        amount = self.chance.randint(-50, 50)
        conn.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, first))
        conn.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, second))


class Writers:
    """Several writers at once."""

    def __init__(self, dsn: str, count: int = 3, *, pause: float = 0.03, seed: int = 0) -> None:
        self._stopping = threading.Event()
        self.all = [Writer(i, dsn, self._stopping, random.Random(f"{seed}/{i}"), pause) for i in range(count)]
        self._threads = [threading.Thread(target=w.run, name=f"writer-{w.number}", daemon=True) for w in self.all]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)
        for writer in self.all:
            if writer.errors:
                raise writer.errors[0]

    @property
    def committed(self) -> int:
        return sum(len(w.acknowledged) for w in self.all)
