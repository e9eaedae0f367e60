"""A small shop that changes at random: sources of the stream tables that are published."""

from __future__ import annotations

import random
import string
from typing import Any

import psycopg

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE shops (id int PRIMARY KEY, region text NOT NULL);
CREATE TABLE items (
    id int PRIMARY KEY, shop int NOT NULL, kind varchar(10), price numeric(12,2), weight numeric, amount bigint,
    rank smallint, ok boolean, ratio float8, small real, day date, at timestamptz, local timestamp, hour time,
    raw bytea, ref uuid, doc jsonb, note text, tags text[], wait interval, mood mood, code char(3));
INSERT INTO shops SELECT i, 'region ' || i % 3 FROM generate_series(1, 8) i;
"""

QUERIES = {
    # Every type, every row different.
    "wide": "SELECT * FROM items",
    # Few columns, so that equal rows abound.
    "plenty": "SELECT shop % 3 AS shop, ok, rank % 2 AS odd FROM items WHERE amount >= 0",
    # Groups that come, change and go.
    "totals": "SELECT s.region, i.kind, sum(i.price) AS price, sum(i.amount) AS amount, count(*) AS n, "
    "avg(i.price) AS mean, max(i.at) AS latest FROM items i JOIN shops s ON s.id = i.shop GROUP BY 1, 2",
}

TEXTS = ("", "x", "ä ö ü €", "it's", 'a "quote"', "line\nbreak", "comma, semicolon;", "NULL", "\\N", "🦆 duck", " ")

INSERT = """
INSERT INTO items
SELECT id, 1 + (random() * 9)::int, (ARRAY['a', 'b', 'c', '', NULL])[1 + (random() * 4)::int],
    CASE WHEN random() < 0.9 THEN (random() * 2000 - 1000)::numeric(12,2) END,
    CASE WHEN random() < 0.9 THEN (random() * 10)::numeric(20,6) END,
    CASE random(0, 9) WHEN 0 THEN NULL WHEN 1 THEN 9007199254740993 ELSE random(-5, 50) END,
    CASE WHEN random() < 0.9 THEN random(-300, 300)::smallint END,
    CASE WHEN random() < 0.9 THEN random() < 0.5 END,
    CASE random(0, 9) WHEN 0 THEN NULL WHEN 1 THEN 'NaN' WHEN 2 THEN '-Infinity' WHEN 3 THEN -0.0
        ELSE random() * 1e10 END,
    CASE WHEN random() < 0.9 THEN (random() * 100)::real END,
    CASE WHEN random() < 0.9 THEN date '1900-01-01' + random(0, 70000) END,
    CASE WHEN random() < 0.9 THEN timestamptz '1960-01-01 00:00:00.123456Z' + random(0, 20000) * interval '1 day' END,
    CASE WHEN random() < 0.9 THEN timestamp '2024-02-29 12:00:00' + random(0, 1000000) * interval '1.000001 s' END,
    CASE WHEN random() < 0.9 THEN time '00:00' + random(0, 86399) * interval '1 s' END,
    CASE random(0, 9) WHEN 0 THEN NULL WHEN 1 THEN '' ELSE sha256(id::text::bytea) END,
    CASE WHEN random() < 0.9 THEN gen_random_uuid() END,
    CASE WHEN random() < 0.8 THEN jsonb_build_object('id', id, 'nested', jsonb_build_array(1, NULL, 'x')) END,
    CASE WHEN random() < 0.9 THEN (%(texts)s::text[])[1 + id %% cardinality(%(texts)s::text[])] END,
    CASE WHEN random() < 0.8 THEN ARRAY['a', NULL, 'c"d'] END,
    CASE WHEN random() < 0.8 THEN random(0, 100000) * interval '1 minute' END,
    CASE WHEN random() < 0.8 THEN (enum_range(NULL::mood))[1 + random(0, 2)] END,
    CASE WHEN random() < 0.8 THEN left(id::text, 2) END
FROM generate_series(%(first)s::int, %(last)s) id
"""


class Shop:
    """The tables, and somebody who writes to them."""

    def __init__(self, conn: psycopg.Connection[Any], chance: random.Random) -> None:
        self.conn = conn
        self.chance = chance
        self._next = 1

    def open(self, rows: int = 60) -> None:
        self.conn.execute(TABLES.encode())
        self.conn.execute("SELECT setseed(%s)", (self.chance.random(),))
        self.insert(rows)

    def change(self) -> str:
        """One random transaction; says what it was."""
        kinds = (
            "insert",
            "insert many",
            "update",
            "update",
            "delete",
            "delete many",
            "move",
            "mixed",
            "mixed",
            "rename",
        )
        kind = self.chance.choice(kinds)
        if self.chance.random() < 0.04:
            kind = "empty"
        (left,) = self.conn.execute("SELECT count(*) FROM items").fetchone() or (0,)
        if left < 10:
            kind = "insert many"
        with self.conn.transaction():
            getattr(self, "_" + kind.replace(" ", "_"))()
        return kind

    def insert(self, count: int) -> None:
        texts = [*TEXTS, "".join(self.chance.choices(string.printable, k=40))]
        first, self._next = self._next, self._next + count
        self.conn.execute(INSERT, {"first": first, "last": self._next - 1, "texts": texts})

    def _insert(self) -> None:
        self.insert(self.chance.randint(1, 4))

    def _insert_many(self) -> None:
        self.insert(self.chance.randint(20, 80))

    def _update(self) -> None:
        changes = ("price = price + 1.5", "note = coalesce(note, '') || '!'", "ok = NOT ok", "amount = -amount")
        statement = f"UPDATE items SET {self.chance.choice(changes)} WHERE id %% 7 = %s"
        self.conn.execute(statement.encode(), (self._digit(),))

    def _delete(self) -> None:
        self.conn.execute(
            "DELETE FROM items WHERE id IN (SELECT id FROM items ORDER BY random() LIMIT %s)",
            (self.chance.randint(1, 5),),
        )

    def _delete_many(self) -> None:
        self.conn.execute("DELETE FROM items WHERE id %% 7 IN (%s, %s)", (self._digit(), self._digit()))

    def _move(self) -> None:
        """A new key for rows that stay as they are otherwise, which `plenty` and `totals` must not notice."""
        self.conn.execute("UPDATE items SET id = id + 1000000 WHERE id < 1000000 AND id %% 7 = %s", (self._digit(),))

    def _rename(self) -> None:
        self.conn.execute("UPDATE shops SET region = 'region ' || %s WHERE id = %s", (self._digit(), self._digit() + 1))

    def _mixed(self) -> None:
        for _ in range(3):
            self.chance.choice((self._insert, self._update, self._delete))()

    def _empty(self) -> None:
        self.conn.execute("DELETE FROM items")

    def _digit(self) -> int:
        return self.chance.randrange(7)
