"""Run a workload: create its stream tables, change, refresh, compare, and write down what it took.

A query that fails is reported and left out from there on; the others go on. Results are saved after every step, and a
run over the same home and report goes on where an earlier one stopped.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.bench.results import QueryResult, Results, Sample
from runnel.bench.workload import Connection, Round, Workload
from runnel.client import Client
from runnel.errors import RunnelError

NEVER = "@yearly"
"""A schedule that leaves refreshing to us."""

_LAST = """
SELECT h.action, h.status, h.changes_read, h.spark_jobs, h.rows_inserted, h.rows_deleted, h.timings, h.reason,
       h.rows_read
FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables t USING (pgt_id)
WHERE t.pgt_schema = %s AND t.pgt_name = %s ORDER BY h.refresh_id DESC LIMIT 1
"""

_STATE_BYTES = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8
FROM pg_class c JOIN pgtrickle.pgt_stream_tables t ON c.relname ~ ('^[a-z]+_' || t.pgt_id || '(_|$)')
WHERE c.relnamespace = 'pgtrickle_state'::regnamespace AND c.relkind = 'r' AND t.pgt_schema = %s AND t.pgt_name = %s
"""

_ENGINE = "SELECT WHERE pgtrickle._engine_alive()"

_SLOW_MS = 5_000.0
_SECONDS_FOR_ENGINE = 120.0
_SECONDS_FOR_POSTGRES = 1_800


class Wrong(Exception):
    """A result that is not what it should be."""


@dataclass
class Measurement:
    """One run over one database."""

    workload: Workload
    client: Client
    """Its sessions have the workload's schema in their search path."""
    conn: Connection
    """A plain connection in autocommit, with the same search path."""
    results: Results
    changed: Callable[[Results], None] = lambda _: None
    """Called after every step, with what is known so far."""
    step: Callable[[str, str], None] = lambda *_: None
    """Called before every step with the query and what is about to happen."""
    watch: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """Around every step: may end it."""

    def run(self, repeat: int = 1) -> Results:
        """Everything, in order."""
        self.create()
        self.postgres()
        self.full()
        for number, round_ in enumerate(self.workload.warm_up):
            self.round(round_, 0, seed=99 - number, recorded=False)
        for number in range(repeat):
            for index, round_ in enumerate(self.workload.rounds):
                self.round(round_, number, seed=1 + index * 100 + number)
        return self.results

    # -- the steps -----------------------------------------------------------------------------------------

    def create(self) -> None:
        """All stream tables, DIFFERENTIAL; those that exist are brought up to date."""
        known = {each.name for each in self.client.status() if each.schema == self.workload.schema}
        for name, query in self.workload.queries.items():
            result = self.results.queries.setdefault(name, QueryResult(name))
            if result.error:
                continue
            with self._guard(result, "create"):
                if name in known:
                    self.client.refresh(self._relation(name))
                    continue
                result.create_ms = timed(
                    lambda name=name, query=query: self.client.create_stream_table(  # type: ignore[misc]
                        self._relation(name), query, NEVER, "DIFFERENTIAL"
                    )
                )
                self._compare(result)

    def postgres(self) -> None:
        """What PostgreSQL itself takes for the query: the median of three, or one if it is long."""
        self.conn.execute(f"SET statement_timeout = '{_SECONDS_FOR_POSTGRES}s'".encode())
        for result in self._healthy():
            if result.postgres_ms is not None:
                continue
            query = self.workload.queries[result.name].encode()
            with self._guard(result, "PostgreSQL"):
                try:
                    taken = [timed(lambda query=query: self.conn.execute(query).fetchall())]  # type: ignore[misc]
                    while taken[0] < _SLOW_MS and len(taken) < 3:
                        taken.append(timed(lambda query=query: self.conn.execute(query).fetchall()))  # type: ignore[misc]
                    result.postgres_ms = sorted(taken)[len(taken) // 2]
                except psycopg.errors.QueryCanceled:
                    # Too slow for PostgreSQL, which says nothing about the stream table.
                    result.postgres_ms = _SECONDS_FOR_POSTGRES * 1000.0
        self.conn.execute("RESET statement_timeout")

    def full(self) -> None:
        """A refresh that recomputes everything, forced by the marker that a TRUNCATE would leave; the faster of two."""
        if all(result.full for result in self._healthy()):
            return
        for _ in range(2):
            self._mark()
            for result in self._healthy():
                with self._guard(result, "FULL"):
                    sample = self._refresh(result)
                    if sample.action != "FULL":
                        raise Wrong(f"recomputation was asked for, but the refresh was {sample.action}")
                    if result.full is None or sample.ms < result.full.ms:
                        result.full = sample
        for result in self._healthy():
            with self._guard(result, "compare after FULL"):
                self._compare(result)
                result.state_bytes = self._state_bytes(result.name)

    def round(self, round_: Round, number: int, seed: int, *, recorded: bool = True) -> None:
        """Change, refresh one stream table after the other, then compare them all."""
        label = f"{round_.name}/{number}"
        if label in self.results.finished:
            return
        self.step(round_.name, "changes")
        with self.conn.transaction():
            round_.apply(self.conn, seed)
        for result in self._healthy():
            with self._guard(result, f"round {round_.name}"):
                sample = self._refresh(result)
                if sample.action != "DIFFERENTIAL":
                    raise Wrong(f"the refresh was {sample.action}, not DIFFERENTIAL")
                if recorded:
                    result.rounds.setdefault(round_.name, []).append(sample)
        for result in self._healthy():
            with self._guard(result, f"compare after {round_.name}"):
                self._compare(result)
                result.state_bytes = self._state_bytes(result.name)
        self.results.finished.append(label)
        self.changed(self.results)

    # -- details -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _guard(self, result: QueryResult, step: str) -> Iterator[None]:
        """A failure belongs to the query it happened to."""
        self.step(result.name, step)
        self.results.running = (result.name, step)
        self.changed(self.results)
        try:
            with self.watch():
                yield
        except (RunnelError, psycopg.Error, Wrong) as error:
            result.error = f"{step}: {_told(error)}"
            self._await_engine()
        finally:
            # Reached by Ctrl-C too: only a process that died leaves its mark.
            self.results.running = None
            self.changed(self.results)

    def _await_engine(self) -> None:
        """A step that was ended has cost the engine its connection: it needs a moment."""
        give_up = time.monotonic() + _SECONDS_FOR_ENGINE
        while time.monotonic() < give_up and not self.conn.execute(_ENGINE).fetchone():
            time.sleep(0.1)

    def _healthy(self) -> list[QueryResult]:
        return [self.results.queries[n] for n in self.workload.queries if not self.results.queries[n].error]

    def _relation(self, name: str) -> str:
        return f"{self.workload.schema}.{name}"

    def _refresh(self, result: QueryResult) -> Sample:
        spent = timed(lambda: self.client.refresh(self._relation(result.name)))
        row = self.conn.execute(_LAST, (self.workload.schema, result.name)).fetchone()
        assert row is not None
        action, status, changes, jobs, inserted, deleted, timings, reason, rows_read = row
        if status != "COMPLETED":
            raise Wrong(f"the refresh is {status}")
        if action not in ("DIFFERENTIAL", "FULL") or (action == "FULL" and reason and "delta failed" in reason):
            raise Wrong(f"the refresh was {action}: {reason}")
        return Sample(
            spent, action, changes or 0, jobs or 0, inserted or 0, deleted or 0, timings or {}, rows_read or {}
        )

    def _compare(self, result: QueryResult) -> None:
        """Twice: as Runnel compares, and as anybody would with EXCEPT ALL and the query that the catalog shows."""
        told = self.client.verify(self._relation(result.name))
        if not told.ok:
            raise Wrong(f"verify: missing {list(told.missing[:3])}, unexpected {list(told.unexpected[:3])}")
        difference = self._except_all(result.name)
        if difference:
            raise Wrong(f"EXCEPT ALL: {len(difference)} rows differ, such as {difference[0]}")
        row = self.conn.execute(f"SELECT count(*) FROM {self._relation(result.name)}".encode()).fetchone()
        result.rows = row[0] if row else None
        result.verified += 1

    def _except_all(self, name: str) -> list[tuple[Any, ...]]:
        row = self.conn.execute(
            "SELECT defining_query FROM pgtrickle.pgt_stream_tables WHERE pgt_schema = %s AND pgt_name = %s",
            (self.workload.schema, name),
        ).fetchone()
        assert row is not None
        query, table = row[0].strip().rstrip(";"), f"SELECT * FROM {self._relation(name)}"
        return self.conn.execute(
            f"(({query}) EXCEPT ALL ({table})) UNION ALL (({table}) EXCEPT ALL ({query}))".encode()
        ).fetchall()

    def _state_bytes(self, name: str) -> int:
        row = self.conn.execute(_STATE_BYTES, (self.workload.schema, name)).fetchone()
        return int(row[0]) if row else 0

    def _mark(self) -> None:
        buffers = self.conn.execute("SELECT buffer FROM pgtrickle.pgt_change_tracking").fetchall()
        with self.conn.transaction():
            for (buffer,) in buffers:
                self.conn.execute(f"INSERT INTO pgtrickle_changes.{buffer} (pgt_w) VALUES (0)".encode())


def timed(action: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def _told(error: Exception) -> str:
    """In one line, with what the error adds to its message."""
    if isinstance(error, RunnelError):
        return " ".join(filter(None, (error.message, error.detail)))
    if isinstance(error, psycopg.Error):
        return error.diag.message_primary or str(error).strip()
    return str(error)
