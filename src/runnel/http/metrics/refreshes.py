"""Refreshes, counted as they appear in the history.

The history is pruned, so its sums may fall; counters may not. So each look adds the refreshes that are new since the
last one. Their numbers are not in the order of their commits: one that was passed over is looked for again, until
nobody can still be at it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from psycopg.rows import namedtuple_row

from runnel.http.metrics.figures import MOST

Connection = psycopg.Connection[Any]

OTHERS = "(others)"
_GAPS = 5000
"""So many numbers are looked for again, and not for longer than a day."""
_PATIENCE = 86_400.0
_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_WORK = ("plans", "jobs", "tasks", "read_rows", "read_bytes", "written_rows", "written_bytes", "driver_rows")

FIRST = "SELECT coalesce(max(refresh_id), 0) FROM pgtrickle.pgt_refresh_history WHERE start_time < to_timestamp(%s)"
NEW = """
SELECT h.refresh_id, format('%%I.%%I', s.pgt_schema, s.pgt_name) AS name, h.action, h.status,
       extract(epoch FROM h.end_time - h.start_time)::float8 AS seconds, coalesce(h.rows_inserted, 0) AS inserted,
       coalesce(h.rows_deleted, 0) AS deleted, coalesce(h.changes_read, 0) AS changes, h.timings, h.work
FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = h.pgt_id
WHERE (h.refresh_id > %(top)s OR h.refresh_id = ANY (%(gaps)s)) AND h.status <> 'RUNNING'
"""


class Refreshes:
    """The refreshes since this process began."""

    def __init__(self) -> None:
        self._began = time.time()
        self._top: int | None = None
        self._gaps: dict[int, float] = {}
        self._names: set[str] = set()
        self._done: Counter[tuple[str, str, str]] = Counter()
        self._rows: Counter[tuple[str, str]] = Counter()
        self._steps: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._work: Counter[str] = Counter()
        self._seconds: dict[str, Counter[float]] = {}
        self._sums: defaultdict[str, float] = defaultdict(float)

    def look(self, conn: Connection) -> None:
        """Take in what is new."""
        if self._top is None:
            row = conn.execute(FIRST, (self._began,)).fetchone()
            assert row is not None
            self._top = int(row[0])
        with conn.cursor(row_factory=namedtuple_row) as cursor:
            found: Sequence[Any] = cursor.execute(NEW, {"top": self._top, "gaps": list(self._gaps)}).fetchall()
        seen = {row.refresh_id for row in found}
        top = max(self._top, *seen) if seen else self._top
        now = time.monotonic()
        missing = range(max(self._top + 1, top - _GAPS), top)
        self._gaps = {
            number: since
            for number, since in (*self._gaps.items(), *((number, now) for number in missing))
            if number not in seen and now - since < _PATIENCE
        }
        for number in sorted(self._gaps)[:-_GAPS]:
            del self._gaps[number]
        self._top = top
        for row in found:
            self._count(row)

    def families(self) -> Iterator[Metric]:
        """What was counted."""
        yield _counter(
            "refreshes",
            "Refreshes, by what they did and how they ended.",
            self._done,
            "stream_table",
            "action",
            "status",
        )
        yield _counter(
            "refresh_rows",
            "Rows that refreshes inserted, deleted, and read as changes.",
            self._rows,
            "stream_table",
            "change",
        )
        yield _counter("refresh_step_seconds", "Time of refreshes by step.", self._steps, "stream_table", "step")
        work = CounterMetricFamily("runnel_spark_work", "What refreshes had Spark and the driver do.", labels=["what"])
        for name in _WORK:
            work.add_metric([name], self._work[name])
        yield work
        durations = HistogramMetricFamily(
            "runnel_refresh_duration_seconds", "How long refreshes took.", labels=["action"]
        )
        for action, counts in self._seconds.items():
            total, buckets = 0.0, []
            for bound in _BUCKETS:
                total += counts[bound]
                buckets.append((str(bound), total))
            buckets.append(("+Inf", total + counts[float("inf")]))
            durations.add_metric([action], buckets, self._sums[action])
        yield durations

    def _count(self, row: Any) -> None:
        if row.name not in self._names and len(self._names) < MOST:
            self._names.add(row.name)
        name = row.name if row.name in self._names else OTHERS
        self._done[name, row.action, row.status] += 1
        for change, number in (("inserted", row.inserted), ("deleted", row.deleted), ("read", row.changes)):
            self._rows[name, change] += number
        for step, ms in (row.timings or {}).items():
            self._steps[name, step] += ms / 1000
        for what in _WORK:
            self._work[what] += (row.work or {}).get(what, 0)
        seconds = row.seconds or 0.0
        bound = next((b for b in _BUCKETS if seconds <= b), float("inf"))
        self._seconds.setdefault(row.action, Counter())[bound] += 1
        self._sums[row.action] += seconds


def _counter(name: str, words: str, counts: Mapping[Any, float], *labels: str) -> Metric:
    family = CounterMetricFamily(f"runnel_{name}", words, labels=labels)
    for key, value in counts.items():
        family.add_metric(key, value)
    return family
