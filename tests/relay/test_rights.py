"""Who may read, write and send what: PostgreSQL's own roles decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege
from psycopg.types.json import Jsonb

import runnel
from runnel.relay.catalog import inbox_table
from runnel.relay.relay import Relay
from tests.e2e.helpers import eventually

Db = psycopg.Connection[Any]


@pytest.fixture
def roles(db: Db) -> Iterator[tuple[str, str]]:
    """Two ordinary roles."""
    names = ("relay_ann", "relay_bob")
    for name in names:
        db.execute(f"CREATE ROLE {name}".encode())
        db.execute(f"GRANT CREATE ON SCHEMA public TO {name}".encode())
    yield names
    for name in names:
        db.execute(f"DROP OWNED BY {name}".encode())
        db.execute(f"DROP ROLE {name}".encode())


@contextmanager
def acting(db: Db, role: str) -> Iterator[Db]:
    db.execute(f"SET ROLE {role}".encode())
    try:
        yield db
    finally:
        db.execute("RESET ROLE")


def value(db: Db, query: str) -> Any:
    row = db.execute(query.encode()).fetchone()
    return row and row[0]


def test_an_outbox_is_its_owners(db: Db, roles: tuple[str, str]) -> None:
    ann, bob = roles
    with acting(db, ann):
        db.execute("SELECT tide.outbox_create('hers')")
        db.execute("SELECT tide.outbox_publish('hers', '{}')")
        assert value(db, "SELECT count(*) FROM tide.tide_outbox_messages") == 1
    with acting(db, bob):
        assert value(db, "SELECT count(*) FROM tide.tide_outbox_messages") == 0
        for call in (
            "SELECT tide.outbox_publish('hers', '{}')",
            "INSERT INTO tide.tide_outbox_messages (outbox_name, payload) VALUES ('hers', '{}')",
            "SELECT tide.outbox_disable('hers')",
            "SELECT tide.outbox_drop('hers')",
            "SELECT tide.create_consumer_group('g', 'hers')",
            "SELECT tide.relay_set_outbox('p', 'hers', 'ducklake')",
            "INSERT INTO tide.relay_outbox_config (name, outbox_name, sink_type) VALUES ('p', 'hers', 'ducklake')",
            "UPDATE tide.tide_outbox_config SET owner = 10",
            "SELECT tide._sweep('hers', 1)",
        ):
            with pytest.raises(InsufficientPrivilege):
                db.execute(call.encode())
    db.execute(f"SET SESSION AUTHORIZATION {bob}".encode())
    with pytest.raises(InsufficientPrivilege, match="outbox"):
        db.execute("SELECT tide._number('hers')")
    db.execute("RESET SESSION AUTHORIZATION")
    with acting(db, ann):
        # She may send to a lake, but nowhere else.
        db.execute("SELECT tide.relay_set_outbox('p', 'hers', 'ducklake')")
        with pytest.raises(InsufficientPrivilege, match="members of the engine's role"):
            db.execute("""SELECT tide.relay_set_outbox('f', 'hers', 'file', '{"path": "/etc"}')""")
        with pytest.raises(InsufficientPrivilege):
            db.execute("UPDATE tide.relay_outbox_config SET sink_type = 'file'")
        with pytest.raises(InsufficientPrivilege):
            db.execute("INSERT INTO tide.relay_inbox_config (name, inbox_name, source_type) VALUES ('i', 'x', 'redis')")
    with acting(db, bob):
        assert value(db, "SELECT tide.relay_list_configs()") == []


@pytest.mark.usefixtures("orders")
def test_changes_are_read_by_who_may_read_the_table(db: Db, roles: tuple[str, str], client: runnel.Client) -> None:
    ann, bob = roles
    db.execute("SELECT pgtrickle.attach_outbox('revenue')")
    db.execute(f"GRANT SELECT ON revenue TO {ann}".encode())
    with acting(db, ann):
        assert value(db, "SELECT count(*) FROM tide.tide_outbox_messages") == 2
        with pytest.raises(InsufficientPrivilege, match="Only refreshes write|permission denied"):
            db.execute("SELECT tide.outbox_publish('revenue', '{}')")
    with acting(db, bob):
        assert value(db, "SELECT count(*) FROM tide.tide_outbox_messages") == 0
        with pytest.raises(InsufficientPrivilege):
            db.execute("SELECT tide.relay_set_outbox('revenue', 'ducklake')")
        with pytest.raises(Exception, match="must be owner"):
            db.execute("SELECT pgtrickle.detach_outbox('revenue')")
    # Policies on the table let some see some rows; the outbox has all of them.
    db.execute("ALTER TABLE revenue ENABLE ROW LEVEL SECURITY")
    with acting(db, ann):
        assert value(db, "SELECT count(*) FROM tide.tide_outbox_messages") == 0


@pytest.mark.usefixtures("orders")
def test_rights_that_are_taken_back_end_a_pipeline(
    db: Db, roles: tuple[str, str], client: runnel.Client, relay: Callable[[], Relay], duck: Callable[..., Any]
) -> None:
    ann, _ = roles
    db.execute("SELECT pgtrickle.attach_outbox('revenue')")
    db.execute(f"GRANT SELECT ON revenue TO {ann}".encode())
    with acting(db, ann):
        db.execute("""SELECT tide.relay_set_outbox('p', 'revenue', 'ducklake', '{"table": "hers"}')""")
    db.execute(f"REVOKE SELECT ON revenue FROM {ann}".encode())
    relay()
    db.execute("SELECT tide.relay_set_outbox('q', 'revenue', 'ducklake')")
    eventually(lambda: value(db, "SELECT lag = 0 FROM tide.relay_pipeline_lag WHERE pipeline_id = 'q'"))
    assert value(db, "SELECT last_change_id FROM tide.relay_pipeline_lag WHERE pipeline_id = 'p'") == 0
    assert [name for (name,) in duck().rows("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'")] == [
        "revenue__log"
    ]


def test_an_inbox_is_its_owners(db: Db, roles: tuple[str, str]) -> None:
    ann, _ = roles
    with acting(db, ann):
        db.execute("SELECT tide.inbox_create('hers', p_schema := 'public')")
        db.execute("INSERT INTO hers_inbox (event_id, payload) VALUES ('a', '{}'), ('b', '{}'), ('c', '{}')")
        db.execute("SELECT tide.inbox_mark_processed('hers', 'a')")
        for _ in range(4):
            db.execute("SELECT tide.inbox_mark_failed('hers', 'b', 'no')")
        assert value(db, "SELECT tide.inbox_status('hers')") == {
            "inbox_name": "hers", "pending": 1, "dlq_count": 1, "processed": 1,
        }  # fmt: skip
        assert value(db, "SELECT tide.replay_inbox_messages('hers', ARRAY['b'])") == 1
        assert value(db, "SELECT tide.inbox_status() -> 0 ->> 'pending'") == "2"
        db.execute("SELECT tide.inbox_drop('hers')")


def test_a_table_of_somebody_else_is_no_inbox(db: Db, roles: tuple[str, str]) -> None:
    """What arrives is written as the table's owner, so naming a table must not be enough."""
    ann, bob = roles
    with acting(db, ann):
        db.execute("SELECT tide.inbox_create('hers', 'public')")
    assert inbox_table(db, "hers") == (ann, "public", "hers_inbox")
    with acting(db, ann):
        db.execute("DELETE FROM tide.tide_inbox_config WHERE inbox_name = 'hers'")
    with acting(db, bob):
        db.execute("INSERT INTO tide.tide_inbox_config (inbox_name, inbox_schema) VALUES ('hers', 'public')")
    assert inbox_table(db, "hers") is None


def test_consumers_share_a_group(db: Db, dsn: str) -> None:
    db.execute("SELECT tide.outbox_create('events')")
    for n in range(6):
        db.execute("SELECT tide.outbox_publish('events', %s)", (Jsonb(n),))
    db.execute("SELECT tide.create_consumer_group('g', 'events')")

    def poll(consumer: str, lease: int = 30) -> list[int]:
        found = db.execute('SELECT "offset" FROM tide.outbox_poll(%s, %s, 2, %s)', ("g", consumer, lease))
        return [row[0] for row in found]

    assert (poll("a"), poll("b")) == ([1, 2], [3, 4])
    assert poll("a") == [1, 2], "until it commits, a consumer gets the same again"
    db.execute("SELECT tide.outbox_commit_offset('g', 'a', 1)")
    assert poll("a") == [2]
    db.execute("SELECT tide.commit_offset('g', 'a', 2)")
    assert poll("a", lease=0) == [5, 6]
    assert poll("c") == [5, 6], "a lease that has expired goes to another"
    assert value(db, "SELECT tide.outbox_status('events') ->> 'native_safe_offset'") == "2"
    db.execute("SELECT tide.commit_offset('g', 'b', 4)")
    db.execute("SELECT tide.commit_offset('g', 'c', 6)")
    assert poll("a") == []
    assert value(db, "SELECT tide.outbox_status('events') ->> 'pending_messages'") == "0"
    lag = db.execute("SELECT consumer_id, lag FROM tide.consumer_lag ORDER BY 1").fetchall()
    assert lag == [("a", 4), ("b", 2), ("c", 0)]
