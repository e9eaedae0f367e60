"""Capture of partitioned tables and inheritance trees, at the root, in the middle and at the leaves."""

from __future__ import annotations

import psycopg
import pytest

from tests.catalog.helpers import capture, changes, clear, oid_of
from tests.versions import needs


@pytest.fixture
def tree(db: psycopg.Connection) -> psycopg.Connection:
    """p: p1 [0,10), p2 [10,20) by list (p2a 'a', p2b 'b' with another column order)."""
    db.execute("CREATE TABLE p (id int, k text, v int) PARTITION BY RANGE (id)")
    db.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    db.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k)")
    db.execute("CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN ('a')")
    db.execute("CREATE TABLE p2b (v int, junk int, k text, id int)")
    db.execute("ALTER TABLE p2b DROP COLUMN junk")
    db.execute("ALTER TABLE p2 ATTACH PARTITION p2b FOR VALUES IN ('b')")
    return db


def test_writes_at_every_level_reach_the_root(tree: psycopg.Connection) -> None:
    root = capture(tree, "p", "id", "k", "v")
    tree.execute("INSERT INTO p VALUES (1, 'a', 1), (11, 'b', 2)")
    tree.execute("INSERT INTO p1 VALUES (2, 'a', 3)")
    tree.execute("INSERT INTO p2 VALUES (12, 'a', 4)")
    tree.execute("INSERT INTO p2b (id, k, v) VALUES (13, 'b', 5)")
    assert changes(tree, root) == [
        (1, 1, "a", 1), (1, 11, "b", 2), (1, 12, "a", 4), (1, 13, "b", 5), (1, 2, "a", 3),
    ]  # fmt: skip
    clear(tree, root)
    tree.execute("UPDATE p SET id = 15, k = 'b' WHERE id = 1")
    tree.execute("DELETE FROM p2b WHERE id = 13")
    assert changes(tree, root) == [(-1, 1, "a", 1), (-1, 13, "b", 5), (1, 15, "b", 1)]
    clear(tree, root)
    tree.execute("TRUNCATE p2a")
    assert set(changes(tree, root)) == {(0, None, None, None)}


def test_a_partition_as_a_source_of_its_own(tree: psycopg.Connection) -> None:
    root, middle, leaf = capture(tree, "p", "id"), capture(tree, "p2", "id", "v"), capture(tree, "p2b", "v")
    tree.execute("INSERT INTO p VALUES (1, 'a', 1), (11, 'a', 2), (12, 'b', 3)")
    assert changes(tree, root) == [(1, 1), (1, 11), (1, 12)]
    assert changes(tree, middle) == [(1, 11, 2), (1, 12, 3)]
    assert changes(tree, leaf) == [(1, 3)]
    for oid in (root, middle, leaf):
        clear(tree, oid)
    tree.execute("UPDATE p SET id = 5 WHERE id = 12")
    assert changes(tree, root) == [(-1, 12), (1, 5)]
    assert changes(tree, middle) == [(-1, 12, 3)]
    assert changes(tree, leaf) == [(-1, 3)]
    for oid in (root, middle, leaf):
        clear(tree, oid)
    tree.execute("INSERT INTO p2b (id, k, v) VALUES (14, 'b', 9)")
    tree.execute("TRUNCATE p")
    assert changes(tree, leaf) == [(0, None), (1, 9)]
    assert (1, 14, 9) in changes(tree, middle)


def test_a_default_partition_written_from_above_asks_to_recompute(tree: psycopg.Connection) -> None:
    tree.execute("CREATE TABLE pd PARTITION OF p DEFAULT")
    oid = capture(tree, "pd", "id")
    tree.execute("INSERT INTO p VALUES (1, 'a', 1)")
    assert changes(tree, oid) == [(0, None)]
    tree.execute("INSERT INTO pd VALUES (500, 'a', 1)")
    assert changes(tree, oid) == [(0, None), (1, 500)]


def test_inheritance(db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE base (id int, a text); CREATE TABLE kid (extra int) INHERITS (base)")
    base, kid = capture(db, "base", "id"), capture(db, "kid", "id", "extra")
    db.execute("INSERT INTO base VALUES (1, 'x')")
    db.execute("INSERT INTO kid VALUES (2, 'y', 3)")
    assert changes(db, base) == [(1, 1), (1, 2)]
    assert changes(db, kid) == [(1, 2, 3)]
    db.execute("UPDATE base SET id = id + 10")
    assert changes(db, base) == [(-1, 1), (-1, 2), (1, 1), (1, 11), (1, 12), (1, 2)]
    assert changes(db, kid) == [(0, None, None), (1, 2, 3)]


def test_new_partitions_are_captured_at_once(tree: psycopg.Connection) -> None:
    root = capture(tree, "p", "id")
    tree.execute("CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)")
    tree.execute("INSERT INTO p3 VALUES (21, 'a', 1)")
    assert changes(tree, root) == [(1, 21)], "an empty partition is no reason to recompute"
    tree.execute("CREATE TABLE p4 (LIKE p); INSERT INTO p4 VALUES (31, 'a', 1)")
    tree.execute("ALTER TABLE p ATTACH PARTITION p4 FOR VALUES FROM (30) TO (40)")
    tree.execute("DELETE FROM p4")
    assert changes(tree, root) == [(-1, 31), (0, None), (1, 21)]
    assert tree.execute("SELECT * FROM pgtrickle._capture_drift()").fetchall() == []


def test_detached_and_dropped_partitions(tree: psycopg.Connection) -> None:
    root = capture(tree, "p", "id")
    tree.execute("INSERT INTO p VALUES (1, 'a', 1), (11, 'a', 1)")
    clear(tree, root)
    tree.execute("ALTER TABLE p DETACH PARTITION p1")
    tree.execute("DELETE FROM p1")
    assert changes(tree, root) == [(0, None)], "what happens to a detached table is no longer ours"
    clear(tree, root)
    tree.execute("DROP TABLE p2a")
    assert changes(tree, root) == [(0, None)]
    row = tree.execute("SELECT relations FROM pgtrickle.pgt_change_tracking").fetchone()
    assert row is not None and row[0] == sorted([root, oid_of(tree, "p2"), oid_of(tree, "p2b")])


def test_detach_concurrently(tree: psycopg.Connection) -> None:
    root = capture(tree, "p", "id")
    tree.execute("INSERT INTO p VALUES (1, 'a', 1)")
    clear(tree, root)
    tree.execute("ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY")
    tree.execute("INSERT INTO p1 VALUES (2, 'a', 1)")
    assert changes(tree, root) == [(0, None)]


def test_foreign_partition_never_breaks_writers(tree: psycopg.Connection) -> None:
    root = capture(tree, "p", "id")
    tree.execute("CREATE EXTENSION file_fdw; CREATE SERVER f FOREIGN DATA WRAPPER file_fdw")
    tree.execute("CREATE FOREIGN TABLE pf PARTITION OF p FOR VALUES FROM (90) TO (99) SERVER f OPTIONS (filename '/x')")
    tree.execute("INSERT INTO p VALUES (1, 'a', 1)")
    left = tree.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = %s", (root,)).fetchone()
    assert left == (0,)
    with pytest.raises(psycopg.errors.WrongObjectType):
        capture(tree, "p", "id")


@needs(18)
def test_same_virtual_expression_for_direct_writes_to_a_partition(db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE p (id int, d int GENERATED ALWAYS AS (id * 2) VIRTUAL) PARTITION BY RANGE (id)")
    db.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    oid = capture(db, "p", "id", "d")
    db.execute("INSERT INTO p1 (id) VALUES (4)")
    db.execute("INSERT INTO p (id) VALUES (5)")
    assert changes(db, oid) == [(1, 4, 8), (1, 5, 10)]
    assert db.execute("SELECT id, d FROM p ORDER BY 1").fetchall() == [(4, 8), (5, 10)]
