"""Sessions of the engine: opened with every setting that it relies on.

Servers, databases and roles bring settings of their own: timeouts, read-only transactions, other spellings of strings
and dates. What the engine needs is given when a session begins, as its defaults, so it wins over ALTER DATABASE and
ALTER ROLE, and RESET ALL returns to it. Settings that are part of the meaning of queries for everybody in the database
(its locale, its text search configuration) stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runnel.errors import UserError
from runnel.model.versions import NEWER_SETTINGS

PINNED = {
    # Nothing of the engine is ended by a clock.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # Transactions write, and an error ends the statement, not the session.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "exit_on_error": "off",
    "row_security": "on",
    # Names and statements mean the same everywhere.
    "search_path": "pg_catalog, pg_temp",
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "restrict_nonsystem_relation_kind": "",
    "xmloption": "content",
    "gin_fuzzy_search_limit": "0",
    # What is printed can be read back.
    "quote_all_identifiers": "off",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    # What is made is made in the usual place, and functions are checked as they are everywhere.
    "default_table_access_method": "heap",
    "default_tablespace": "",
    "temp_tablespaces": "",
    "check_function_bodies": "on",
    "plpgsql.extra_errors": "none",
    "plpgsql.extra_warnings": "none",
    # Thousands of small, ever different statements: compiling them never pays off.
    "jit": "off",
}
TRIGGERS_FIRE = {"session_replication_role": "origin"}

_unknown: dict[tuple[str, ...], frozenset[str]] = {}
"""Settings that a server does not know, by where it is: asked for again, every session would cost two attempts."""


def pinned(dsn: str, settings: Mapping[str, str] | None = None) -> str:
    """A connection string whose sessions have the engine's settings, and these.

    >>> pinned("dbname=x options='-c geqo=off'")[:70]
    "dbname=x options='-c geqo=off -c statement_timeout=0 -c lock_timeout=0"
    """
    given = str(conninfo_to_dict(dsn).get("options") or os.environ.get("PGOPTIONS", ""))
    left_out = _unknown.get(_place(dsn), frozenset())
    wanted = {key: value for key, value in {**PINNED, **(settings or {})}.items() if key not in left_out}
    options = [f"-c {key}={_escaped(value)}" for key, value in wanted.items()]
    missing = [option for option in options if option not in given]
    if not missing:
        return dsn
    return make_conninfo(dsn, options=" ".join(filter(None, [given, *missing])), client_encoding="UTF8")


def connect(
    dsn: str, name: str, settings: Mapping[str, str] | None = None, *, timeout: int | None = None
) -> psycopg.Connection[Any]:
    """Open a session of the engine, in autocommit."""
    wanted = make_conninfo(dsn, application_name=name, connect_timeout=timeout)
    conn = _open(wanted, settings)
    if _fires_triggers(conn):
        return conn
    conn.close()
    # Only some roles may give this one at the start, so it is left out where it is not needed.
    try:
        return _open(wanted, {**(settings or {}), **TRIGGERS_FIRE})
    except psycopg.OperationalError as error:
        raise UserError(
            "session_replication_role of the engine's sessions is not 'origin', so foreign keys would not hold",
            hint="ALTER ROLE ... RESET session_replication_role for the engine's role, or for the database.",
            sqlstate="55000",
        ) from error


def _open(dsn: str, settings: Mapping[str, str] | None) -> psycopg.Connection[Any]:
    """A session with these settings, less those that are unknown to an older server: it names the first it meets."""
    for _ in NEWER_SETTINGS:
        try:
            return psycopg.connect(pinned(dsn, settings), autocommit=True)
        except psycopg.OperationalError as error:
            known = _unknown.get(_place(dsn), frozenset())
            named = {name for name in NEWER_SETTINGS if f'"{name}"' in str(error)} - known
            if not named:
                raise
            _unknown[_place(dsn)] = known | named
    return psycopg.connect(pinned(dsn, settings), autocommit=True)


def _place(dsn: str) -> tuple[str, ...]:
    """Which server a connection string means, in its own words."""
    given = conninfo_to_dict(dsn)
    return tuple(str(given.get(part) or "") for part in ("service", "host", "hostaddr", "port"))


def _fires_triggers(conn: psycopg.Connection[Any]) -> bool:
    row = conn.execute("SELECT current_setting('session_replication_role') = 'origin'").fetchone()
    return bool(row and row[0])


def _escaped(value: str) -> str:
    """A value as an option holds it: blanks and backslashes would end it."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
