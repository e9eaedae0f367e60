"""DDL on sources: writers never fail, the right stream tables stop with a reason, the others go on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from runnel.catalog import store
from tests.catalog.helpers import capture, changes, clear, oid_of, state_of, stream_table


@pytest.fixture
def orders(db: psycopg.Connection) -> int:
    db.execute("CREATE TABLE orders (id int, status text, amount int, note text)")
    return oid_of(db, "orders")


@pytest.fixture
def pair(db: psycopg.Connection, orders: int) -> tuple[int, int]:
    """Two stream tables on one source: one uses status, the other amount."""
    return stream_table(db, "by_status", "orders", "id", "status"), stream_table(db, "totals", "orders", "amount")


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        ("ALTER TABLE orders DROP COLUMN status", 'column "status" was dropped'),
        ("ALTER TABLE orders RENAME COLUMN status TO state", 'column "status" was renamed to "state"'),
    ],
)
def test_only_the_dependents_of_a_changed_column_stop(
    db: psycopg.Connection, orders: int, pair: tuple[int, int], ddl: str, problem: str
) -> None:
    db.execute(ddl)  # type: ignore[arg-type]
    status, error = state_of(db, pair[0])
    assert status == "ERROR"
    assert error is not None and error.startswith("source public.orders: ") and problem in error
    assert state_of(db, pair[1]) == ("ACTIVE", None)
    clear(db, orders)
    db.execute("INSERT INTO orders (id, amount) VALUES (1, 5)")
    db.execute("UPDATE orders SET amount = 6")
    tracked = store.change_tracking(db)[orders]
    amount = [c.name for c in tracked.columns].index("amount") + 1
    assert sorted((r[0], r[amount]) for r in changes(db, orders)) == [(-1, 5), (1, 5), (1, 6)]
    assert db.execute("SELECT * FROM pgtrickle._capture_drift()").fetchall() == []


def test_the_writer_in_the_same_session_and_a_cached_one_go_on(
    db: psycopg.Connection, dsn: str, pair: tuple[int, int]
) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("INSERT INTO orders (id, amount) VALUES (1, 1)")
        with db.transaction():
            db.execute("INSERT INTO orders (id, amount) VALUES (2, 1)")
            db.execute("ALTER TABLE orders DROP COLUMN status")
            db.execute("INSERT INTO orders (id, amount) VALUES (3, 1)")
        other.execute("INSERT INTO orders (id, amount) VALUES (4, 1)")
    assert db.execute("SELECT count(*) FROM orders").fetchone() == (4,)


def test_rolled_back_ddl_breaks_nothing(db: psycopg.Connection, orders: int, pair: tuple[int, int]) -> None:
    with db.transaction(force_rollback=True):
        db.execute("ALTER TABLE orders DROP COLUMN status")
    assert state_of(db, pair[0]) == ("ACTIVE", None)
    db.execute("INSERT INTO orders VALUES (1, 's', 2)")
    assert changes(db, orders) == [(1, 1, "s", 2)]


def test_harmless_ddl(db: psycopg.Connection, orders: int, pair: tuple[int, int]) -> None:
    db.execute("ALTER TABLE orders ADD COLUMN extra int DEFAULT 7")
    db.execute("ALTER TABLE orders DROP COLUMN note")
    db.execute("CREATE INDEX ON orders (id)")
    db.execute("ALTER TABLE orders ADD CONSTRAINT positive CHECK (amount > 0)")
    db.execute("INSERT INTO orders VALUES (1, 's', 2, 3)")
    assert [state_of(db, p)[0] for p in pair] == ["ACTIVE", "ACTIVE"]
    assert changes(db, orders) == [(1, 1, "s", 2)]


def drift_of(db: psycopg.Connection, pgt_id: int) -> str | None:
    found = store.load_stream_table(db, pgt_id)
    assert found is not None and found.status == "ACTIVE"
    assert found.needs_reinit == (found.drift is not None)
    return found.drift


def test_a_retyped_column_asks_its_dependents_to_follow(
    db: psycopg.Connection, orders: int, pair: tuple[int, int]
) -> None:
    db.execute("ALTER TABLE orders ALTER status TYPE varchar(5)")
    news = 'source public.orders: column "status" changed its type from text to character varying(5)'
    assert [drift_of(db, p) for p in pair] == [news, None]
    clear(db, orders)
    db.execute("INSERT INTO orders (id, amount) VALUES (1, 5)")
    assert changes(db, orders) == [(1, 1, 5)], "the other columns are captured as before"


def test_renamed_table_and_schema(db: psycopg.Connection, dsn: str, pair: tuple[int, int]) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN pgtrickle_ddl")
        db.execute("ALTER TABLE orders RENAME TO sales")
        assert list(listener.notifies(timeout=2, stop_after=1))
    assert [drift_of(db, p) for p in pair] == ["source public.orders is now called public.sales"] * 2
    db.execute("CREATE SCHEMA shop; ALTER TABLE sales SET SCHEMA shop; ALTER SCHEMA shop RENAME TO store")
    assert [drift_of(db, p) for p in pair] == ["source public.orders is now called store.sales"] * 2
    db.execute("INSERT INTO store.sales VALUES (1, 's', 2)")


def test_a_renamed_stream_table_is_known_by_its_new_name(db: psycopg.Connection, pair: tuple[int, int]) -> None:
    def names() -> list[tuple[str, str]]:
        return [(s.pgt_schema, s.pgt_name) for s in store.load_catalog(db)[0]]

    with db.transaction():
        for step in ("by_status RENAME TO x", "totals RENAME TO by_status", "x RENAME TO totals"):
            db.execute(f"ALTER TABLE {step}")  # type: ignore[arg-type]
    assert names() == [("public", "totals"), ("public", "by_status")]
    db.execute("CREATE SCHEMA a; ALTER TABLE totals SET SCHEMA a; ALTER SCHEMA a RENAME TO b")
    assert names() == [("b", "totals"), ("public", "by_status")]


def test_without_event_triggers_swapped_names_are_found(unfollowed: psycopg.Connection, pair: tuple[int, int]) -> None:
    db = unfollowed
    for step in ("by_status RENAME TO x", "totals RENAME TO by_status", "x RENAME TO totals"):
        db.execute(f"ALTER TABLE {step}")  # type: ignore[arg-type]
    db.execute("SELECT pgtrickle._follow_names()")
    assert [s.pgt_name for s in store.load_catalog(db)[0]] == ["totals", "by_status"]


def test_dropped_source(db: psycopg.Connection, dsn: str, orders: int, pair: tuple[int, int]) -> None:
    db.execute("CREATE TABLE other (a int)")
    third = stream_table(db, "third", "other", "a")
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN pgtrickle_ddl")
        db.execute("DROP TABLE orders")
        assert [n.payload for n in listener.notifies(timeout=2, stop_after=1)] == [str(orders)]
    for pgt_id in pair:
        status, error = state_of(db, pgt_id)
        assert status == "ERROR" and error is not None and "public.orders: the relation was dropped" in error
    assert state_of(db, third) == ("ACTIVE", None)
    assert list(store.change_tracking(db)) == [oid_of(db, "other")]
    assert db.execute("SELECT to_regclass(%s)", (f"pgtrickle_changes.changes_{orders}",)).fetchone() == (None,)


def test_type_of_a_dropped_column_can_be_dropped(db: psycopg.Connection) -> None:
    db.execute("CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE t (a int, m mood)")
    pgt_id = stream_table(db, "st", "t", "m")
    db.execute("ALTER TABLE t DROP COLUMN m")
    db.execute("DROP TYPE mood")
    assert state_of(db, pgt_id)[0] == "ERROR"


def test_column_lost_by_a_cascade(db: psycopg.Connection) -> None:
    db.execute("CREATE DOMAIN pos AS int; CREATE TABLE t (a int, m pos)")
    pgt_id = stream_table(db, "st", "t", "a", "m")
    db.execute("DROP DOMAIN pos CASCADE")
    db.execute("INSERT INTO t VALUES (1)")
    status, error = state_of(db, pgt_id)
    assert status == "ERROR" and error is not None and 'column "m" was dropped' in error


def test_dropping_the_storage_forgets_the_stream_table(db: psycopg.Connection, orders: int) -> None:
    gone = stream_table(db, "gone", "orders", "id")
    db.execute("CREATE TABLE other (a int)")
    kept = stream_table(db, "kept", "other", "a")
    db.execute("DROP TABLE gone")
    assert [s.pgt_id for s in store.load_catalog(db)[0]] == [kept]
    assert gone not in {d.pgt_id for d in store.load_catalog(db)[2]}
    assert list(store.change_tracking(db)) == [oid_of(db, "other")]


def test_dropping_storage_does_not_wait_for_writers_of_its_source(
    db: psycopg.Connection, dsn: str, orders: int
) -> None:
    stream_table(db, "gone", "orders", "id")
    with psycopg.connect(dsn) as writer:
        writer.execute("INSERT INTO orders VALUES (1)")
        db.execute("SET lock_timeout = '2s'")
        db.execute("DROP TABLE gone")
        assert list(store.change_tracking(db)) == [orders], "left for the engine"
    assert db.execute("SELECT pgtrickle._capture_collect()").fetchone() == (1,)


def test_disabled_triggers_come_back_at_once(db: psycopg.Connection, orders: int) -> None:
    capture(db, "orders", "id")
    db.execute("ALTER TABLE orders DISABLE TRIGGER ALL")
    db.execute("INSERT INTO orders VALUES (1)")
    db.execute("ALTER TABLE orders ENABLE TRIGGER ALL")
    db.execute("SET session_replication_role = replica")
    db.execute("INSERT INTO orders VALUES (2)")
    assert changes(db, orders) == [(1, 1), (1, 2)]


def test_a_rewrite_that_keeps_the_type_asks_to_recompute(db: psycopg.Connection, orders: int) -> None:
    capture(db, "orders", "amount")
    db.execute("ALTER TABLE orders ALTER amount TYPE int USING amount * 2")
    assert changes(db, orders) == [(0, None)]


def test_replaced_view_asks_for_a_rebuild(db: psycopg.Connection, orders: int) -> None:
    pgt_id = stream_table(db, "st", "orders", "id")
    db.execute("CREATE VIEW v AS SELECT id FROM orders")
    record(db, pgt_id, "pg_class", "'v'::regclass")
    db.execute("CREATE OR REPLACE VIEW v AS SELECT id FROM orders")
    assert drift_of(db, pgt_id) is None, "it is what it was"
    db.execute("CREATE OR REPLACE VIEW v AS SELECT id FROM orders WHERE id > 1")
    assert drift_of(db, pgt_id) == "view public.v was changed"


def record(db: psycopg.Connection, pgt_id: int, catalog: str, oid: str) -> None:
    """Record one object that a stream table's query names."""
    db.execute(
        f"SELECT pgtrickle._record_objects(%s, ARRAY['{catalog}'::regclass::oid], ARRAY[({oid})::oid], '{{0}}')",  # type: ignore[arg-type]
        (pgt_id,),
    )


def test_without_event_triggers_a_replaced_function_is_found(unfollowed: psycopg.Connection, orders: int) -> None:
    db = unfollowed
    db.execute("CREATE FUNCTION f(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x'")
    pgt_id = stream_table(db, "st", "orders", "id")
    record(db, pgt_id, "pg_proc", "'f'::regproc")
    for harmless in ("COST 5", "PARALLEL SAFE", "OWNER TO CURRENT_USER"):
        db.execute(f"ALTER FUNCTION f {harmless}")  # type: ignore[arg-type]
    assert db.execute("SELECT * FROM pgtrickle._drift()").fetchall() == []
    db.execute("CREATE OR REPLACE FUNCTION f(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x + 1'")
    assert drift_of(db, pgt_id) is None
    assert db.execute("SELECT pgtrickle._mark_drifted(), pgtrickle._mark_drifted()").fetchone() == (1, 0)
    assert drift_of(db, pgt_id) == "function public.f(integer) was changed"
    db.execute("DROP FUNCTION f")
    db.execute("SELECT pgtrickle._mark_drifted()")
    assert drift_of(db, pgt_id) == "function public.f(integer) was dropped"


def test_comparing_fingerprints_is_cheap(db: psycopg.Connection, orders: int) -> None:
    for i in range(40):
        db.execute(f"CREATE FUNCTION f{i}(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x'")  # type: ignore[arg-type]
        record(db, stream_table(db, f"st{i}", "orders", "id"), "pg_proc", f"'f{i}'::regproc")
    db.execute("SELECT pgtrickle._mark_drifted()")
    began = time.perf_counter()
    for _ in range(10):
        db.execute("SELECT pgtrickle._mark_drifted()")
    assert (time.perf_counter() - began) / 10 < 0.1, "forty tables with a function each"


def test_altering_the_query_onto_a_retyped_column(db: psycopg.Connection, orders: int) -> None:
    stream_table(db, "st", "orders", "id", "status")
    db.execute("ALTER TABLE orders ALTER status TYPE int USING 1")
    capture(db, "orders", "status")
    clear(db, orders)
    db.execute("INSERT INTO orders VALUES (1, 5)")
    assert changes(db, orders) == [(1, 1, 5)]


def test_the_schemas_can_be_dropped(db: psycopg.Connection, pair: tuple[int, int]) -> None:
    db.execute("DROP SCHEMA pgtrickle, pgtrickle_changes, pgtrickle_state CASCADE")
    assert db.execute("INSERT INTO orders VALUES (1)").rowcount == 1, "no trigger of ours is left to fail"
    db.execute("DROP TABLE orders")
    assert db.execute("SELECT to_regclass('orders')").fetchone() == (None,)


@pytest.fixture
def unfollowed(db: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A server on which no event trigger may be created."""
    for name in ("ddl", "drop", "rewrite"):
        db.execute(f"DROP EVENT TRIGGER pgtrickle_{name}")  # type: ignore[arg-type]
    yield db


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE orders DROP COLUMN amount",
        "ALTER TABLE orders RENAME COLUMN amount TO total",
    ],
)
def test_without_event_triggers_writers_go_on_and_the_check_finds_it(
    unfollowed: psycopg.Connection, orders: int, ddl: str
) -> None:
    db = unfollowed
    pgt_id = stream_table(db, "st", "orders", "id", "amount")
    db.execute("INSERT INTO orders VALUES (1, 's', 1)")
    clear(db, orders)
    db.execute(ddl)  # type: ignore[arg-type]
    db.execute("UPDATE orders SET note = 'x'")
    assert changes(db, orders) == [(0, None, None)]
    found = db.execute("SELECT pgt_id, problem FROM pgtrickle._check_sources()").fetchall()
    assert len(found) == 1 and found[0][0] == pgt_id and '"amount"' in found[0][1]
    assert db.execute("SELECT pgtrickle._mark_broken()").fetchone() == (1,)
    assert state_of(db, pgt_id)[0] == "ERROR"
    assert db.execute("SELECT source_relid FROM pgtrickle._capture_drift()").fetchall() == [(orders,)]


@pytest.mark.parametrize("ddl", ["TYPE text", "TYPE bigint USING 99999999999"])
def test_without_event_triggers_a_retyped_column_is_found(
    unfollowed: psycopg.Connection, orders: int, ddl: str
) -> None:
    db = unfollowed
    pgt_id = stream_table(db, "st", "orders", "id", "amount")
    db.execute("INSERT INTO orders VALUES (1, 's', 1)")
    clear(db, orders)
    db.execute(f"ALTER TABLE orders ALTER amount {ddl}")  # type: ignore[arg-type]
    db.execute("UPDATE orders SET note = 'x'")
    assert changes(db, orders) == [(0, None, None)]
    assert db.execute("SELECT pgtrickle._mark_drifted()").fetchone() == (1,)
    assert 'column "amount" changed its type' in (drift_of(db, pgt_id) or "")


def test_without_event_triggers_install_repairs_and_marks(unfollowed: psycopg.Connection) -> None:
    db = unfollowed
    db.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id)")
    oid = capture(db, "p", "id")
    db.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    db.execute("INSERT INTO p1 VALUES (1)")
    assert changes(db, oid) == []
    assert db.execute("SELECT source_relid FROM pgtrickle._capture_drift()").fetchall() == [(oid,)]
    capture(db, "p", "id")
    db.execute("INSERT INTO p1 VALUES (2)")
    assert changes(db, oid) == [(0, None), (1, 2)]
