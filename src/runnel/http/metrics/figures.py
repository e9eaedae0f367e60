"""What the catalog says of this moment, by stream table and by source: one statement each, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from psycopg.rows import namedtuple_row

Connection = psycopg.Connection[Any]

MOST = 1000
"""So many stream tables, and so many sources, have lines of their own; the rest is left out, and counted."""

TABLES = """
SELECT format('%%I.%%I', s.pgt_schema, s.pgt_name) AS name, s.status, s.effective_mode AS mode,
       extract(epoch FROM f.staleness)::float8 AS staleness, extract(epoch FROM p.period)::float8 AS period,
       f.pending, s.consecutive_errors AS errors, extract(epoch FROM s.last_refresh_at)::float8 AS refreshed,
       greatest(c.reltuples, 0)::float8 AS rows, pg_relation_size(c.oid) AS bytes, coalesce(k.bytes, 0) AS state
FROM pgtrickle.pgt_stream_tables s
JOIN pgtrickle._freshness() f ON f.pgt_id = s.pgt_id
JOIN pgtrickle._periods() p ON p.pgt_id = s.pgt_id
LEFT JOIN pg_class c ON c.oid = s.pgt_relid
LEFT JOIN (
    SELECT substring(r.relname FROM '^(?:[gbs]|log)_([0-9]+)')::bigint AS pgt_id,
           sum(pg_total_relation_size(r.oid)) AS bytes
    FROM pg_class r WHERE r.relkind = 'r' AND r.relname ~ '^([gbs]|log)_[0-9]+'
      AND r.relnamespace IN ('pgtrickle_state'::regnamespace, 'pgtrickle_changes'::regnamespace)
    GROUP BY 1) k ON k.pgt_id = s.pgt_id
ORDER BY s.pgt_id LIMIT %s
"""
SOURCES = """
SELECT coalesce(format('%%I.%%I', n.nspname, r.relname), t.source_relid::text) AS name,
       coalesce(pg_total_relation_size(b.oid), 0) AS bytes, coalesce(u.n_tup_ins, 0) AS captured,
       coalesce(f.calls, 0) AS calls, coalesce(f.total_time, 0) / 1000 AS seconds
FROM pgtrickle.pgt_change_tracking t
LEFT JOIN pg_class r ON r.oid = t.source_relid
LEFT JOIN pg_namespace n ON n.oid = r.relnamespace
LEFT JOIN pg_class b ON b.relname = t.buffer AND b.relnamespace = 'pgtrickle_changes'::regnamespace
LEFT JOIN pg_stat_user_tables u ON u.relid = b.oid
LEFT JOIN (
    SELECT substring(x.funcname::text FROM '^capture_([0-9]+)') AS source, sum(x.calls) AS calls,
           sum(x.total_time) AS total_time
    FROM pg_stat_user_functions x WHERE x.schemaname = 'pgtrickle_changes' GROUP BY 1) f
  ON f.source = t.source_relid::text
ORDER BY t.source_relid LIMIT %s
"""
TESTS = """
SELECT format('%%I.%%I', s.pgt_schema, s.pgt_name) AS name, t.name AS test, t.on_violation, t.status, t.violations
FROM pgtrickle.pgt_tests t JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = t.pgt_id
ORDER BY t.pgt_id, t.position LIMIT %s
"""
HELD = """
SELECT format('%I.%I', s.pgt_schema, s.pgt_name) AS name, extract(epoch FROM k.held_since)::float8 AS since
FROM pgtrickle.pgt_sinks k JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = k.pgt_id WHERE k.held_since IS NOT NULL
ORDER BY s.pgt_id
"""
ENGINE = """
SELECT pgtrickle._engine_alive() AS up, extract(epoch FROM e.started_at)::float8 AS started,
       extract(epoch FROM greatest(h.seen_at, e.started_at))::float8 AS seen, coalesce(h.pace, '{}') AS pace,
       coalesce(h.prepared_plans, '{}') AS plans,
       (SELECT count(*) FROM pgtrickle.pgt_requests q WHERE q.status IN ('PENDING', 'RUNNING')) AS requests,
       (SELECT count(*) FROM pgtrickle.pgt_progress) AS long,
       (SELECT count(*) FROM pgtrickle.pgt_stream_tables) AS tables,
       (SELECT count(*) FROM pgtrickle.pgt_change_tracking) AS sources
FROM (VALUES (1)) one LEFT JOIN pgtrickle.pgt_engine e ON true LEFT JOIN pgtrickle.pgt_heartbeat h ON true
"""

_GAUGES = (
    ("staleness_seconds", "staleness", "By how much a stream table is behind; 0 when nothing waits."),
    ("period_seconds", "period", "The least time between two refreshes, by its schedule; none for cron."),
    ("pending_changes", "pending", "Captured rows that the next refresh will read."),
    ("consecutive_errors", "errors", "Refreshes that failed since the last one that did not."),
    ("last_refresh_timestamp_seconds", "refreshed", "When it was refreshed last."),
    ("rows", "rows", "About how many rows it has, by the server's statistics."),
    ("bytes", "bytes", "Size of its rows on disk."),
    ("state_bytes", "state", "Size of its state and its change log, with indexes."),
)


def families(conn: Connection) -> Iterator[Metric]:
    """All of it."""
    engine = _rows(conn, ENGINE)[0]
    yield from _engine(engine)
    tables = _rows(conn, TABLES, (MOST,))
    yield from _tables(tables)
    sources = _rows(conn, SOURCES, (MOST,))
    yield from _sources(sources)
    yield from _tests(_rows(conn, TESTS, (MOST,)), _rows(conn, HELD))
    left_out = GaugeMetricFamily(
        "runnel_left_out", "Stream tables and sources without lines of their own.", labels=["kind"]
    )
    left_out.add_metric(["stream_table"], max(0, engine.tables - len(tables)))
    left_out.add_metric(["source"], max(0, engine.sources - len(sources)))
    yield left_out


def _tables(rows: Sequence[Any]) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "runnel_stream_table_info",
        "1 for each stream table, with its state.",
        labels=["stream_table", "status", "mode"],
    )
    for row in rows:
        info.add_metric([row.name, row.status, row.mode], 1)
    yield info
    for name, column, words in _GAUGES:
        family = GaugeMetricFamily(f"runnel_stream_table_{name}", words, labels=["stream_table"])
        for row in rows:
            value = getattr(row, column)
            if value is not None:
                family.add_metric([row.name], float(value))
        yield family


def _tests(rows: Sequence[Any], held: Sequence[Any]) -> Iterator[Metric]:
    labels = ["stream_table", "test", "on_violation"]
    violations = GaugeMetricFamily("runnel_test_violations", "What a test finds; 0 is good.", labels=labels)
    failing = GaugeMetricFamily("runnel_test_error", "1 for a test that could not be run.", labels=labels)
    for row in rows:
        violations.add_metric([row.name, row.test, row.on_violation], float(row.violations))
        failing.add_metric([row.name, row.test, row.on_violation], float(row.status == "error"))
    since = GaugeMetricFamily(
        "runnel_stream_table_held_timestamp_seconds",
        "Since when the lake keeps an older version, because a test does not hold.",
        labels=["stream_table"],
    )
    for row in held:
        since.add_metric([row.name], row.since)
    yield from (violations, failing, since)


def _sources(rows: Sequence[Any]) -> Iterator[Metric]:
    size = GaugeMetricFamily("runnel_buffer_bytes", "Size of a source's buffer of changes.", labels=["source"])
    captured = CounterMetricFamily(
        "runnel_captured_rows", "Rows that capture has written to a buffer.", labels=["source"]
    )
    calls = CounterMetricFamily(
        "runnel_capture_calls", "Statements that were captured; needs track_functions = 'pl'.", labels=["source"]
    )
    seconds = CounterMetricFamily(
        "runnel_capture_seconds", "Time that writers spent in capture; needs track_functions = 'pl'.", labels=["source"]
    )
    for row in rows:
        size.add_metric([row.name], row.bytes)
        captured.add_metric([row.name], row.captured)
        if row.calls:
            calls.add_metric([row.name], float(row.calls))
            seconds.add_metric([row.name], float(row.seconds))
    yield from (size, captured, calls, seconds)


def _engine(row: Any) -> Iterator[Metric]:
    yield GaugeMetricFamily("runnel_engine_up", "Whether an engine runs on the database.", value=int(row.up))
    for name, value, words in (
        ("start_time_seconds", row.started, "When it was started."),
        ("last_beat_timestamp_seconds", row.seen, "When its loop last came round."),
        ("refreshing", row.pace.get("running"), "Stream tables that are being refreshed."),
        ("waiting", row.pace.get("waiting"), "Stream tables that are due and wait for their turn."),
        ("late_seconds", row.pace.get("late"), "For how long one of them has waited."),
        ("open_requests", row.requests, "Calls that have not been answered yet."),
        ("long_work", row.long, "What it has been at for more than a second."),
        ("stream_tables", row.tables, "All stream tables."),
        ("prepared_plans", row.plans.get("plans"), "Plans of small refreshes that are kept."),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"runnel_engine_{name}", words, value=float(value))
    for name, value, words in (
        ("prepared_plans_made", row.plans.get("made"), "Plans that had to be made."),
        ("prepared_plans_used", row.plans.get("used"), "Times that one could be used again."),
    ):
        if value is not None:
            yield CounterMetricFamily(f"runnel_engine_{name}", words, value=float(value))


def _rows(conn: Connection, query: str, values: tuple[Any, ...] | None = None) -> Sequence[Any]:
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(query.encode(), values).fetchall()
