"""Random histories of a lake under stream tables: after every few steps all of them equal their queries."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import psycopg
import pytest

import runnel
from tests.lake.duck import Duck

# More of both for a longer run.
STEPS = int(os.environ.get("RUNNEL_SOURCE_STEPS", "10"))
SEED = int(os.environ.get("RUNNEL_SOURCE_SEED", "1"))

QUERIES = {
    "grouped": "SELECT g, count(*) AS n, sum(amount) AS s, min(name) AS m FROM lake.facts GROUP BY g",
    "joined": "SELECT f.id, f.name, d.label FROM lake.facts f JOIN dims d ON d.g = f.g WHERE f.amount > 10",
    "padded": "SELECT d.g, d.label, f.id FROM dims d LEFT JOIN lake.facts f ON f.g = d.g AND f.id % 2 = 0",
    "lakes": "SELECT f.g, max(o.v) AS v, count(*) AS n FROM lake.facts f JOIN lake.others o ON o.id = f.id GROUP BY 1",
    "ranked": "SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY amount DESC, id) AS r FROM lake.facts",
}


def change(lake: Duck, db: psycopg.Connection, client: runnel.Client, pick: random.Random) -> str:
    """One random step of DuckDB, or of PostgreSQL."""
    low = pick.randrange(0, 400)
    few, many = pick.randrange(1, 8), pick.randrange(30, 200)
    name = pick.choice(("facts", "facts", "facts", "others"))
    columns = {"facts": "facts (id, g, name, amount)", "others": "others (id, v)"}[name]
    rows = {
        "facts": "SELECT i, i % {} AS g, 'n' || (i * 7 % 50), (i % 90) / 2.0 FROM range({}, {}) r(i)",
        "others": "SELECT i, 'v' || (i * {} % 40) FROM range({}, {}) r(i)",
    }[name]
    steps = {
        "insert a few": lambda: lake.run(f"INSERT INTO {columns} {rows.format(5, low, low + few)}"),
        "insert many": lambda: lake.run(f"INSERT INTO {columns} {rows.format(6, low, low + many)}"),
        "delete a few": lambda: lake.run(f"DELETE FROM {name} WHERE id BETWEEN {low} AND {low + 3}"),
        "delete many": lambda: lake.run(f"DELETE FROM {name} WHERE id % {pick.randrange(2, 9)} = 0 AND id > {low}"),
        "delete all": lambda: lake.run("DELETE FROM others" if pick.random() < 0.7 else "DELETE FROM facts"),
        "update": lambda: lake.run(f"UPDATE facts SET amount = amount + 1, g = g + {few % 2} WHERE id % 11 = {few}"),
        "update all": lambda: lake.run("UPDATE others SET v = v || 'x'"),
        "several": lambda: several(lake, low),
        "flush": lambda: lake.run("CALL ducklake_flush_inlined_data('lake')"),
        "merge": lambda: lake.run("CALL ducklake_merge_adjacent_files('lake')"),
        "rewrite": lambda: rewrite(lake),
        "add a column": lambda: lake.run(f"ALTER TABLE facts ADD COLUMN c{pick.getrandbits(40)} INTEGER DEFAULT 5"),
        "expire": lambda: lake.run("CALL ducklake_expire_snapshots('lake', older_than => now())"),
        "inlining": lambda: lake.run(f"CALL lake.set_option('data_inlining_row_limit', {pick.choice((0, 10, 50))})"),
        "dims": lambda: db.execute("UPDATE dims SET label = label || %s WHERE g %% 3 = %s", (few, few % 3)),
        "new dim": lambda: db.execute("INSERT INTO dims VALUES (%s, 'new')", (few,)),
        "maintain": lambda: client.maintain_lake("lake"),
        "old dim": lambda: db.execute("DELETE FROM dims WHERE g = %s", (few,)),
    }
    weights = [5, 6, 4, 3, 1, 5, 2, 3, 2, 2, 2, 1, 1, 1, 2, 1, 3, 1]
    (chosen,) = pick.choices(list(steps), weights)
    steps[chosen]()
    return chosen


def several(lake: Duck, low: int) -> None:
    """Rows that come, change and go in one transaction."""
    columns = "(id, g, name, amount)"
    lake.run("BEGIN")
    lake.run(f"INSERT INTO facts {columns} SELECT i, 1, 'tx', 50 FROM range({low}, {low + 20}) r(i)")
    lake.run(f"UPDATE facts SET amount = 60 WHERE id BETWEEN {low} AND {low + 5}")
    lake.run(f"DELETE FROM facts WHERE id BETWEEN {low + 4} AND {low + 9}")
    lake.run("COMMIT")


def rewrite(lake: Duck) -> None:
    """DuckDB fails to rewrite while inlined rows of an older shape exist."""
    lake.run("CALL ducklake_flush_inlined_data('lake')")
    lake.run("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.1)")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + int(os.environ.get("RUNNEL_SOURCE_SEEDS", "1"))))
def test_random_histories(
    duck: Callable[..., Duck], data_path: str, client: runnel.Client, db: psycopg.Connection, seed: int
) -> None:
    pick = random.Random(seed)
    lake = duck(data_path)
    lake.run("CREATE TABLE facts (id BIGINT, g INTEGER, name VARCHAR, amount DECIMAL(10,2))")
    lake.run("CREATE TABLE others (id BIGINT, v VARCHAR)")
    db.execute("CREATE TABLE dims (g integer, label text)")
    db.execute("INSERT INTO dims SELECT i, 'd' || i FROM generate_series(0, 6) i")
    client.attach_lake("lake", catalog_schema="ducklake")
    for name, query in QUERIES.items():
        client.create_stream_table(name, query)
    history: list[str] = []
    for step in range(STEPS):
        try:
            history.append(change(lake, db, client, pick))
        except Exception as error:
            # Some sequences DuckDB itself refuses; nothing has happened then.
            history.append(f"refused: {str(error)[:80]}")
            if "TransactionContext" in str(error) or "aborted" in str(error):
                lake.run("ROLLBACK")
        if step % 2:
            for name in QUERIES:
                found = client.verify(name)
                assert found.ok, (seed, name, history, found.missing[:3], found.unexpected[:3])
    states = {s.name: s.status for s in client.status()}
    assert set(states.values()) == {"ACTIVE"}, states
