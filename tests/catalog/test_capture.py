"""What ends up in the change buffer for every way of writing to a table."""

from __future__ import annotations

import psycopg
import pytest

from runnel.catalog import store
from tests.catalog.helpers import capture, changes, clear, oid_of
from tests.versions import needs


@pytest.fixture
def orders(db: psycopg.Connection) -> int:
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, note text)")
    return capture(db, "orders", "id", "status")


def test_insert_update_delete_truncate(db: psycopg.Connection, orders: int) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'a', 'x'), (2, 'b', 'y')")
    db.execute("UPDATE orders SET status = 'c' WHERE id = 1")
    db.execute("DELETE FROM orders WHERE id = 2")
    db.execute("TRUNCATE orders")
    assert changes(db, orders) == [
        (-1, 1, "a"), (-1, 2, "b"), (0, None, None), (1, 1, "a"), (1, 1, "c"), (1, 2, "b"),
    ]  # fmt: skip


def test_update_of_a_key_and_of_nothing(db: psycopg.Connection, orders: int) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'a')")
    clear(db, orders)
    db.execute("UPDATE orders SET id = 7")
    db.execute("UPDATE orders SET id = 8 WHERE false")
    assert changes(db, orders) == [(-1, 1, "a"), (1, 7, "a")]


def test_copy_merge_and_on_conflict(db: psycopg.Connection, orders: int) -> None:
    with db.cursor().copy("COPY orders FROM STDIN") as copy:
        copy.write("1\ta\t\\N\n2\tb\t\\N\n")
    assert changes(db, orders) == [(1, 1, "a"), (1, 2, "b")]
    clear(db, orders)
    db.execute("INSERT INTO orders VALUES (1, 'z'), (3, 'n') ON CONFLICT (id) DO UPDATE SET status = excluded.status")
    assert changes(db, orders) == [(-1, 1, "a"), (1, 1, "z"), (1, 3, "n")]
    clear(db, orders)
    db.execute(
        "MERGE INTO orders o USING (VALUES (1, 'd'), (2, 'u'), (9, 'i')) v (id, s) ON o.id = v.id "
        "WHEN MATCHED AND v.s = 'd' THEN DELETE WHEN MATCHED THEN UPDATE SET status = v.s "
        "WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.s)"
    )
    assert changes(db, orders) == [(-1, 1, "z"), (-1, 2, "b"), (1, 2, "u"), (1, 9, "i")]


def test_cascades_are_captured(db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    db.execute(
        "CREATE TABLE child (id int, p int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE, "
        "q int REFERENCES parent ON DELETE SET NULL)"
    )
    db.execute("INSERT INTO parent SELECT generate_series(1, 4)")
    db.execute("INSERT INTO child VALUES (1, 1, 1), (2, 2, NULL), (3, 3, 1), (4, 2, 4)")
    oid = capture(db, "child", "id", "p", "q")
    db.execute("DELETE FROM parent WHERE id IN (1, 2)")
    net = db.execute(
        f"SELECT sum(pgt_w), c1, c2, c3 FROM pgtrickle_changes.changes_{oid} GROUP BY 2, 3, 4 "  # type: ignore[arg-type]
        "HAVING sum(pgt_w) <> 0 ORDER BY 2, 1"
    ).fetchall()
    assert net == [(-1, 1, 1, 1), (-1, 2, 2, None), (-1, 3, 3, 1), (1, 3, 3, None), (-1, 4, 2, 4)]
    clear(db, oid)
    db.execute("UPDATE parent SET id = 30 WHERE id = 3")
    assert changes(db, oid) == [(-1, 3, 3, None), (1, 3, 30, None)]


def test_rolled_back_work_leaves_nothing(db: psycopg.Connection, orders: int) -> None:
    with db.transaction():
        db.execute("INSERT INTO orders VALUES (1, 'kept')")
        with db.transaction(force_rollback=True):
            db.execute("INSERT INTO orders VALUES (2, 'gone')")
    with db.transaction(force_rollback=True):
        db.execute("DELETE FROM orders")
    assert changes(db, orders) == [(1, 1, "kept")]


def test_one_transaction_has_one_xid_even_across_savepoints(db: psycopg.Connection, orders: int) -> None:
    with db.transaction():
        db.execute("INSERT INTO orders VALUES (1, 'a')")
        with db.transaction():
            db.execute("INSERT INTO orders VALUES (2, 'b')")
        top = db.execute("SELECT pg_current_xact_id()::text").fetchone()
    found = db.execute(f"SELECT DISTINCT pgt_xid::text FROM pgtrickle_changes.changes_{orders}").fetchall()  # type: ignore[arg-type]
    assert found == [top]


def test_only_real_changes_wake_the_engine(db: psycopg.Connection, dsn: str, orders: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN pgtrickle_wake")
        db.execute("INSERT INTO orders SELECT 1, 'a' WHERE false")
        db.execute("DELETE FROM orders")
        assert list(listener.notifies(timeout=0.2)) == []
        db.execute("INSERT INTO orders VALUES (1, 'a')")
        assert [n.payload for n in listener.notifies(timeout=2, stop_after=1)] == [str(orders)]


def test_gate_silences_writers_and_settles_after_the_last_silent_one(
    db: psycopg.Connection, dsn: str, orders: int
) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener, psycopg.connect(dsn) as silent:
        listener.execute("LISTEN pgtrickle_wake")
        store.stay_awake(db)
        silent.execute("INSERT INTO orders VALUES (1, 'a')")
        asleep = store.doze(db)
        assert not store.settled(db, asleep)
        silent.commit()
        assert store.settled(db, asleep)
        assert list(listener.notifies(timeout=0.2)) == []
        db.execute("INSERT INTO orders VALUES (2, 'a')")
        assert len(list(listener.notifies(timeout=2, stop_after=1))) == 1


@needs(18)
def test_generated_columns(db: psycopg.Connection) -> None:
    db.execute(
        "CREATE TABLE g (a int, s int GENERATED ALWAYS AS (a * 2) STORED, v int GENERATED ALWAYS AS (a * 3) VIRTUAL)"
    )
    oid = capture(db, "g", "a", "s", "v")
    db.execute("INSERT INTO g VALUES (1)")
    db.execute("UPDATE g SET a = 2")
    db.execute("DELETE FROM g")
    assert changes(db, oid) == [(-1, 1, 2, 3), (-1, 2, 4, 6), (1, 1, 2, 3), (1, 2, 4, 6)]
    clear(db, oid)
    db.execute("INSERT INTO g VALUES (5)")
    db.execute("ALTER TABLE g ALTER COLUMN v SET EXPRESSION AS (a * 100)")
    db.execute("DELETE FROM g")
    assert changes(db, oid) == [(-1, 5, 10, 500), (0, None, None, None), (1, 5, 10, 15)]


def test_odd_names_and_types(db: psycopg.Connection) -> None:
    db.execute("CREATE SCHEMA \"Ünï s\"; CREATE TYPE \"Ünï s\".mood AS ENUM ('ok', 'bad')")
    db.execute('CREATE DOMAIN "Ünï s".positive AS int NOT NULL CHECK (VALUE > 0)')
    db.execute('CREATE TYPE "Ünï s".pair AS (x int, "Y y" text)')
    db.execute(
        'CREATE TABLE "Ünï s"."T ""q"" %s" (dropped int, "select" "Ünï s".mood, "a ""b" "Ünï s".positive, '
        '"é" "Ünï s".pair, tags text[], found varchar(3) COLLATE "C", tg_op numeric(6,2), '
        "ignored bit(3), pgt_w int)"
    )
    db.execute('ALTER TABLE "Ünï s"."T ""q"" %s" DROP COLUMN dropped')
    columns = ("select", 'a "b', "é", "tags", "found", "tg_op", "ignored", "pgt_w")
    oid = capture(db, '"Ünï s"."T ""q"" %s"', *columns)
    db.execute(
        'INSERT INTO "Ünï s"."T ""q"" %s" '
        "VALUES ('ok', 3, (1, 'z'), '{a,b}', 'abc', 1.5, '101', 42)".replace("%", "%%"), ()
    )  # fmt: skip
    db.execute('TRUNCATE "Ünï s"."T ""q"" %s"')
    shown = db.execute(
        f"SELECT pgt_w, c2::text, c3, c4::text, c5, c6, c7::text, c8::text, c9 "  # type: ignore[arg-type]
        f"FROM pgtrickle_changes.changes_{oid} ORDER BY pgt_w"
    ).fetchall()
    assert shown == [
        (0, None, None, None, None, None, None, None, None),
        (1, "ok", 3, "(1,z)", ["a", "b"], "abc", "1.50", "101", 42),
    ]
    types = db.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), c.collname FROM pg_attribute a "
        "LEFT JOIN pg_collation c ON c.oid = a.attcollation WHERE a.attrelid = %s::regclass AND a.attname IN "
        "('c3', 'c6', 'c7', 'c8') ORDER BY 1",
        (f"pgtrickle_changes.changes_{oid}",),
    ).fetchall()
    assert types == [
        ("c3", "integer", None), ("c6", "character varying(3)", "C"),
        ("c7", "numeric(6,2)", None), ("c8", "bit(3)", None),
    ]  # fmt: skip


def test_no_columns_at_all(db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE t (a int)")
    oid = capture(db, "t")
    db.execute("INSERT INTO t VALUES (1), (1), (NULL)")
    db.execute("UPDATE t SET a = 5 WHERE a IS NULL")
    assert changes(db, oid) == [(-1,), (1,), (1,), (1,), (1,)]


def test_widening_keeps_what_was_buffered(db: psycopg.Connection, orders: int) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'a', 'x')")
    capture(db, "orders", "note")
    db.execute("INSERT INTO orders VALUES (2, 'b', 'y')")
    assert changes(db, orders) == [(1, 1, "a", None), (1, 2, "b", "y")]


def test_install_again_takes_no_lock(db: psycopg.Connection, dsn: str, orders: int) -> None:
    with psycopg.connect(dsn) as writer:
        writer.execute("INSERT INTO orders VALUES (1, 'a')")
        db.execute("SET lock_timeout = '1s'")
        capture(db, "orders", "status")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            capture(db, "orders", "note")


def test_any_writer_may_write_and_none_may_read_the_buffer(db: psycopg.Connection, orders: int) -> None:
    role = f"writer_{db.info.dbname}"
    db.execute(f"CREATE ROLE {role}; GRANT INSERT ON orders TO {role}; GRANT CREATE ON SCHEMA public TO {role}")  # type: ignore[arg-type]
    db.execute(f"SET ROLE {role}")  # type: ignore[arg-type]
    # Nothing that the writer puts on its search_path may run with the rights of the capture function.
    db.execute("CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT 1/0'")
    db.execute("SET search_path = public, pg_catalog")
    db.execute("INSERT INTO orders VALUES (1, 'a')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.execute(f"SELECT * FROM pgtrickle_changes.changes_{orders}")  # type: ignore[arg-type]
    db.execute("RESET ROLE")
    db.execute("RESET search_path")
    assert changes(db, orders) == [(1, 1, "a")]
    db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")  # type: ignore[arg-type]


def test_replica_sessions_are_captured(db: psycopg.Connection, orders: int) -> None:
    db.execute("SET session_replication_role = replica")
    db.execute("INSERT INTO orders VALUES (1, 'a')")
    assert changes(db, orders) == [(1, 1, "a")]


def test_remove_leaves_nothing(db: psycopg.Connection, orders: int) -> None:
    db.execute("SELECT pgtrickle._capture_remove(%s)", (orders,))
    left = db.execute(
        "SELECT (SELECT count(*) FROM pg_trigger WHERE tgrelid = %s), "
        "(SELECT count(*) FROM pg_class WHERE relnamespace = 'pgtrickle_changes'::regnamespace), "
        "(SELECT count(*) FROM pg_proc WHERE pronamespace = 'pgtrickle_changes'::regnamespace), "
        "(SELECT count(*) FROM pgtrickle.pgt_change_tracking)",
        (orders,),
    ).fetchone()
    assert left == (0, 0, 0, 0)
    db.execute("INSERT INTO orders VALUES (1, 'a')")


@pytest.mark.parametrize("kind", ["UNLOGGED TABLE", "TEMP TABLE"])
def test_tables_that_cannot_be_captured_are_refused(db: psycopg.Connection, kind: str) -> None:
    db.execute(f"CREATE {kind} u (a int)")  # type: ignore[arg-type]
    with pytest.raises(psycopg.errors.WrongObjectType, match="cannot be captured"):
        capture(db, "u", "a")


def test_unknown_column_is_named(db: psycopg.Connection, orders: int) -> None:
    with pytest.raises(psycopg.errors.UndefinedColumn, match="nope of public.orders"):
        capture(db, "orders", "nope")
    assert oid_of(db, "orders") == orders
