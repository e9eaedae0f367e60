"""CREATE PUBLICATION FOR ALL TABLES: every table of ours can be updated and deleted from."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

import runnel
from tests.conftest import running_engine
from tests.e2e.helpers import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHOUT_IDENTITY = """
SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
  AND c.relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
"""


def test_everything_works_in_a_publication_of_all_tables(
    dsn: str, db: psycopg.Connection, spark: SparkSession, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE items (id int PRIMARY KEY, grp int, x numeric)")
    db.execute("INSERT INTO items SELECT i, i % 5, i FROM generate_series(1, 50) i")
    with running_engine(dsn, spark, home=tmp_path), contextlib.closing(runnel.connect(dsn)) as client:
        client.create_stream_table("sums", "SELECT grp, sum(x) AS s, max(x) AS m FROM items GROUP BY grp", "@yearly")
        db.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        # Made before and after, with state, bags, a hidden stage, a change log, a sink and inlined rows.
        client.create_stream_table(
            "ranks", "SELECT id, rank() OVER (PARTITION BY grp ORDER BY x) AS r FROM items", "@yearly"
        )
        client.create_stream_table("above", "SELECT grp, s FROM sums WHERE s > 100", "@yearly")
        client.create_stream_table(
            "lake_sums", "SELECT grp, sum(x) AS s FROM items GROUP BY grp", "@yearly", sink="ducklake"
        )
        for _ in range(3):
            db.execute("UPDATE items SET x = x + 1, grp = (grp + 1) % 6 WHERE id % 3 = 0")
            db.execute("DELETE FROM items WHERE id = (SELECT max(id) FROM items)")
            for name in ("sums", "ranks", "above", "lake_sums"):
                assert client.verify(name).ok
        client.alter_stream_table("sums", query="SELECT grp, sum(x) AS s, min(x) AS m FROM items GROUP BY grp")
        assert client.verify("sums").ok
        client.maintain_lake()
        assert rows(db, WITHOUT_IDENTITY) == []
        for name in ("above", "ranks", "lake_sums", "sums"):
            client.drop_stream_table(name)


def test_tables_of_an_earlier_version_are_given_an_identity(db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE pgtrickle_state.g_1_0 (h int8)")
    db.execute("INSERT INTO pgtrickle_state.g_1_0 VALUES (1)")
    db.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    db.execute("SELECT pgtrickle._identify(ARRAY['pgtrickle_state.g_1_0'::regclass::oid])")
    assert db.execute("UPDATE pgtrickle_state.g_1_0 SET h = 2").rowcount == 1
    assert db.execute("DELETE FROM pgtrickle_state.g_1_0").rowcount == 1
