"""A server, a database or a role that sets everything otherwise; and callers who do so in their own sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.catalog.migrate import migrate
from runnel.catalog.sessions import PINNED, connect, pinned
from runnel.server.embedded import EmbeddedServer
from tests.conftest import running_engine
from tests.e2e.helpers import rows, value
from tests.versions import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDING = {
    # They would end any session that works; whoever calls has better ones.
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    **({"transaction_timeout": "1ms"} if VERSION >= 17 else {}),
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "20ms",
    "exit_on_error": "on",
}
ODD = {
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "row_security": "off",
    "search_path": "nowhere",
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",
    "backslash_quote": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-5",
    "bytea_output": "escape",
    "xmlbinary": "hex",
    "xmloption": "document",
    "check_function_bodies": "off",
    "client_min_messages": "debug1",
    "session_replication_role": "replica",
    "enable_hashjoin": "off",
    "jit": "on",
    "jit_above_cost": "0",
    "plpgsql.extra_errors": "all",
    "restrict_nonsystem_relation_kind": "view, foreign-table",
    "log_statement": "all",
}
SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE shops (id int PRIMARY KEY, name text, mood mood, since date);
CREATE TABLE sales (id int PRIMARY KEY, shop int, at timestamptz, price numeric(10,2), weight float8, note bytea);
INSERT INTO shops VALUES (1, E'back\\\\slash', 'ok', '2024-02-01'), (2, 'it''s', 'sad', '2024-01-02');
INSERT INTO sales SELECT i, 1 + i % 2, timestamptz '2026-01-01 00:00+00' + i * interval '7 hours', i, i / 3.0,
    decode(lpad(to_hex(i), 4, '0'), 'hex') FROM generate_series(1, 40) i;
"""
JOINED = """
SELECT s.name, s.mood, date_trunc('day', x.at) AS day, sum(x.price) AS total, max(x.weight) AS heaviest, count(*) AS n,
       NOTE AS note
FROM sales x JOIN shops s ON s.id = x.shop WHERE s.since > date '2024-01-01' AND s.name <> 'a\\b' GROUP BY 1, 2, 3
""".replace("NOTE", "max(x.note)" if VERSION >= 18 else "string_agg(x.note, ''::bytea ORDER BY x.id)")
# A client of one's own choice; psycopg reads dates and intervals in no other style.
SANE = {**dict.fromkeys(ENDING, "0"), "exit_on_error": "off", "search_path": "public"} | {
    "DateStyle": "ISO, DMY",
    "IntervalStyle": "postgres",
}


def options(settings: dict[str, str]) -> str:
    return " ".join(f"-c {key}={value.replace(' ', chr(92) + ' ')}" for key, value in settings.items())


@pytest.fixture
def hostile(server: EmbeddedServer, dsn: str) -> Iterator[str]:
    """A database whose every session is odd, and soon at its end."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(SETUP.encode())
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        for number, (key, setting) in enumerate({**ENDING, **ODD}.items()):
            whom = f"DATABASE {name}" if number % 2 else f"ROLE CURRENT_USER IN DATABASE {name}"
            admin.execute(f"ALTER {whom} SET {key} = {_literal(setting, key)}".encode())
    yield dsn


def _literal(setting: str, key: str) -> str:
    return setting if key == "search_path" else f"'{setting}'"


@pytest.fixture
def caller(hostile: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody who only keeps the session alive, and writes when told to."""
    with psycopg.connect(make_conninfo(hostile, options=options(SANE)), autocommit=True) as conn:
        yield conn


def test_the_configuration_is_hostile(hostile: str) -> None:
    with psycopg.connect(hostile, autocommit=True) as conn:
        with pytest.raises(psycopg.Error):
            conn.execute("SELECT pg_sleep(1)")
        with pytest.raises(psycopg.Error):
            conn.execute("SELECT 1")


def test_the_core_works(hostile: str, caller: psycopg.Connection[Any], spark: SparkSession, tmp_path: Path) -> None:
    """Migrations, capture, deltas, rebuilds, verification, a lake and its maintenance."""
    migrate(hostile)
    with (
        running_engine(hostile, spark, home=tmp_path),
        contextlib.closing(runnel.connect(make_conninfo(hostile, options=options(SANE)))) as client,
    ):
        client.create_stream_table("sums", JOINED, "@yearly", "DIFFERENTIAL")
        client.create_stream_table("plain", "SELECT id, price, note FROM sales WHERE id > 3", "@yearly", "FULL")
        client.create_stream_table(
            "lakes", "SELECT shop, sum(price) AS s FROM sales GROUP BY shop", "@yearly", sink="ducklake"
        )
        client.create_stream_table("above", "SELECT name, total FROM sums WHERE n > 0", "@yearly", "DIFFERENTIAL")
        names = ("sums", "plain", "lakes", "above")
        writes = (
            "UPDATE sales SET price = price + 1, note = '\\\\x00ff' WHERE id % 4 = 0",
            "DELETE FROM sales WHERE id % 7 = 0",
            "UPDATE shops SET name = name || 'x', mood = 'ok'",
            "TRUNCATE sales",
            "INSERT INTO sales SELECT i, 1 + i % 2, now(), i, i, NULL FROM generate_series(1, 9) i",
        )
        for write in writes:
            with caller.transaction():
                caller.execute("SET TRANSACTION READ WRITE")
                caller.execute(write.encode())
            for name in names:
                result = client.verify(name)
                assert result.ok, f"{name} after {write}: {result}"
        client.alter_stream_table("sums", query=JOINED.replace("count(*) AS n", "count(x.id) AS n"))
        assert client.verify("sums").ok
        _alter_sources(caller)
        for name in names:
            assert client.verify(name).ok, name
        assert {s.status for s in client.status()} == {"ACTIVE"}
        assert {s.name for s in client.status() if s.effective_mode == "FULL"} == {"plain"}
        client.maintain_lake()
        assert client.lake_tables()
        for name in reversed(names):
            client.drop_stream_table(name)
        assert value(caller, "SELECT count(*) FROM pgtrickle.pgt_dependencies") == 0


def _alter_sources(caller: psycopg.Connection[Any]) -> None:
    """DDL is followed in the session that does it, whatever it prints."""
    for statement in (
        "ALTER TABLE sales ADD COLUMN extra int",
        "ALTER TABLE shops ALTER COLUMN since SET DEFAULT '2024-01-01'",
        "CREATE TABLE dropped (x int)",
        "DROP TABLE dropped",
    ):
        with caller.transaction():
            caller.execute("SET TRANSACTION READ WRITE")
            caller.execute(statement.encode())


def test_a_hostile_caller(dsn: str, spark: SparkSession) -> None:
    """The database is as usual; one session is not."""
    with psycopg.connect(dsn, autocommit=True) as db, running_engine(dsn, spark):
        db.execute(SETUP.encode())
        with psycopg.connect(dsn, autocommit=True) as caller:
            for key, setting in {**ODD, "lock_timeout": "1ms", "idle_in_transaction_session_timeout": "1s"}.items():
                caller.execute("SELECT set_config(%s, %s, false)", (key, setting))
            path = "SET search_path = public"
            caller.execute(path.encode())
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="cannot be called") as refused:
                caller.execute("SELECT pgtrickle.create_stream_table('sums', %s, '@yearly')", (JOINED,))
            assert "transaction_read_only = off" in str(refused.value.diag.message_hint)
            caller.execute("SET default_transaction_read_only = off")
            caller.execute("SELECT pgtrickle.create_stream_table('sums', %s, '@yearly')", (JOINED,))
            caller.execute("SELECT pgtrickle.create_stream_table('plain', 'SELECT id, note FROM sales', '@yearly')")
            caller.execute("UPDATE sales SET price = 0, note = 'x' WHERE id % 2 = 0")
            caller.execute("ALTER TABLE shops ADD COLUMN more mood")
            for name in ("sums", "plain"):
                caller.execute("SELECT pgtrickle.refresh_stream_table(%s)", (name,))
            assert rows(caller, "SELECT DISTINCT status FROM pgtrickle.pgt_status()") == [("ACTIVE",)]
            assert value(caller, "SELECT count(*) FROM pgtrickle.health_check() WHERE severity = 'ERROR'") == 0
            caller.execute("SELECT pgtrickle.drop_stream_table('plain')")
        with contextlib.closing(runnel.connect(dsn)) as client:
            assert client.verify("sums").ok
        assert value(db, "SELECT count(*) FROM pgtrickle.pgt_dependencies") == 2


def test_a_dropped_table_takes_its_rows_along_without_foreign_keys(dsn: str, spark: SparkSession) -> None:
    """session_replication_role = replica switches off what ON DELETE CASCADE stands on."""
    with psycopg.connect(dsn, autocommit=True) as db, running_engine(dsn, spark):
        db.execute(SETUP.encode())
        db.execute("SELECT pgtrickle.create_stream_table('plain', 'SELECT id, note FROM sales', '@yearly')")
        db.execute("SET session_replication_role = replica")
        db.execute("DROP TABLE plain")
        assert value(db, "SELECT count(*) FROM pgtrickle.pgt_dependencies") == 0


def test_reset_all_returns_to_what_the_engine_needs(hostile: str) -> None:
    with connect(hostile, "a test", {"work_mem": "77MB"}) as conn:
        expected = {**PINNED, "work_mem": "77MB", "session_replication_role": "origin"}
        if VERSION < 17:
            del expected["transaction_timeout"]
        conn.execute("SET search_path = public")
        conn.execute("SET statement_timeout = 1000")
        conn.execute("RESET ALL")
        found = {key: value(conn, f"SELECT current_setting('{key}')") for key in expected}
        assert found == expected
        assert value(conn, "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()") == "a test"


def test_options_of_the_connection_string_stay() -> None:
    once = pinned("dbname=x options='-c geqo=off'")
    assert "geqo=off" in once
    assert pinned(once) == once
