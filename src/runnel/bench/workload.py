"""What a workload is: tables, queries over them, and rounds of changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

Connection = psycopg.Connection[Any]

HELPERS = """
CREATE FUNCTION {schema}.dice(key bigint, seed bigint, sides bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN (hashint8extended(key, seed) & 9223372036854775807) % sides;
"""
"""Chance that is the same in every run, whatever the order in which PostgreSQL visits rows."""


@dataclass(frozen=True, slots=True)
class Round:
    """One batch of changes, committed at once; every stream table is refreshed and verified after it."""

    name: str
    about: str
    apply: Callable[[Connection, int], None]
    """Called inside a transaction with a seed; the same seed makes the same choices."""
    counted: bool = True
    """Whether it belongs into the geometric mean."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything the measurement needs to know."""

    title: str
    schema: str
    data: str
    """What the tables hold: tells tables of an earlier run that can be used again from those that cannot."""
    about: str
    load: Callable[[Connection, Callable[[str], None]], None]
    """Fills an empty, existing schema that is first in the search path."""
    queries: Mapping[str, str]
    rounds: Sequence[Round]
    warm_up: Sequence[Round]
    """Verified like the others, but their times are forgotten: the JVM compiles while they run, and Spark plans once
    for each set of tables that change together."""


def in_schema(dsn: str, schema: str) -> str:
    """A DSN whose sessions find the workload's tables by their bare names."""
    return make_conninfo(dsn, options=f"-c search_path={schema},public")


def open_workload(conn: Connection, workload: Workload, say: Callable[[str], None]) -> None:
    """Create and fill the workload's tables, unless an earlier run has done so."""
    done = conn.execute(
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", (workload.schema,)
    ).fetchone()
    if done is not None and done[0] == workload.data:
        say(f"{workload.title}: the tables are there already")
        return
    schema = workload.schema
    with conn.transaction():
        conn.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())
        conn.execute(f"CREATE SCHEMA {schema}".encode())
        conn.execute(HELPERS.format(schema=schema).encode())
        workload.load(conn, say)
        data = workload.data.replace("'", "''")
        conn.execute(f"COMMENT ON SCHEMA {schema} IS '{data}'".encode())
    tables = conn.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace", (schema,)
    )
    for (table,) in tables.fetchall():
        conn.execute(f"VACUUM ANALYZE {schema}.{table}".encode())
