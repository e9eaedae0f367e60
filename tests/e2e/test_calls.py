"""Calls that ask for too little, for too much, or for the same thing at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import runnel
from tests.e2e.helpers import Check, Stream, eventually, rows, script, value

SESSIONS = 6


NULLS = [
    ("create_stream_table(NULL, 'SELECT 1 AS x')", "name"),
    ("create_stream_table('s', NULL)", "query"),
    ("create_or_replace_stream_table('s', NULL)", "query"),
    ("create_or_replace_stream_table(NULL, 'SELECT 1 AS x')", "name"),
    ("create_stream_table_if_not_exists(NULL, 'SELECT 1 AS x')", "name"),
    ("create_stream_table_if_not_exists('s', NULL)", "query"),
    ("alter_stream_table(NULL, schedule => '5s')", "name"),
    ("drop_stream_table(NULL)", "name"),
    ("refresh_stream_table(NULL)", "name"),
    ("resume_stream_table(NULL)", "name"),
    ("verify_stream_table(NULL)", "name"),
    ("explain_stream_table(NULL)", "name"),
    ("explain_st(NULL)", "name"),
    ("validate_query(NULL)", "query"),
    ("get_staleness(NULL)", "name"),
    ("get_refresh_history(NULL)", "name"),
    ("attach_ducklake(NULL)", "name"),
    ("attach_ducklake('lake', NULL)", "catalog_schema"),
    ("detach_ducklake(NULL)", "name"),
    ("set_lake_option(NULL, 'region', 'x')", "name"),
    ("set_lake_option('lake', NULL, 'x')", "option"),
]


def test_null_is_named(db: psycopg.Connection, engine: runnel.Engine) -> None:
    script(db, "CREATE TABLE one (x int)")
    script(db, "SELECT pgtrickle.create_stream_table('known', 'SELECT x FROM one')")
    for call, argument in NULLS:
        with pytest.raises(psycopg.errors.NullValueNotAllowed, match=f'argument "{argument}".* must not be NULL'):
            db.execute(f"SELECT * FROM pgtrickle.{call}".encode())


def test_an_empty_query_is_called_empty(db: psycopg.Connection, engine: runnel.Engine) -> None:
    functions = ("create_stream_table('s', %s)", "create_or_replace_stream_table('s', %s)", "validate_query(%s)")
    for query in ("", "  \n\t", ";", " ; ", "-- nothing", "/* nothing */ ;"):
        for function in functions:
            with pytest.raises(psycopg.errors.InvalidParameterValue, match='"query" of .* is empty') as raised:
                db.execute(f"SELECT pgtrickle.{function}".encode(), (query,))
            assert "SELECT" in str(raised.value.diag.message_hint)
    with pytest.raises(psycopg.Error, match='argument "name" of .* is empty'):
        db.execute("SELECT pgtrickle.create_stream_table('', 'SELECT 1 AS one')")


@pytest.mark.parametrize(
    "place",
    ["pgtrickle", "pgtrickle_changes", "pgtrickle_state", "pg_catalog", "information_schema", "pg_toast", "pg_temp"],
)
def test_schemas_of_the_system_hold_no_stream_tables(db: psycopg.Connection, stream: Stream, place: str) -> None:
    db.execute("CREATE TABLE t (x int)")
    for function in ("create_stream_table", "create_or_replace_stream_table", "create_stream_table_if_not_exists"):
        with pytest.raises(psycopg.errors.ReservedName, match=f"schema {place} belongs to (Runnel|PostgreSQL) itself"):
            db.execute(f"SELECT pgtrickle.{function}('{place}.s', 'SELECT x FROM t')".encode())


def test_the_catalog_can_be_read_but_is_not_captured(
    db: psycopg.Connection, client: runnel.Client, check: Check
) -> None:
    client.create_stream_table("watch", "SELECT pgt_name, status FROM pgtrickle.pgt_stream_tables", schedule="@yearly")
    check("watch")
    triggers = value(db, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'pgtrickle.pgt_stream_tables'::regclass "
                         "AND NOT tgisinternal")  # fmt: skip
    assert triggers == 0
    assert value(db, "SELECT effective_mode FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'watch'") == "FULL"


def at_once(dsn: str, statement: str) -> list[str]:
    """What each of several sessions gets that call at the same moment: '' or its error."""

    def call(_: int) -> str:
        with psycopg.connect(dsn, autocommit=True) as conn:
            try:
                conn.execute(statement.encode())
            except psycopg.Error as error:
                return str(error.diag.message_primary)
            return ""

    with ThreadPoolExecutor(SESSIONS) as pool:
        return sorted(pool.map(call, range(SESSIONS)))


def test_the_same_definition_from_many_sessions(
    db: psycopg.Connection, client: runnel.Client, check: Check, dsn: str
) -> None:
    script(db, "CREATE TABLE t (x int); INSERT INTO t VALUES (1), (2)")
    for function in ("create_stream_table_if_not_exists", "create_or_replace_stream_table"):
        call = f"SELECT pgtrickle.{function}('same', 'SELECT sum(x) AS s FROM t', '@yearly')"
        assert at_once(dsn, call) == [""] * SESSIONS, function
        check("same")
        assert [h.action for h in client.history("same") if h.action == "INITIAL"] == ["INITIAL"], "it was filled once"
        dropped = at_once(dsn, "SELECT pgtrickle.drop_stream_table('same')")
        assert dropped[0] == "" and all("does not exist" in error for error in dropped[1:])
        assert value(db, "SELECT to_regclass('same') IS NULL")


def test_if_not_exists_says_that_it_skips(db: psycopg.Connection, client: runnel.Client) -> None:
    heard: list[str] = []
    db.add_notice_handler(lambda notice: heard.append(str(notice.message_primary)))
    db.execute("CREATE TABLE t (x int)")
    for expected in (0, 1, 2):
        db.execute("SELECT pgtrickle.create_stream_table_if_not_exists('s', 'SELECT x FROM t', '@yearly')")
        assert [h for h in heard if "already exists, skipping" in h] == [
            'stream table "s" already exists, skipping'
        ] * expected


WRITES: list[tuple[str, str]] = [
    ("INSERT INTO t VALUES (3)", "t"),
    ("UPDATE t SET x = x + 1", "t"),
    ("DELETE FROM t", "t"),
    ("TRUNCATE t", "t"),
    ("INSERT INTO parts VALUES (1)", "parts"),
    ("INSERT INTO part_1 VALUES (1)", "parts"),
]


@pytest.mark.parametrize(("write", "table"), WRITES)
def test_a_refresh_after_an_uncommitted_write_is_refused(
    db: psycopg.Connection, stream: Stream, check: Check, write: str, table: str
) -> None:
    script(
        db,
        "CREATE TABLE t (x int); INSERT INTO t VALUES (1), (2); CREATE TABLE parts (x int) PARTITION BY LIST (x);"
        "CREATE TABLE part_1 PARTITION OF parts FOR VALUES IN (1)",
    )
    stream("s", "SELECT count(*) AS n, sum(x) AS s FROM (SELECT x FROM t UNION ALL SELECT x FROM parts) q")
    stream("over", "SELECT n + 1 AS m FROM s")
    for call in ("refresh_stream_table('s')", "refresh_stream_table('over')", "verify_stream_table('s')"):
        refused = pytest.raises(psycopg.errors.ObjectInUse, match=f"uncommitted changes in .*{table}")
        with db.transaction(), refused, db.transaction():
            db.execute(write.encode())
            db.execute(f"SELECT pgtrickle.{call}".encode())
    with db.transaction():
        db.execute("SELECT * FROM t FOR UPDATE")
        db.execute("CREATE TABLE unrelated (x int)")
        db.execute("INSERT INTO unrelated VALUES (1)")
        db.execute("SELECT pgtrickle.refresh_stream_table('over')")
    check("s", "over")


LONG = "n" * 63


def test_names_as_long_as_postgres_keeps_them(db: psycopg.Connection, stream: Stream, check: Check, dsn: str) -> None:
    wide = "ü" * 31 + "x"
    script(db, f'CREATE TABLE {LONG} ("{wide}" int, "we ird""" text); INSERT INTO {LONG} VALUES (1, \'a\')')
    for name in (LONG[1:] + "s", f'"{wide}"', '"Mixed Case ""quoted"""', '"π.θ"'):
        stream(name, f'SELECT "{wide}", count(*) AS n, min("we ird""") AS m FROM {LONG} GROUP BY 1')
        db.execute(f"INSERT INTO {LONG} VALUES (1, 'b'), (2, NULL)".encode())
        check(name)
        assert value(db, f"SELECT count(*) FROM {name}") == 2


@pytest.mark.parametrize("name", ["n" * 64, "ü" * 32, "public." + "n" * 64, "s" * 64 + ".x"])
def test_longer_names_are_refused(db: psycopg.Connection, stream: Stream, client: runnel.Client, name: str) -> None:
    script(db, f"CREATE TABLE t (x int); CREATE TABLE {LONG} (x int)")
    stream(LONG[:60], "SELECT x FROM t")
    calls: list[Callable[[], object]] = [
        lambda: stream(f'"{name}"' if "." not in name else name, "SELECT x FROM t"),
        lambda: client.refresh(f'"{name}"' if "." not in name else name),
    ]
    for call in calls:
        with pytest.raises(runnel.RunnelError, match=r"is too long: it has 64 bytes, and PostgreSQL keeps 63"):
            call()


def pulse(db: psycopg.Connection) -> tuple[str, str]:
    ((severity, detail),) = rows(
        db, "SELECT severity, detail FROM pgtrickle.health_check() WHERE check_name = 'scheduler_running'"
    )
    return severity, detail


@pytest.mark.slow
def test_an_engine_that_does_not_answer_is_not_called_healthy(
    db: psycopg.Connection, client: runnel.Client, engine: runnel.Engine, dsn: str
) -> None:
    script(db, "CREATE TABLE t (x int)")
    client.create_stream_table("s", "SELECT x FROM t", schedule="1s")
    assert pulse(db)[0] == "OK"
    before = value(db, "SELECT seen_at FROM pgtrickle.pgt_heartbeat")
    db.execute("INSERT INTO t VALUES (1)")
    eventually(lambda: value(db, "SELECT seen_at FROM pgtrickle.pgt_heartbeat") > before, 40, what="no heartbeat")
    # Its clock stands still: nothing is under way, and nothing has been for minutes.
    db.execute("UPDATE pgtrickle.pgt_engine SET started_at = now() - interval '1 hour'")

    def silent() -> bool:
        db.execute("UPDATE pgtrickle.pgt_heartbeat SET seen_at = now() - interval '5 minutes'")
        severity, detail = pulse(db)
        return severity == "ERROR" and "does not answer" in detail

    eventually(silent, 20, what="its silence was not noticed")
    # A refresh that waits for a lock keeps the loop from nothing: it goes on, and calls are answered.
    with psycopg.connect(dsn) as blocker:
        blocker.execute("LOCK TABLE s IN ACCESS EXCLUSIVE MODE")
        db.execute("INSERT INTO t VALUES (2)")
        waiting = "SELECT count(*) FROM pgtrickle.pgt_progress WHERE name LIKE '%.s' AND command = 'refresh'"
        eventually(lambda: value(db, waiting), 40, what="the refresh does not wait")
        eventually(lambda: pulse(db)[0] == "OK", 40, what="the loop stands still")
        assert client.validate("SELECT x FROM t")
    eventually(lambda: pulse(db)[0] == "OK", 60)


def test_the_engine_removes_what_was_answered_long_ago(db: psycopg.Connection, engine: runnel.Engine) -> None:
    db.execute(
        "INSERT INTO pgtrickle.pgt_requests (kind, role, caller_pid, status, created_at) "
        "SELECT 'old', current_user, 0, s, now() - interval '2 hours' FROM unnest('{DONE,FAILED,CANCELLED}'::text[]) s"
    )

    def gone() -> bool:
        db.execute("NOTIFY pgtrickle_request")  # an idle engine sleeps for long
        return value(db, "SELECT count(*) FROM pgtrickle.pgt_requests WHERE kind = 'old'") == 0

    eventually(gone, 60, what="old requests stay")
