"""Generated scenarios without an engine: as data, as tables in PostgreSQL, and their queries' results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.oracle.replay import HARMLESS, comparable_items
from tests.oracle.scenario import LATE, Scenario
from tests.oracle.strategies import scenarios

TOO_MUCH = (
    psycopg.errors.NumericValueOutOfRange,
    psycopg.errors.DatetimeFieldOverflow,
    psycopg.errors.QueryCanceled,
)
"""What PostgreSQL may say about a valid query over unfortunate data."""


def sample(number: int, count: int, most_steps: int = 2) -> list[Scenario]:
    """The same scenarios for the same number."""
    found: list[Scenario] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(scenario=scenarios(most_steps=most_steps))
    def collect(scenario: Scenario) -> None:
        found.append(scenario)

    collect()
    return found


@dataclass(frozen=True)
class Laid:
    """A scenario's tables in a schema, where its stream tables are ordinary ones."""

    conn: psycopg.Connection
    schema: str

    def results(self, query: str) -> list[str]:
        """The rows of a query, as sorted text."""
        items = comparable_items(self.conn, query)
        names = ", ".join(f"x{i}" for i in range(len(items)))
        rows = self.conn.execute(f"SELECT ({', '.join(items)})::text FROM ({query}) AS q({names})".encode())
        return sorted(str(r[0]) for r in rows)


@contextlib.contextmanager
def laid(conn: psycopg.Connection, scenario: Scenario, schema: str) -> Iterator[Laid]:
    """The scenario after its history, in a schema of its own."""
    conn.execute(f"CREATE SCHEMA {schema}".encode())
    try:
        conn.execute("SELECT set_config('search_path', %s, false)", (schema,))
        conn.execute("SELECT set_config('TimeZone', %s, false)", (scenario.time_zone,))
        conn.execute("SET statement_timeout = '20s'")
        for ddl in scenario.tables:
            conn.execute(ddl.encode())
        for statement in (s for step in scenario.steps for s in step if not s.startswith(LATE)):
            with contextlib.suppress(*HARMLESS):
                conn.execute(statement.encode())
        if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            conn.execute("ROLLBACK")
        yield Laid(conn, schema)
    finally:
        conn.execute("SET client_min_messages = error")
        conn.execute(f"DROP SCHEMA {schema} CASCADE".encode())


def shuffle(laid_out: Laid) -> None:
    """Rewrite every table in another physical order, and let the planner take other ways."""
    conn = laid_out.conn
    tables = conn.execute(
        "SELECT c.oid::regclass::text, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) "
        "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
        "AND a.attgenerated = '' WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p') "
        "AND NOT c.relispartition GROUP BY c.oid",
        (laid_out.schema,),
    ).fetchall()
    for table, columns in tables:
        conn.execute(f"CREATE TEMP TABLE moved AS SELECT {columns} FROM {table}".encode())
        conn.execute(f"DELETE FROM {table}".encode())
        conn.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM moved ORDER BY md5(moved::text)".encode())
        conn.execute("DROP TABLE moved")
    for setting in ("enable_hashjoin", "enable_hashagg", "enable_indexscan"):
        conn.execute(f"SET {setting} = off".encode())


def unshuffle(conn: psycopg.Connection) -> None:
    """The planner's usual ways."""
    for setting in ("enable_hashjoin", "enable_hashagg", "enable_indexscan"):
        conn.execute(f"RESET {setting}".encode())
