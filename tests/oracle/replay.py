"""Play a scenario against PostgreSQL and Runnel, and compare after each step."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

import runnel
from runnel.errors import RunnelError
from tests.oracle.coverage import operators
from tests.oracle.scenario import LATE, Mismatch, Scenario, mentions, truncated_table

# What a random history may run into; the statement, or its transaction, then simply did not happen.
HARMLESS = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.InFailedSqlTransaction,
    psycopg.errors.NumericValueOutOfRange,
    psycopg.errors.CardinalityViolation,
    psycopg.errors.NotNullViolation,
    psycopg.errors.InvalidSavepointSpecification,
)
MOST_ROWS = 4000
"""A result larger than this proves nothing more and costs seconds."""
FLOATS = (700, 701)
JSON = 114
TWIN = "_full"
"""What the name of a twin in FULL mode ends with."""
REFUSALS = ("the outer join condition", "FULL JOIN on a condition that compares more than columns")
"""What Runnel may still say no to; it then says so at creation, by name."""


class Unsuitable(Exception):
    """PostgreSQL itself cannot answer the query (overflow) or it is too large; says nothing about Runnel."""


def comparable_items(conn: psycopg.Connection, query: str) -> list[str]:
    """The columns x0, x1, .. of a query such that equal ones are equal: floats rounded, json as text."""
    described = conn.execute(f"SELECT * FROM ({query}) AS q LIMIT 0".encode()).description or []
    texts = {**dict.fromkeys(FLOATS, "round(x{}::numeric, 6)"), JSON: "x{}::text"}
    return [texts.get(c.type_code, "x{}").format(i) for i, c in enumerate(described)]


@dataclass
class Figures:
    """What has been done so far."""

    cases: int = 0
    unsuitable: int = 0
    refused: int = 0
    streams: int = 0
    statements: int = 0
    verified: int = 0
    full: int = 0
    twins: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    """Of stream tables that were created; their refreshes are as many times more."""

    def __str__(self) -> str:
        return (
            f"{self.cases} cases ({self.unsuitable} unsuitable, {self.refused} refused), {self.streams} stream tables, "
            f"{self.statements} statements, {self.verified} refreshes verified, "
            f"{self.full} of them FULL after TRUNCATE, {self.twins} compared with a twin in FULL mode"
        )


@dataclass
class Oracle:
    """Replays scenarios in one database, each in a schema of its own."""

    dsn: str
    client: runnel.Client
    figures: Figures = field(default_factory=Figures)
    lenient: bool = False
    """Whether a query that is refused at creation is passed over instead of a failure."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def replay(self, scenario: Scenario) -> None:
        """Raise Mismatch when a stream table ever differs from its query, or was not maintained by deltas."""
        schema = f"oracle_{next(self._numbers)}"
        with psycopg.connect(self.dsn, autocommit=True) as conn, psycopg.connect(self.dsn, autocommit=True) as late:
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            try:
                for each in (conn, late):
                    _configure(each, schema, scenario.time_zone)
                _Run(self, scenario, schema, conn, late).play()
                self.figures.cases += 1
            except Unsuitable:
                self.figures.unsuitable += 1
            finally:
                late.close()
                self._clean_up(scenario, schema, conn)

    def _clean_up(self, scenario: Scenario, schema: str, conn: psycopg.Connection) -> None:
        conn.rollback()
        for name in reversed(list(scenario.streams)):
            for each in (name + TWIN, name) if scenario.twins else (name,):
                with contextlib.suppress(RunnelError):
                    self.client.drop_stream_table(f"{schema}.{each}", cascade=True)
        conn.execute("SET client_min_messages = error")
        conn.execute("SET lock_timeout = '20s'")
        conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


def _configure(conn: psycopg.Connection, schema: str, time_zone: str) -> None:
    conn.execute("SELECT set_config('search_path', %s, false)", (schema,))
    conn.execute("SELECT set_config('TimeZone', %s, false)", (time_zone,))
    # A history on two connections may meet its own locks: better lose the statement than wait for ever.
    conn.execute("SET lock_timeout = '100ms'")
    conn.execute("SET statement_timeout = '20s'")


@dataclass
class _Run:
    oracle: Oracle
    scenario: Scenario
    schema: str
    conn: psycopg.Connection
    late: psycopg.Connection
    truncated: set[str] = field(default_factory=set)
    """Tables truncated by a commit since the last verification."""
    seen: dict[str, int] = field(default_factory=dict)
    """Per stream table, the last refresh that has been looked at."""
    names: list[str] = field(default_factory=list)
    """The stream tables that were created."""
    uncommitted: dict[bool, set[str]] = field(default_factory=lambda: {False: set(), True: set()})

    def play(self) -> None:
        for ddl in self.scenario.tables:
            self.conn.execute(ddl.encode())
        for name, query in self.scenario.streams.items():
            if any(mentions(query, other) for other in self.scenario.streams if other not in [*self.names, name]):
                continue
            self._answer(query)
            if self._create(name, query):
                self.names.append(name)
        if not self.names:
            return
        for number, step in enumerate(self.scenario.steps):
            for statement in step:
                self._execute(statement)
            self._verify_all(number)
        self._execute(LATE + "COMMIT")
        self._verify_all(len(self.scenario.steps))

    # -- PostgreSQL ----------------------------------------------------------------------------------------

    def _answer(self, query: str) -> None:
        """PostgreSQL must be able to evaluate the query, else the scenario is no test of Runnel."""
        try:
            row = self.conn.execute(f"SELECT count(*) FROM ({query}) AS q".encode()).fetchone()
        except (psycopg.errors.NumericValueOutOfRange, psycopg.errors.DatetimeFieldOverflow) as error:
            raise Unsuitable from error
        except psycopg.errors.QueryCanceled as error:
            raise Unsuitable from error
        if row is None or row[0] > MOST_ROWS:
            raise Unsuitable

    def _execute(self, statement: str) -> None:
        is_late = statement.startswith(LATE)
        conn = self.late if is_late else self.conn
        text = statement.removeprefix(LATE)
        failed = conn.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
        self.oracle.figures.statements += 1
        try:
            conn.execute(text.encode())
        except HARMLESS:
            return
        waiting = self.uncommitted[is_late]
        table = truncated_table(text)
        if table is not None:
            waiting.add(table)
        if text == "ROLLBACK" or (failed and text == "COMMIT"):
            waiting.clear()
        if conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            self.truncated |= waiting
            waiting.clear()

    # -- Runnel --------------------------------------------------------------------------------------------

    def _create(self, name: str, query: str) -> bool:
        client, figures = self.oracle.client, self.oracle.figures
        client.query(sql.SQL("SET search_path = {}").format(sql.Identifier(self.schema)))
        client.query(sql.SQL("SET TimeZone = {}").format(sql.Literal(self.scenario.time_zone)))
        try:
            client.create_stream_table(name, query, schedule="1d", refresh_mode="DIFFERENTIAL")
            if self.scenario.twins:
                client.create_stream_table(name + TWIN, query, schedule="1d", refresh_mode="FULL")
        except RunnelError as error:
            if self.oracle.lenient or any(r in error.message for r in REFUSALS):
                figures.refused += 1
                figures.refusals[error.message.partition(": ")[2][:100]] += 1
                return False
            detail = f"{error.message} ({error.hint or ''} {error.detail or ''})"
            raise Mismatch(self.scenario, name, -1, f"refused: {detail}") from error
        figures.streams += 1
        figures.operators.update(operators(query))
        return True

    def _verify_all(self, step: int) -> None:
        names = self.names
        # Downstream first refreshes a whole chain in one transaction; upstream first, one table at a time.
        for name in names if step % 2 else reversed(names):
            self._verify(name, step)
        for name in names:
            self._check_history(name, step)
        self.truncated.clear()

    def _verify(self, name: str, step: int) -> None:
        for each in (name, name + TWIN) if self.scenario.twins else (name,):
            try:
                result = self.oracle.client.verify(f"{self.schema}.{each}")
            except RunnelError as error:
                self._answer(self.scenario.streams[name])
                raise Mismatch(self.scenario, each, step, f"failed: {error.message} ({error.detail or ''})") from error
            if not result.ok:
                problem = f"missing {list(result.missing)}, unexpected {list(result.unexpected)}"
                raise Mismatch(self.scenario, each, step, problem)
        self._compare(name, step)
        self.oracle.figures.verified += 1
        self.oracle.figures.twins += self.scenario.twins

    def _compare(self, name: str, step: int) -> None:
        """The same comparison from outside, so that the engine is not its own only judge."""
        query = self._reference(name)
        self._same(name, step, query, f"SELECT * FROM {name}", "its query")
        if self.scenario.twins:
            self._same(name, step, f"SELECT * FROM {name}{TWIN}", f"SELECT * FROM {name}", "its twin in FULL mode")

    def _same(self, name: str, step: int, theirs: str, mine: str, whose: str) -> None:
        items = comparable_items(self.conn, theirs)
        columns = ", ".join(f"x{i}" for i in range(len(items)))
        mine = f"SELECT {', '.join(items)} FROM ({mine}) AS s({columns})"
        theirs = f"SELECT {', '.join(items)} FROM ({theirs}) AS q({columns})"
        row = self.conn.execute(
            f"SELECT (SELECT count(*) FROM ({mine} EXCEPT ALL {theirs}) AS a), "
            f"(SELECT count(*) FROM ({theirs} EXCEPT ALL {mine}) AS b)".encode()
        ).fetchone()
        if row != (0, 0):
            raise Mismatch(self.scenario, name, step, f"verified, yet {row} rows differ from {whose}")

    def _reference(self, name: str) -> str:
        """What the stream table must equal: its query, or with ties in it, the query as Runnel completed it."""
        if name not in self.scenario.tied:
            return self.scenario.streams[name]
        row = self.conn.execute(
            "SELECT defining_query FROM pgtrickle.pgt_stream_tables WHERE pgt_schema = %s AND pgt_name = %s",
            (self.schema, name),
        ).fetchone()
        assert row is not None
        return str(row[0]).rstrip("; ")

    def _check_history(self, name: str, step: int) -> None:
        """A stream table in DIFFERENTIAL mode recomputes only when one of its own tables was truncated."""
        rows = self.conn.execute(
            "SELECT h.action, h.status, h.reason, h.refresh_id "
            "FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables s USING (pgt_id) "
            "WHERE s.pgt_schema = %s AND s.pgt_name = %s AND h.refresh_id > %s ORDER BY h.refresh_id",
            (self.schema, name, self.seen.get(name, 0)),
        ).fetchall()
        allowed = {"DIFFERENTIAL"} | ({"INITIAL"} if step == 0 else set())
        if any(mentions(self._text(name), t) for t in self.truncated):
            allowed.add("FULL")
        wrong = [r for r in rows if r[0] not in allowed or r[1] != "COMPLETED"]
        if wrong or not any(r[0] in ("DIFFERENTIAL", "FULL") for r in rows):
            raise Mismatch(self.scenario, name, step, f"refreshes were {rows}")
        self.oracle.figures.full += sum(r[0] == "FULL" for r in rows)
        self.seen[name] = max((r[3] for r in rows), default=0)

    def _text(self, name: str) -> str:
        """A stream table's query with the views it may read."""
        views = [ddl for ddl in self.scenario.tables if ddl.startswith("CREATE VIEW")]
        return " ".join([self.scenario.streams[name], *views])
