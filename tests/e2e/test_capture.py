"""Every way to change a table, seen through stream tables: nothing lost, nothing doubled, nothing seen too early."""

from __future__ import annotations

import psycopg
import pytest

import runnel
from tests.e2e.helpers import Check, Stream, eventually, last_refresh, rows, script, value
from tests.versions import needs


def test_tables_without_keys_keep_their_duplicates(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, "CREATE TABLE t (v text); INSERT INTO t VALUES ('a'), ('a'), ('b'), (NULL), (NULL)")
    stream("copy", "SELECT v FROM t")
    stream("pairs", "SELECT x.v FROM t x JOIN t y ON y.v = x.v")
    db.execute("INSERT INTO t VALUES ('a'), (NULL)")
    check("copy", "pairs")
    assert value(db, "SELECT count(*) FROM copy WHERE v IS NULL") == 3
    db.execute("DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE v = 'a')")
    check("copy", "pairs")
    db.execute("UPDATE t SET v = 'b'")
    check("copy", "pairs")
    assert value(db, "SELECT count(*) FROM pairs") == 36


def test_partitioned_tables_in_all_their_ways(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        "CREATE TABLE p (id int, region text, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);"
        "CREATE TABLE p_north PARTITION OF p FOR VALUES IN ('n');"
        "CREATE TABLE p_rest PARTITION OF p DEFAULT PARTITION BY RANGE (id);"
        "CREATE TABLE p_low PARTITION OF p_rest FOR VALUES FROM (0) TO (100);"
        "INSERT INTO p SELECT i, CASE WHEN i % 2 = 0 THEN 'n' ELSE 's' END, i FROM generate_series(1, 20) i",
    )
    stream("sums", "SELECT region, count(*) AS n, sum(v) AS s FROM p GROUP BY region")
    stream("north", "SELECT id, v FROM p_north WHERE v > 3")
    for change in (
        "INSERT INTO p VALUES (30, 'n', 3), (31, 's', 4)",
        "INSERT INTO p_north VALUES (32, 'n', 5)",
        "UPDATE p_low SET v = v + 1",
        "UPDATE p SET region = 'n' WHERE id = 31",
        "DELETE FROM p WHERE id < 4",
        "CREATE TABLE p_high PARTITION OF p_rest FOR VALUES FROM (100) TO (200)",
        "INSERT INTO p VALUES (150, 'x', 1)",
        "INSERT INTO p_high VALUES (151, 'x', 2)",
    ):
        db.execute(change.encode())
        check("sums", "north")
        assert last_refresh(client, "sums").action == "DIFFERENTIAL", change
    script(
        db,
        "CREATE TABLE extra (LIKE p INCLUDING ALL); INSERT INTO extra VALUES (500, 'e', 1), (501, 'e', 2);"
        "ALTER TABLE p ATTACH PARTITION extra FOR VALUES IN ('e')",
    )
    check("sums", "north")
    assert value(db, "SELECT n FROM sums WHERE region = 'e'") == 2
    db.execute("INSERT INTO extra VALUES (502, 'e', 3)")
    check("sums")
    db.execute("ALTER TABLE p DETACH PARTITION extra")
    check("sums")
    assert value(db, "SELECT count(*) FROM sums WHERE region = 'e'") == 0
    db.execute("INSERT INTO extra VALUES (503, 'e', 3)")
    check("sums")
    db.execute("DROP TABLE p_high")
    check("sums")
    db.execute("TRUNCATE p_north")
    check("sums", "north")
    assert rows(db, "SELECT * FROM north") == []


def test_inheritance_children_belong_to_their_parent(db: psycopg.Connection, stream: Stream, check: Check) -> None:
    script(
        db,
        "CREATE TABLE parent (id int, v int); CREATE TABLE child (extra text) INHERITS (parent);"
        "INSERT INTO parent VALUES (1, 1); INSERT INTO child VALUES (2, 2, 'x')",
    )
    stream("s", "SELECT id, v FROM parent")
    stream("sums", "SELECT sum(v) AS s FROM parent")
    script(db, "INSERT INTO child VALUES (3, 3, 'y'); UPDATE parent SET v = v * 10; DELETE FROM child WHERE id = 2")
    check("s", "sums")
    assert rows(db, "SELECT id, v FROM s ORDER BY id") == [(1, 10), (3, 30)]
    script(db, "CREATE TABLE late () INHERITS (parent); INSERT INTO late VALUES (4, 4)")
    check("s", "sums")
    assert value(db, "SELECT s FROM sums") == 44


@needs(18)
def test_generated_columns_are_captured_with_their_values(db: psycopg.Connection, stream: Stream, check: Check) -> None:
    db.execute(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, net numeric(10,2), "
        "gross numeric(10,2) GENERATED ALWAYS AS (net * 1.2) STORED, twice numeric GENERATED ALWAYS AS "
        "(net * 2) VIRTUAL, "
        "at timestamptz DEFAULT now())"
    )
    db.execute("INSERT INTO t (net) VALUES (10), (20)")
    stream("sums", "SELECT sum(gross) AS g, sum(twice) AS t, count(id) AS n, max(twice) AS m FROM t")
    stream("copy", "SELECT id, gross, twice, at FROM t")
    script(
        db,
        "INSERT INTO t (net) VALUES (30), (NULL); UPDATE t SET net = net + 1 WHERE id < 3; DELETE FROM t WHERE id = 2",
    )
    check("sums", "copy")
    assert rows(db, "SELECT g::text, t::text FROM sums") == [("49.20", "82.00")]


def test_updates_of_keys_move_rows(db: psycopg.Connection, stream: Stream, check: Check) -> None:
    script(
        db,
        "CREATE TABLE a (id int PRIMARY KEY, g int); CREATE TABLE b (id int PRIMARY KEY, a int);"
        "INSERT INTO a SELECT i, i % 3 FROM generate_series(1, 9) i; INSERT INTO b SELECT i, i % 9 FROM "
        "generate_series(1, 20) i",
    )
    stream("j", "SELECT a.id, a.g, b.id AS b FROM a LEFT JOIN b ON b.a = a.id")
    stream("n", "SELECT a.g, count(*) AS n FROM a JOIN b ON b.a = a.id GROUP BY a.g")
    for change in (
        "UPDATE a SET id = id + 100",
        "UPDATE a SET id = id - 100",
        "UPDATE a SET id = -id, g = g + 1 WHERE id % 2 = 0",
        "UPDATE b SET a = -a, id = id + 1000",
    ):
        db.execute(change.encode())
        check("j", "n")


def test_a_transaction_over_many_tables_is_seen_whole_or_not_at_all(
    db: psycopg.Connection, dsn: str, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        "CREATE TABLE money (who text, amount int); CREATE TABLE moves (n int); INSERT INTO money VALUES "
        "('a', 100), ('b', 0)",
    )
    stream("total", "SELECT sum(amount) AS s FROM money")
    stream("pairs", "SELECT m.who, m.amount, v.n FROM money m CROSS JOIN moves v")
    with psycopg.connect(dsn) as mover:
        mover.execute("UPDATE money SET amount = amount - 30 WHERE who = 'a'")
        mover.execute("INSERT INTO moves VALUES (1)")
        client.refresh()
        assert rows(db, "SELECT s FROM total") == [(100,)]
        assert rows(db, "SELECT * FROM pairs") == []
        mover.execute("UPDATE money SET amount = amount + 30 WHERE who = 'b'")
        mover.execute("INSERT INTO moves VALUES (2)")
    check("total", "pairs")
    assert value(db, "SELECT count(*) FROM pairs") == 4


def test_rolled_back_work_is_never_seen(db: psycopg.Connection, dsn: str, stream: Stream, check: Check) -> None:
    script(db, "CREATE TABLE t (v int)")
    stream("s", "SELECT v, count(*) AS n FROM t GROUP BY v")
    with psycopg.connect(dsn) as conn:
        conn.execute("INSERT INTO t VALUES (1)")
        conn.execute("SAVEPOINT a")
        conn.execute("INSERT INTO t VALUES (2), (2)")
        conn.execute("SAVEPOINT b")
        conn.execute("UPDATE t SET v = 3 WHERE v = 1")
        conn.execute("ROLLBACK TO b")
        conn.execute("INSERT INTO t VALUES (4)")
        conn.execute("ROLLBACK TO a")
        conn.execute("INSERT INTO t VALUES (5)")
        conn.execute("RELEASE a")
        conn.commit()
        conn.execute("INSERT INTO t VALUES (6)")
        conn.execute("DELETE FROM t WHERE v = 1")
        conn.rollback()
    check("s")
    assert rows(db, "SELECT * FROM s ORDER BY v") == [(1, 1), (5, 1)]


def test_late_commits_are_neither_lost_nor_doubled(
    db: psycopg.Connection, dsn: str, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, "CREATE TABLE t (v int); INSERT INTO t VALUES (0)")
    stream("s", "SELECT count(*) AS n, sum(v) AS s FROM t")
    with psycopg.connect(dsn) as early, psycopg.connect(dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM t")
        early.execute("INSERT INTO t VALUES (1)")
        for i in (10, 20, 30):
            db.execute("INSERT INTO t VALUES (%s)", (i,))
            check("s")
        early.execute("INSERT INTO t VALUES (2)")
        early.commit()
        early.execute("INSERT INTO t VALUES (3)")
        check("s")
        assert rows(db, "SELECT n, s FROM s") == [(6, 63)]
        check("s")
    check("s")
    assert rows(db, "SELECT n, s FROM s") == [(7, 66)]
    eager = client.history("s")[0]
    assert eager.changes_read == 1, "each change is read once"


def test_copy_merge_upsert_and_cascades(db: psycopg.Connection, stream: Stream, check: Check) -> None:
    script(
        db,
        "CREATE TABLE parent (id int PRIMARY KEY, v int);"
        "CREATE TABLE child (id int, parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE, v int)",
    )
    stream(
        "joined",
        "SELECT p.id, p.v, count(c.id) AS n, sum(c.v) AS s FROM parent p LEFT JOIN child c ON c.parent = "
        "p.id GROUP BY p.id, p.v",
    )
    stream("orphans", "SELECT id, parent FROM child")
    with db.cursor().copy("COPY parent FROM STDIN") as copy:
        for i in range(1, 11):
            copy.write_row((i, i))
    db.execute("INSERT INTO child SELECT i, 1 + i % 10, i FROM generate_series(1, 40) i")
    check("joined", "orphans")
    db.execute(
        "INSERT INTO parent VALUES (1, 100), (11, 1), (12, 1) ON CONFLICT (id) DO UPDATE SET v = parent.v + excluded.v "
        "WHERE parent.id <> 2"
    )
    db.execute("INSERT INTO parent VALUES (1, 5), (13, 5) ON CONFLICT DO NOTHING")
    check("joined", "orphans")
    db.execute(
        "MERGE INTO parent p USING (VALUES (2, 50), (3, 0), (99, 9)) AS x(id, v) ON p.id = x.id "
        "WHEN MATCHED AND x.v = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = x.v "
        "WHEN NOT MATCHED THEN INSERT VALUES (x.id, x.v)"
    )
    check("joined", "orphans")
    assert value(db, "SELECT count(*) FROM orphans WHERE parent = 3") == 0
    db.execute("DELETE FROM parent WHERE id IN (4, 5)")
    db.execute("UPDATE parent SET id = id + 1000 WHERE id = 6")
    check("joined", "orphans")
    db.execute(
        "WITH gone AS (DELETE FROM child WHERE v > 30 RETURNING *) INSERT INTO child SELECT id + 500, "
        "parent, v FROM gone"
    )
    check("joined", "orphans")


def test_truncate_empties_and_fills_again(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        "CREATE TABLE t (k int, v int); CREATE TABLE u (k int); INSERT INTO t SELECT i % 3, i FROM "
        "generate_series(1, 9) i; INSERT INTO u VALUES (0), (1)",
    )
    stream("g", "SELECT k, sum(v) AS s, max(v) AS m FROM t GROUP BY k")
    stream("j", "SELECT t.v FROM t JOIN u ON u.k = t.k")
    with db.transaction():
        script(db, "INSERT INTO t VALUES (7, 7); TRUNCATE t; INSERT INTO t VALUES (1, 100)")
    check("g", "j")
    assert rows(db, "SELECT * FROM g") == [(1, 100, 100)]
    assert last_refresh(client, "g").action == "FULL"
    assert "truncated" in str(last_refresh(client, "g").reason)
    db.execute("INSERT INTO t VALUES (0, 1)")
    check("g", "j")
    assert last_refresh(client, "g").action == "DIFFERENTIAL", "one truncate costs one recomputation"
    script(db, "TRUNCATE t, u")
    check("g", "j")
    assert rows(db, "SELECT * FROM g") == []
    with pytest.raises(psycopg.Error), db.transaction():
        db.execute("INSERT INTO t VALUES (0, 1)")
        db.execute("TRUNCATE t")
        db.execute("SELECT 1 / 0")
    check("g", "j")


def test_buffers_are_cleaned_once_everybody_has_read_them(
    db: psycopg.Connection, client: runnel.Client, stream: Stream
) -> None:
    script(db, "CREATE TABLE t (v int)")
    stream("a", "SELECT v FROM t")
    stream("b", "SELECT v FROM t")
    buffer = value(db, "SELECT 'pgtrickle_changes.changes_' || 't'::regclass::oid")
    db.execute("INSERT INTO t SELECT generate_series(1, 100)")
    client.refresh("a")
    assert value(db, f"SELECT count(*) FROM {buffer}") == 100, "b has yet to read them"
    client.refresh("b")

    def cleaned() -> bool:
        # An idle engine sleeps; any call wakes it, and it keeps house every few seconds while awake.
        client.validate("SELECT v FROM t")
        return bool(value(db, f"SELECT count(*) = 0 FROM {buffer}"))

    eventually(cleaned, 20, what="the buffer was never cleaned")
