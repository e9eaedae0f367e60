"""Let others see what the workers are at: `pgtrickle.pgt_progress`.

What takes less than a second is not shown, so an engine whose refreshes are short writes nothing. Rows are those of
the phase: what tasks have read of about how many, or what COPY has passed on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import Jsonb

from runnel.engine.job import Job
from runnel.engine.registry import Registry
from runnel.engine.workers import Worker

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

SHOWN_AFTER = 1.0
SECONDS = 0.5
"""Between two looks."""
VERIFYING, MERGING, PUBLISHING = "verify", "merge", "publish"

SHOW = """
WITH shown AS (SELECT * FROM jsonb_populate_recordset(NULL::pgtrickle.pgt_work, %(rows)s)),
gone AS (DELETE FROM pgtrickle.pgt_work w WHERE NOT EXISTS (SELECT FROM shown s WHERE s.job = w.job))
INSERT INTO pgtrickle.pgt_work SELECT * FROM shown
ON CONFLICT (job) DO UPDATE SET name = excluded.name, phase = excluded.phase, rows_done = excluded.rows_done,
    rows_total = excluded.rows_total, phase_started_at = excluded.phase_started_at, stopping = excluded.stopping
"""
COPIED = "SELECT pid, tuples_processed FROM pg_stat_progress_copy WHERE pid = ANY(%s)"
BY_TASKS = """
SELECT coalesce(sum(c.tuples_processed), 0)::int8 FROM pg_stat_progress_copy c JOIN pg_stat_activity a USING (pid)
WHERE a.application_name = %s
"""
"""What the tasks of a worker that run just now have read so far."""
EXPECTED = "SELECT coalesce(sum(greatest(reltuples, 0)), 0)::int8 FROM pg_class WHERE oid = ANY(%s::oid[])"


@dataclass
class Showing:
    """What is shown, and since when."""

    shows: bool = True
    """Whether anything may stand in the table; a former engine may have left something."""
    _looked: float = 0.0
    _expected: dict[tuple[int, bool], int] = field(default_factory=dict)
    """By job, and whether it publishes: about how many rows there are to read."""
    _loaded: dict[int, int] = field(default_factory=dict)
    """By job: how many rows it has loaded last, which are those to be merged."""

    def show(
        self,
        conn: psycopg.Connection[Any],
        registry: Registry,
        spark: Sessions,
        running: Sequence[tuple[Worker, Job]],
    ) -> None:
        """Write down what has been going on for a while, if it is time."""
        long = [(w, job) for w, job in running if time.time() - job.began >= SHOWN_AFTER]
        if (not long and not self.shows) or time.monotonic() - self._looked < SECONDS:
            return
        self._looked = time.monotonic()
        copied = dict(conn.execute(COPIED, ([w.pid for w, _ in long],)).fetchall()) if long else {}
        rows = [self._row(conn, registry, spark, worker, job, copied.get(worker.pid)) for worker, job in long]
        conn.execute(SHOW, {"rows": Jsonb(rows)})
        self.shows = bool(long)
        shown = {job.number for _, job in long}
        self._expected = {key: rows for key, rows in self._expected.items() if key[0] in shown}
        self._loaded = {number: rows for number, rows in self._loaded.items() if number in shown}

    def _row(
        self,
        conn: psycopg.Connection[Any],
        registry: Registry,
        spark: Sessions,
        worker: Worker,
        job: Job,
        copied: int | None,
    ) -> dict[str, Any]:
        done, total = job.done or copied, job.expected
        if copied:
            self._loaded[job.number] = copied
        if done is None:
            tasks = spark.tasks_of(worker.tag)
            if tasks.all:
                total = self._to_read(conn, registry, job)
                row = conn.execute(BY_TASKS, (worker.tag,)).fetchone()
                done = tasks.rows(total, row[0] if row else 0) if total else None
            # One statement of PostgreSQL's does not tell how far it is.
            elif job.at == VERIFYING:
                total = self._to_read(conn, registry, job) or None
            elif job.at == MERGING:
                total = self._loaded.get(job.number)
        return {
            "job": job.number, "name": job.subject, "command": job.what, "phase": job.at, "rows_done": done,
            "rows_total": max(total, done or 0) if total else None, "started_at": _moment(job.began),
            "phase_started_at": _moment(job.since), "stopping": job.stopped, "caller_pid": job.caller_pid,
            "worker_pid": worker.pid,
        }  # fmt: skip

    def _to_read(self, conn: psycopg.Connection[Any], registry: Registry, job: Job) -> int:
        """About how many rows a job reads, by PostgreSQL's statistics: of its sources, or of what it publishes."""
        key = job.number, job.at == PUBLISHING
        if key not in self._expected:
            tables = [i for i in job.held if i in registry.relations_read]
            if job.at == PUBLISHING:
                read = {registry.rows[i].pgt_relid for i in tables}
            else:
                read = {oid for i in tables for oid in registry.relations_read[i]}
            row = conn.execute(EXPECTED, (sorted(read),)).fetchone()
            self._expected[key] = int(row[0]) if row else 0
        return self._expected[key]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
