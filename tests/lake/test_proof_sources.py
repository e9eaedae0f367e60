"""DuckDB writes, deletes, updates, compacts, flushes and expires in a lake; stream tables over it follow."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import duckdb
import psycopg
import pytest

import runnel
from tests.lake.compare import assert_equal, pg_bag
from tests.lake.duck import Duck
from tests.lake.places import Place
from tests.lake.sizes import SOURCE_STEPS, chance
from tests.sampling import sampled

# The same query for PostgreSQL (with the lake's schema) and for DuckDB, which is the judge; {0} is the lake's prefix.
QUERIES = {
    "big": "SELECT id, kind, price FROM {0}events WHERE price > 50",
    "by_kind": "SELECT kind, count(*) AS n, sum(price) AS price, max(id) AS latest FROM {0}events GROUP BY kind",
    "named": "SELECT e.id, e.price, k.title FROM {0}events e LEFT JOIN {0}kinds k ON k.kind = e.kind",
    "kinds_used": "SELECT DISTINCT kind FROM {0}events WHERE id % 2 = 0",
}
# A lake table joined with a table of PostgreSQL.
MIXED = "SELECT e.kind, o.owner, sum(e.price) AS price FROM {0}events e JOIN owners o ON o.kind = e.kind GROUP BY 1, 2"

TABLES = """
CREATE TABLE events (id bigint, kind varchar, price decimal(10,2), happened timestamp);
CREATE TABLE kinds (kind varchar, title varchar);
INSERT INTO kinds SELECT 'k' || i, 'kind ' || i FROM range(6) r(i);
"""


class Writer:
    """Somebody who works on the lake with DuckDB and knows nothing of stream tables."""

    def __init__(self, duck: Duck, choice: random.Random) -> None:
        self.duck = duck
        self.choice = choice
        self.done: Counter[str] = Counter()
        self._next = 0
        self._added = 0

    def step(self) -> str:
        """One random operation; says which."""
        operations = (
            self.insert, self.insert, self.insert, self.insert_many, self.delete, self.delete, self.update, self.update,
            self.several, self.touch_kinds, self.merge, self.rewrite, self.flush, self.expire, self.empty_out,
            self.add_column, self.inlining,
        )  # fmt: skip
        operation = self.choice.choice(operations)
        name = operation.__name__
        try:
            operation()
        except duckdb.Error:
            # DuckDB trips over its own inlined rows after ALTER TABLE; what it could not do has not happened.
            name += " (failed)"
            with contextlib.suppress(duckdb.Error):
                self.duck.run("ROLLBACK")
        self.done[name] += 1
        return name

    def insert(self, count: int | None = None) -> None:
        count = count or self.choice.randint(1, 8)
        first, self._next = self._next, self._next + count
        extra = ", NULL" * self._added
        self.duck.run(
            "INSERT INTO events SELECT i, CASE WHEN i % 11 = 0 THEN NULL ELSE 'k' || (i * 7 % 8) END, "
            f"(i * 37 % 10000) / 100, TIMESTAMP '2024-01-01' + to_seconds(i){extra} "
            f"FROM range({first}, {self._next}) r(i)"
        )

    def insert_many(self) -> None:
        self.insert(self.choice.randint(30, 200))

    def delete(self) -> None:
        self.duck.run(f"DELETE FROM events WHERE id % {self.choice.choice((7, 50))} = {self.choice.randrange(7)}")

    def update(self) -> None:
        self.duck.run(
            f"UPDATE events SET price = price + 1, kind = 'k{self.choice.randrange(8)}' "
            f"WHERE id % {self.choice.choice((5, 40))} = {self.choice.randrange(5)}"
        )

    def several(self) -> None:
        self.duck.run("BEGIN")
        self.insert()
        self.update()
        self.delete()
        self.duck.run("COMMIT")

    def touch_kinds(self) -> None:
        self.duck.run(f"UPDATE kinds SET title = title || '!' WHERE kind = 'k{self.choice.randrange(6)}'")

    def merge(self) -> None:
        self.duck.run("CALL ducklake_merge_adjacent_files('lake')")

    def rewrite(self) -> None:
        # Rows inlined under an older schema stop DuckDB here; flushed ones do not.
        self.flush()
        self.duck.run("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.05)")

    def flush(self) -> None:
        self.duck.run("CALL ducklake_flush_inlined_data('lake')")

    def expire(self) -> None:
        """All but the newest snapshots go, with those that stream tables have read last."""
        self.duck.run("CALL ducklake_expire_snapshots('lake', older_than => now())")
        self.duck.run("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")

    def empty_out(self) -> None:
        if self.choice.random() < 0.3:
            self.duck.run("DELETE FROM events")

    def add_column(self) -> None:
        if self._added < 3:
            self._added += 1
            self.duck.run(f"ALTER TABLE events ADD COLUMN extra{self._added} integer")

    def inlining(self) -> None:
        limit = self.choice.choice((0, 10))
        self.duck.run(f"CALL lake.set_option('data_inlining_row_limit', {limit})")


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", sampled([False, True], every=2))
def test_stream_tables_follow_a_lake(
    client: runnel.Client, db: psycopg.Connection, dsn: str, data_path: str, encrypted: bool
) -> None:
    choice = chance(f"sources {encrypted}")
    place = Place(dsn, data_path, encrypted=encrypted)
    place.attach(db)
    db.execute("CREATE TABLE owners (kind text, owner text)")
    db.execute("INSERT INTO owners SELECT 'k' || i, 'owner ' || i % 2 FROM generate_series(0, 9) i")
    with place.duck() as duck:
        for statement in TABLES.split(";"):
            if statement.strip():
                duck.run(statement)
        writer = Writer(duck, choice)
        writer.insert(40)
        for name, query in QUERIES.items():
            client.create_stream_table(name, query.format("lake."), "@yearly", "DIFFERENTIAL")
        client.create_stream_table("mixed", MIXED.format("lake."), "@yearly", "DIFFERENTIAL")
        for number in range(SOURCE_STEPS):
            what = [writer.step() for _ in range(choice.randint(1, 2))]
            if choice.random() < 0.3:
                what.append("owners")
                db.execute("UPDATE owners SET owner = 'owner ' || %s WHERE kind = %s", (number, f"k{number % 8}"))
            print(f"step {number + 1}: {', '.join(what)}")
            # Several operations may come between two refreshes of a stream table, and not of its neighbour.
            for name, query in QUERIES.items():
                if number % 3 == 2 or choice.random() < 0.5:
                    _follows(client, db, duck, name, query.format("lake."))
            assert client.verify("mixed").ok, f"mixed after {what}"
        print(dict(writer.done))
        for name, query in QUERIES.items():
            _follows(client, db, duck, name, query.format("lake."))
    assert {s.status for s in client.status()} == {"ACTIVE"}
    actions = db.execute(
        "SELECT action, reason, count(*) FROM pgtrickle.pgt_refresh_history GROUP BY 1, 2 ORDER BY 3 DESC"
    ).fetchall()
    print(actions)
    odd = [a for a in actions if a[0] not in {"INITIAL", "DIFFERENTIAL"} and "expired" not in (a[1] or "")]
    assert not odd, "a lake whose snapshots are there is followed by deltas"


def _follows(client: runnel.Client, db: psycopg.Connection, duck: Duck, name: str, query: str) -> None:
    result = client.verify(name)
    assert result.ok, f"{name}: missing {result.missing[:5]}, unexpected {result.unexpected[:5]}"
    assert_equal(Counter(duck.rows(query.replace("lake.", "lake.main."))), pg_bag(db, name), name)
