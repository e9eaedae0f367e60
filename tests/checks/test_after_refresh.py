"""What must be true of a stream table, looked at after each refresh: exact, cheap, and harmless."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.checks import run
from runnel.errors import RunnelError

Db = psycopg.Connection[Any]

TESTS = [
    {"unique": ["k", "tag"], "not_null": ["tag"]},
    {"accepted_values": {"tag": ["a", "b"]}},
    {"relationships": {"column": "k", "to": "keys", "field": "k"}},
    {"empty": "SELECT 1 FROM copy WHERE v > 90"},
]
COUNTS = {
    "unique k, tag": "SELECT count(*) FROM (SELECT 1 FROM copy GROUP BY k, tag HAVING count(*) > 1) v",
    "not null tag": "SELECT count(*) FROM copy WHERE tag IS NULL",
    "accepted values tag": "SELECT count(*) FROM copy WHERE tag NOT IN ('a', 'b')",
    "relationship k -> public.keys.k": "SELECT count(*) FROM copy c WHERE k IS NOT NULL AND NOT EXISTS "
    "(SELECT FROM keys WHERE keys.k = c.k)",
    "empty": "SELECT count(*) FROM copy WHERE v > 90",
}


def value(db: Db, text: str) -> Any:
    row = db.execute(text.encode()).fetchone()
    return None if row is None else row[0]


@pytest.fixture
def source(db: Db) -> Db:
    db.execute("CREATE TABLE source (id serial PRIMARY KEY, k int, tag text, v int)")
    db.execute("CREATE TABLE keys (k int PRIMARY KEY)")
    db.execute("INSERT INTO keys SELECT generate_series(0, 8)")
    db.execute("INSERT INTO source (k, tag, v) VALUES (1, 'a', 1), (2, 'b', 2)")
    return db


def found(client: runnel.Client, name: str = "copy") -> dict[str, tuple[str, int]]:
    return {each.test: (each.status, each.violations) for each in client.tests(name)}


def test_counts_are_exact_over_a_random_history(source: Db, client: runnel.Client) -> None:
    client.create_stream_table("copy", "SELECT k, tag, v FROM source", schedule="1h")
    assert {each.status for each in client.set_tests("copy", TESTS)} == {"ok"}
    chance = random.Random(7)
    for step in range(14):
        for _ in range(chance.randint(1, 6)):
            tag = chance.choice(["'a'", "'b'", "'c'", "NULL"])
            k = chance.choice(["NULL", *(str(n) for n in range(11))])
            match chance.randint(0, 3):
                case 0 | 1:
                    source.execute(f"INSERT INTO source (k, tag, v) VALUES ({k}, {tag}, {chance.randint(0, 99)})")
                case 2:
                    source.execute(f"UPDATE source SET tag = {tag}, v = v + 1 WHERE id % 5 = {chance.randint(0, 4)}")
                case _:
                    source.execute(f"DELETE FROM source WHERE id % 7 = {chance.randint(0, 6)}")
        if step == 9:
            source.execute("TRUNCATE source")
        client.refresh("copy")
        counts = {name: int(value(source, count)) for name, count in COUNTS.items()}
        expected = {name: ("violated" if n else "ok", n) for name, n in counts.items()}
        assert found(client) == expected, step
    assert client.verify("copy").ok


def test_a_violation_shows_everywhere_and_goes(source: Db, client: runnel.Client) -> None:
    client.create_stream_table("copy", "SELECT k, tag, v FROM source", schedule="1h")
    client.set_tests("copy", [{"not_null": ["tag"]}])
    assert client.status()[0].tests == "ok"
    assert value(source, "SELECT severity FROM pgtrickle.health_check() WHERE check_name = 'tests'") == "OK"
    source.execute("INSERT INTO source (k, tag) VALUES (3, NULL), (4, NULL)")
    client.refresh("copy")
    assert client.status()[0].tests == "not null tag: 2 violations"
    assert value(source, "SELECT tests FROM pgtrickle.pgt_status()") == "not null tag: 2 violations"
    health = source.execute("SELECT severity, detail FROM pgtrickle.health_check() WHERE check_name = 'tests'")
    assert health.fetchone() == ("WARN", "public.copy: not null tag: 2 violations")
    source.execute("DELETE FROM source WHERE tag IS NULL")
    client.refresh("copy")
    assert client.status()[0].tests == "ok"
    assert client.set_tests("copy", []) == []
    assert client.status()[0].tests is None


def test_keys_are_found_by_an_index_that_comes_and_goes(source: Db, client: runnel.Client) -> None:
    client.create_stream_table("copy", "SELECT k, tag, v FROM source", schedule="1h")
    client.set_tests("copy", [{"unique": ["k"]}])
    indexes = "SELECT count(*) FROM pg_indexes WHERE tablename = 'copy' AND indexname LIKE 'pgt_test_%'"
    assert value(source, indexes) == 1
    client.alter_stream_table("copy", query="SELECT k, tag, v, id FROM source")
    assert value(source, indexes) == 1
    source.execute("INSERT INTO source (k, tag) VALUES (2, 'x')")
    client.refresh("copy")
    assert found(client) == {"unique k": ("violated", 1)}
    client.alter_stream_table("copy", query="SELECT tag, v, id FROM source")
    assert found(client)["unique k"][0] == "error"
    client.refresh("copy")
    client.set_tests("copy", [])
    assert value(source, indexes) == 0
    assert client.verify("copy").ok


@pytest.mark.slow
def test_a_test_that_fails_breaks_nothing(source: Db, client: runnel.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "REPEAT_GOOD", 0.1)
    client.create_stream_table("copy", "SELECT k, tag, v FROM source", schedule="1h")
    client.set_tests("copy", [{"empty": "SELECT 1 FROM copy WHERE 1 / v = 5"}, {"not_null": ["tag"]}])
    source.execute("INSERT INTO source (k, tag, v) VALUES (3, NULL, 0)")
    client.refresh("copy")
    assert found(client) == {"empty": ("error", 0), "not null tag": ("violated", 1)}
    problem = value(source, "SELECT problem FROM pgtrickle.test_status('copy') WHERE status = 'error'")
    assert problem.startswith("division by zero (22012)")
    assert client.verify("copy").ok
    source.execute("DELETE FROM source WHERE v = 0")
    client.refresh("copy")
    _wait(lambda: found(client) == {"empty": ("ok", 0), "not null tag": ("ok", 0)})


def test_a_slow_test_is_ended(source: Db, client: runnel.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SECONDS", 0.3)
    client.create_stream_table("copy", "SELECT k, tag, v FROM source", schedule="1h")
    slow = "SELECT 1 WHERE (SELECT pg_sleep(CASE WHEN count(*) > 2 THEN 30 ELSE 0 END) IS NULL FROM copy)"
    client.set_tests("copy", [{"empty": slow}])
    source.execute("INSERT INTO source (k, tag, v) VALUES (3, 'a', 1)")
    began = time.monotonic()
    client.refresh("copy")
    assert time.monotonic() - began < 15
    assert client.tests()[0].problem == "it takes longer than 0 seconds"
    assert value(source, "SELECT count(*) FROM copy") == 3


@pytest.mark.slow
def test_what_other_tables_change_is_found_by_repeating(
    source: Db, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "REPEAT_GOOD", 0.1)
    monkeypatch.setattr(run, "REPEAT_BAD", 0.1)
    client.create_stream_table("copy", "SELECT k, tag, v FROM source", schedule="1h")
    client.set_tests("copy", [{"relationships": {"column": "k", "to": "keys", "field": "k"}}])
    source.execute("DELETE FROM keys WHERE k = 2")
    _wait(lambda: set(found(client).values()) == {("violated", 1)})
    source.execute("INSERT INTO keys VALUES (2)")
    _wait(lambda: set(found(client).values()) == {("ok", 0)})


@pytest.mark.slow
def test_a_suspended_table_is_tested_when_it_goes_on(source: Db, client: runnel.Client) -> None:
    client.create_stream_table("copy", "SELECT k, tag, v FROM source", schedule="1h", refresh_mode="FULL")
    client.alter_stream_table("copy", status="SUSPENDED")
    client.set_tests("copy", [{"not_null": ["k"]}, {"empty": "SELECT 1 FROM copy WHERE k = 2"}])
    assert found(client) == {"not null k": ("pending", 0), "empty": ("pending", 0)}
    client.resume("copy")
    _wait(lambda: found(client) == {"not null k": ("ok", 0), "empty": ("violated", 1)})
    source.execute("UPDATE source SET k = NULL")
    client.refresh("copy")
    assert found(client) == {"not null k": ("violated", 2), "empty": ("ok", 0)}


def test_mistakes_are_refused_before_anything_changes(source: Db, client: runnel.Client) -> None:
    client.create_stream_table("copy", "SELECT k, tag, v FROM source", schedule="1h")
    client.set_tests("copy", [{"not_null": ["tag"]}])
    for wrong, said in (
        ([{"unique": ["nowhere"]}], "has no column nowhere"),
        ([{"uniqe": ["k"]}], "there is no test uniqe"),
        ([{"empty": "SELECT 1 FROM nowhere"}], 'relation "nowhere" does not exist'),
        ([{"empty": "SELECT 1; DROP TABLE source"}], "syntax error"),
        ([{"empty": "SELECT 1) AS v; DROP TABLE source; SELECT (1"}], "error|cannot"),
        ([{"not_null": "k"}], "must be a list"),
        (["not_null"], "must be an object"),
    ):
        with pytest.raises(RunnelError, match=said):
            client.set_tests("copy", wrong)  # type: ignore[arg-type]
    with pytest.raises(RunnelError, match="invalid on_violation"):
        client.set_tests("copy", [{"not_null": ["k"]}], on_violation="explode")
    assert found(client) == {"not null tag": ("ok", 0)}
    assert value(source, "SELECT count(*) FROM source") == 2


@pytest.fixture
def ann(db: Db, dsn: str) -> Any:
    """A role with a schema of its own."""
    if not value(db, "SELECT count(*) FROM pg_roles WHERE rolname = 'checks_ann'"):
        db.execute("CREATE ROLE checks_ann LOGIN")
    db.execute("GRANT pgtrickle_user TO checks_ann")
    db.execute("CREATE SCHEMA ann AUTHORIZATION checks_ann")
    db.execute("CREATE TABLE secret (v int); REVOKE ALL ON secret FROM PUBLIC")
    with psycopg.connect(make_conninfo(dsn, user="checks_ann"), autocommit=True) as conn:
        conn.execute("SET search_path = ann, public")
        yield conn
    db.execute("DROP SCHEMA ann CASCADE")


@pytest.mark.usefixtures("client")
def test_a_test_runs_with_its_owners_rights_and_writes_nothing(ann: Db, db: Db) -> None:
    ann.execute("CREATE TABLE mine (v int); INSERT INTO mine VALUES (1); CREATE TABLE traces (who text)")
    ann.execute("SELECT pgtrickle.create_stream_table('sums', 'SELECT sum(v) AS s FROM mine', '1h')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ann.execute("""SELECT pgtrickle.set_tests('sums', '[{"empty": "SELECT 1 FROM secret"}]')""")
    ann.execute(
        "CREATE FUNCTION sly(v bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
        "IF v > 1 THEN INSERT INTO ann.traces VALUES (current_user); END IF; RETURN false; END $$"
    )
    ann.execute(
        "CREATE FUNCTION bold(v bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
        "IF v > 1 THEN PERFORM set_config('role', 'none', false); END IF; RETURN false; END $$"
    )
    ann.execute(
        "CREATE FUNCTION open(v bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
        "IF v > 1 THEN PERFORM set_config('transaction_read_only', 'off', true); END IF; RETURN false; END $$"
    )
    tests = ", ".join(f'{{"empty": "SELECT 1 FROM ann.sums WHERE ann.{name}(s)"}}' for name in ("sly", "bold", "open"))
    ann.execute("SELECT pgtrickle.set_tests('sums', %s)", (f"[{tests}]",))
    assert value(db, "SELECT tests FROM pgtrickle.pgt_status()") == "ok"
    ann.execute("INSERT INTO mine VALUES (10)")
    ann.execute("SELECT pgtrickle.refresh_stream_table('sums')")
    assert value(ann, "SELECT s FROM sums") == 11
    assert value(db, "SELECT count(*) FROM ann.traces") == 0
    problems = [row[0] for row in db.execute("SELECT problem FROM pgtrickle.test_status('ann.sums')")]
    assert "read-only" in problems[0] or "read only" in problems[0]
    assert "insufficient privilege" in problems[1] or "role" in problems[1]
    assert problems[2] is not None
    with psycopg.connect(make_conninfo(str(ann.info.dsn), user="checks_ann"), autocommit=True) as own:
        assert own.execute("SELECT count(*) FROM pgtrickle.pgt_tests").fetchone() == (3,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            own.execute("UPDATE pgtrickle.pgt_tests SET status = 'ok'")


@pytest.mark.usefixtures("client")
def test_only_owners_set_tests(ann: Db, source: Db) -> None:
    source.execute("SELECT pgtrickle.create_stream_table('copy', 'SELECT k, tag, v FROM source', '1h')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner"):
        ann.execute("""SELECT pgtrickle.set_tests('public.copy', '[{"not_null": ["k"]}]')""")


def _wait(until: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.2)
