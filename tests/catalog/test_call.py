"""SQL functions that wait for the engine, against a stand-in for it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from runnel.catalog import requests as calls
from runnel.catalog.claim import claim
from runnel.catalog.rows import Request
from runnel.errors import RunnelError, UserError

Answer = Callable[[Request], Any]


class FakeEngine:
    """Holds the engine lock and answers requests with a function."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        assert claim(self.conn, host="here", os_pid=1, version="1", spark_master=None)
        self.conn.execute("LISTEN pgtrickle_request")
        self.answer: Answer = lambda request: None
        self.seen: list[Request] = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.stopping.is_set():
            list(self.conn.notifies(timeout=0.02, stop_after=1))
            for request in calls.take_requests(self.conn):
                self.seen.append(request)
                try:
                    calls.finish_request(self.conn, request.request_id, result=self.answer(request))
                except RunnelError as error:
                    calls.finish_request(self.conn, request.request_id, error=error)

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(5)
        self.conn.close()


@pytest.fixture
def engine(dsn: str) -> Iterator[FakeEngine]:
    fake = FakeEngine(dsn)
    yield fake
    fake.stop()


def test_without_an_engine_it_fails_fast_and_says_how_to_start_one(db: psycopg.Connection) -> None:
    begun = time.monotonic()
    with pytest.raises(psycopg.Error, match=f'no Runnel engine is running on database "{db.info.dbname}"') as caught:
        db.execute("SELECT pgtrickle.create_stream_table('x', 'SELECT 1')")
    assert time.monotonic() - begun < 1
    assert "runnel up" in (caught.value.diag.message_hint or "")


def test_arguments_and_session_arrive(db: psycopg.Connection, engine: FakeEngine) -> None:
    db.execute("CREATE SCHEMA app; SET search_path = app, public; SET TimeZone = 'Asia/Tokyo'")
    pid = db.info.backend_pid
    db.execute("SELECT pgtrickle.create_stream_table('x', query => $$SELECT 'é'$$, schedule => '1s')")
    request = engine.seen[0]
    assert (request.kind, request.role, request.caller_pid) == ("create", "postgres", pid)
    assert request.args == {
        "name": "x", "query": "SELECT 'é'", "schedule": "1s", "refresh_mode": "AUTO", "initialize": True,
        "diamond_consistency": None, "diamond_schedule_policy": None, "cdc_mode": None, "append_only": False,
        "pooler_compatibility_mode": False,
    }  # fmt: skip
    assert request.settings == {
        "search_path": "app, public", "TimeZone": "Asia/Tokyo", "DateStyle": "ISO, MDY",
        "IntervalStyle": "postgres",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "args"),
    [
        ("alter_stream_table('x', schedule => '5s')", "alter", {"name": "x", "schedule": "5s"}),
        ("alter_stream_table('x', status => 'SUSPENDED', tier => 'hot')", "alter",
         {"name": "x", "status": "SUSPENDED", "tier": "hot"}),
        ("drop_stream_table('x')", "drop", {"name": "x", "cascade": False}),
        ("resume_stream_table('x')", "resume", {"name": "x"}),
        ("refresh_stream_table('x')", "refresh", {"name": "x"}),
        ("create_stream_table_if_not_exists('x', 'q')", "create_if_not_exists", None),
        ("create_or_replace_stream_table('x', 'q')", "create_or_replace", None),
    ],
)  # fmt: skip
def test_commands(db: psycopg.Connection, engine: FakeEngine, call: str, kind: str, args: Any) -> None:
    db.execute(f"SELECT pgtrickle.{call}")  # type: ignore[arg-type]
    assert engine.seen[0].kind == kind
    assert args is None or engine.seen[0].args == args


def test_answers(db: psycopg.Connection, engine: FakeEngine) -> None:
    engine.answer = lambda r: {
        "validate": [{"check": "parse", "result": "ok", "severity": "INFO"}],
        "explain": ["line one", "line two"],
        "verify": {"ok": True},
    }[r.kind]
    assert db.execute("SELECT * FROM pgtrickle.validate_query('q')").fetchall() == [("parse", "ok", "INFO")]
    assert db.execute("SELECT pgtrickle.explain_stream_table('x')").fetchall() == [
        ("line one",),
        ("line two",),
    ]
    assert db.execute("SELECT pgtrickle.verify_stream_table('x')").fetchone() == ({"ok": True},)


def test_errors_come_back_whole(db: psycopg.Connection, engine: FakeEngine) -> None:
    def refuse(request: Request) -> None:
        raise UserError('column "x" does not exist', hint="look again", detail="in line 1", sqlstate="42703")

    engine.answer = refuse
    with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
        db.execute("SELECT pgtrickle.refresh_stream_table('x')")
    diag = caught.value.diag
    assert (diag.message_primary, diag.message_hint, diag.message_detail) == (
        'column "x" does not exist', "look again", "in line 1",
    )  # fmt: skip
    with pytest.raises(psycopg.errors.UndefinedColumn) as caught, db.transaction():
        db.execute("CREATE TABLE uncommitted (a int)")
        db.execute("SELECT pgtrickle.refresh_stream_table('x')")
    assert "uncommitted work is invisible" in (caught.value.diag.message_hint or "")
    assert "look again" in (caught.value.diag.message_hint or "")


def test_an_error_without_hint_has_none(db: psycopg.Connection, engine: FakeEngine) -> None:
    def refuse(request: Request) -> None:
        raise UserError("no")

    engine.answer = refuse
    with pytest.raises(psycopg.errors.RaiseException) as caught:
        db.execute("SELECT pgtrickle.refresh_stream_table('x')")
    assert (caught.value.diag.message_hint, caught.value.diag.message_detail) == (None, None)


def test_inside_repeatable_read_the_answer_is_still_seen(db: psycopg.Connection, engine: FakeEngine) -> None:
    with db.transaction():
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        db.execute("SELECT 1")
        db.execute("SELECT pgtrickle.refresh_stream_table('x')")
    assert len(engine.seen) == 1


def loopbacks(db: psycopg.Connection) -> int:
    row = db.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'runnel-call'").fetchone()
    assert row is not None
    return int(row[0])


def test_a_cancelled_call_withdraws_its_request(db: psycopg.Connection, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as idle:
        assert claim(idle, host="here", os_pid=1, version="1", spark_master=None)
        db.execute("SET statement_timeout = '300ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            db.execute("SELECT pgtrickle.refresh_stream_table('x')")
        db.execute("RESET statement_timeout")
        assert db.execute("SELECT status FROM pgtrickle.pgt_requests").fetchall() == [("CANCELLED",)]
        assert calls.take_requests(idle) == []
    time.sleep(0.1)
    assert loopbacks(db) == 0


def test_an_engine_that_dies_is_noticed(db: psycopg.Connection, dsn: str) -> None:
    dying = psycopg.connect(dsn, autocommit=True)
    assert claim(dying, host="here", os_pid=1, version="1", spark_master=None)
    threading.Timer(0.3, dying.close).start()
    begun = time.monotonic()
    with pytest.raises(psycopg.errors.AdminShutdown, match="engine stopped before"):
        db.execute("SELECT pgtrickle.refresh_stream_table('x')")
    assert time.monotonic() - begun < 3


def test_nobody_borrows_another_role(db: psycopg.Connection, dsn: str, engine: FakeEngine) -> None:
    role = f"asker_{db.info.dbname}"
    db.execute(f"CREATE ROLE {role} LOGIN")  # type: ignore[arg-type]
    try:
        with psycopg.connect(f"{dsn} user={role}", autocommit=True) as asker:
            asker.execute("SELECT pgtrickle.refresh_stream_table('x')")
            assert engine.seen[-1].role == role
            asker.execute(
                "INSERT INTO pgtrickle.pgt_calls (caller, kind, args, settings, wrote) "
                "VALUES ('postgres', 'refresh', '{}', '{}', false)"
            )
            assert engine.seen[-1].role == role, "whatever it says"
            for private in ("pgt_requests", "pgt_settings"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    asker.execute(f"SELECT * FROM pgtrickle.{private}")  # type: ignore[arg-type]
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                asker.execute("UPDATE pgtrickle.pgt_stream_tables SET status = 'ERROR'")
            for read in (
                "pgt_status()",
                "health_check()",
                "dependency_tree()",
                "change_buffer_sizes()",
                "version()",
            ):
                asker.execute(f"SELECT * FROM pgtrickle.{read}")  # type: ignore[arg-type]
    finally:
        db.execute(f"DROP ROLE {role}")  # type: ignore[arg-type]


def test_latency_of_a_call(db: psycopg.Connection, engine: FakeEngine) -> None:
    db.execute("SELECT pgtrickle.refresh_stream_table('x')")
    begun = time.monotonic()
    for _ in range(5):
        db.execute("SELECT pgtrickle.refresh_stream_table('x')")
    assert (time.monotonic() - begun) / 5 < 0.2
    time.sleep(0.1)
    assert loopbacks(db) == 0


@pytest.fixture
def alone(db: psycopg.Connection) -> psycopg.Connection:
    """A session on a server that cannot connect to itself."""
    db.execute("DROP EXTENSION dblink")
    return db


def handed_over(conn: psycopg.Connection, call: str = "SELECT pgtrickle.refresh_stream_table('x')") -> str:
    """Make a call; the number of its request, from the notice."""
    told: list[tuple[str | None, str, str]] = []

    def hear(said: psycopg.errors.Diagnostic) -> None:
        told.append((said.sqlstate, said.message_primary or "", said.message_hint or ""))

    conn.add_notice_handler(hear)
    assert conn.execute(call.encode()).fetchall() in ([(None,)], [("",)], [])
    conn.remove_notice_handler(hear)
    ((state, message, hint),) = told
    number = re.search(r"\d+", message)
    assert number is not None
    assert (state, hint) == ("01RW1", f"Then wait for its answer: SELECT pgtrickle.wait({number[0]})")
    return number[0]


def test_without_a_loopback_the_commit_hands_the_request_over(alone: psycopg.Connection, engine: FakeEngine) -> None:
    engine.answer = lambda request: {"changed": request.args["name"]}
    number = handed_over(alone)
    assert alone.execute("SELECT pgtrickle.wait(%s)", (number,)).fetchone() == ({"changed": "x"},)
    assert engine.seen[0].role == alone.info.user
    # The answer can be asked for again, by whoever may.
    assert alone.execute("SELECT pgtrickle.wait(%s)", (number,)).fetchone() == ({"changed": "x"},)


def test_a_failure_is_raised_by_wait(alone: psycopg.Connection, engine: FakeEngine) -> None:
    def refuse(_: Request) -> Any:
        raise UserError("it cannot be", hint="do it otherwise", sqlstate="0A000")

    engine.answer = refuse
    number = handed_over(alone)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="it cannot be") as caught:
        alone.execute("SELECT pgtrickle.wait(%s)", (number,))
    assert caught.value.diag.message_hint == "do it otherwise"


def test_what_is_rolled_back_was_never_asked(alone: psycopg.Connection, engine: FakeEngine) -> None:
    with alone.transaction(force_rollback=True):
        number = handed_over(alone)
        with pytest.raises(psycopg.Error, match="when this transaction commits"), alone.transaction():
            alone.execute("SELECT pgtrickle.wait(%s)", (number,))
    with pytest.raises(psycopg.errors.UndefinedObject, match="no request"):
        alone.execute("SELECT pgtrickle.wait(%s)", (number,))
    assert engine.seen == []


def test_a_request_goes_on_when_its_session_ends(dsn: str, alone: psycopg.Connection, engine: FakeEngine) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        number = handed_over(other)
    assert calls.abandoned(alone, [int(number)]) == []
    assert alone.execute("SELECT pgtrickle.wait(%s)", (number,)).fetchone() == (None,)


def test_nobody_waits_for_the_requests_of_others(dsn: str, alone: psycopg.Connection, engine: FakeEngine) -> None:
    number = handed_over(alone)
    alone.execute("CREATE ROLE curious LOGIN")
    try:
        with psycopg.connect(dsn, autocommit=True, user="curious") as other:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="of another role"):
                other.execute("SELECT pgtrickle.wait(%s)", (number,))
            own = handed_over(other)
            other.execute("SELECT pgtrickle.wait(%s)", (own,))
    finally:
        alone.execute("DROP ROLE curious")


def test_wait_says_that_the_engine_is_gone(alone: psycopg.Connection, engine: FakeEngine) -> None:
    held = threading.Event()
    engine.answer = lambda _: held.wait(20)
    number = handed_over(alone)
    alone.execute("DELETE FROM pgtrickle.pgt_engine")
    with pytest.raises(psycopg.errors.AdminShutdown, match="stopped before it finished"):
        alone.execute("SELECT pgtrickle.wait(%s)", (number,))
    held.set()
