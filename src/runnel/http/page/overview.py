"""The overview: every stream table at this moment, engine, Spark and lakes; and what wants attention, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runnel.http.page.caller import Connection, Row, only, rows
from runnel.model.quantities import amount

TABLES = """
SELECT format('%I.%I', s.pgt_schema, s.pgt_name) AS name, s.status, s.refresh_mode, s.effective_mode AS mode,
       s.schedule,
       extract(epoch FROM p.period)::float8 AS period, extract(epoch FROM f.staleness)::float8 AS staleness, f.pending,
       extract(epoch FROM s.last_refresh_at)::float8 AS refreshed, s.consecutive_errors AS errors, s.needs_reinit,
       CASE WHEN s.last_error IS NOT NULL THEN pgtrickle._last_error(s.pgt_id, s.last_error) END AS error,
       (extract(epoch FROM h.end_time - h.start_time) * 1000)::float8 AS ms, h.rows_inserted AS inserted,
       h.rows_deleted AS deleted, h.action,
       CASE WHEN s.tested THEN pgtrickle._tests_in_words(s.pgt_id) END AS tests,
       EXISTS (SELECT FROM pgtrickle.pgt_sinks k WHERE k.pgt_id = s.pgt_id AND k.held_since IS NOT NULL) AS held
FROM pgtrickle.pgt_stream_tables s
JOIN pgtrickle._freshness() f ON f.pgt_id = s.pgt_id
JOIN pgtrickle._periods() p ON p.pgt_id = s.pgt_id
LEFT JOIN LATERAL (
    SELECT * FROM pgtrickle.pgt_refresh_history r WHERE r.pgt_id = s.pgt_id AND r.status = 'COMPLETED'
    ORDER BY r.refresh_id DESC LIMIT 1) h ON true
ORDER BY 1
"""
ENGINE = """
SELECT pgtrickle._engine_alive() AS up, e.version, e.host, e.spark_master AS spark,
       extract(epoch FROM e.started_at)::float8 AS started,
       extract(epoch FROM clock_timestamp() - greatest(h.seen_at, e.started_at))::float8 AS silence,
       coalesce(h.pace, '{}') AS pace, coalesce(h.prepared_plans, '{}') AS plans, cardinality(e.writers) AS workers,
       current_database() AS database
FROM (VALUES (1)) one LEFT JOIN pgtrickle.pgt_engine e ON true LEFT JOIN pgtrickle.pgt_heartbeat h ON true
"""
PROGRESS = """
SELECT name, command, phase, rows_done AS done, rows_total AS total, extract(epoch FROM elapsed)::float8 AS elapsed,
       extract(epoch FROM remaining)::float8 AS remaining FROM pgtrickle.pgt_progress ORDER BY started_at LIMIT 50
"""
LATE = 3.0
"""A stream table is late when it is further behind than so many times its schedule, and a few seconds."""
GRACE = 5.0
MANY = 1_000_000
RECENT = 10.0


def overview(conn: Connection) -> Row:
    """All of it but the lakes."""
    tables = rows(conn, TABLES)
    engine = only(conn, ENGINE)
    assert engine is not None
    return {
        "tables": tables,
        "engine": engine,
        "progress": rows(conn, PROGRESS),
        "attention": attention(tables, engine),
    }


def attention(tables: Sequence[Row], engine: Row) -> list[Row]:
    """What is wrong, the worst first: about what, in words, and what to do."""
    found = [*_engine(engine), *(note for table in tables for note in _table(table))]
    order = {"bad": 0, "warn": 1}
    return sorted(found, key=lambda note: order[note["severity"]])[:50]


def _engine(engine: Row) -> Iterator[Row]:
    if not engine["up"]:
        yield _note("bad", None, "No engine runs on this database: nothing is refreshed.", "Start one with: runnel up")
        return
    if (engine["silence"] or 0) > 90:
        yield _note("bad", None, "The engine does not answer.", "Look at its log (runnel logs) and start it again.")
    if engine.get("workers") == 0:
        yield _note("warn", None, "Spark is starting: refreshes wait for it.", "Nothing: it takes some seconds.")
    waiting, late = engine["pace"].get("waiting") or 0, engine["pace"].get("late") or 0
    # An engine that sleeps says so every half a minute only: what it said before is no news.
    if waiting and late > 3 and (engine["silence"] or 0) < RECENT:
        yield _note(
            "warn", None,
            f"More is to do than this machine can: {waiting} due and waiting, one for {late:.0f} s.",
            "Give longer schedules, or more workers (runnel up --workers).",
        )  # fmt: skip


def _table(table: Row) -> Iterator[Row]:
    name, error = table["name"], table["error"]
    if table["status"] == "ERROR":
        yield _note("bad", name, f"is in error: {error}", "Put it right or alter its query, then press Resume.")
    elif table["status"] == "SUSPENDED" and error:
        yield _note("bad", name, f"was suspended because it kept failing: {error}", "Put it right, then press Resume.")
    elif table["errors"]:
        times = "once" if table["errors"] == 1 else f"{table['errors']} times in a row"
        yield _note("bad", name, f"failed {times}: {error}", "It is tried again by itself; its page has the history.")
    elif table["status"] == "SUSPENDED":
        yield _note(
            "warn", name, "is suspended by somebody.", "Press Resume to go on; its changes were captured meanwhile."
        )
    if table["needs_reinit"]:
        yield _note(
            "warn", name, "waits to be rebuilt, because something under it changed.", "Nothing: it is done by itself."
        )
    if table["status"] == "ACTIVE" and not table["errors"] and is_late(table):
        behind = f"is {_span(table['staleness'])} behind; its schedule is {table['schedule']}."
        yield _note("warn", name, behind, "Its page shows where the time goes; explain marks what costs much.")
    if table.get("tests") not in (None, "ok"):
        yield _note(
            "bad" if table["held"] else "warn",
            name,
            f"does not pass its tests: {table['tests']}.",
            "The lake keeps the last good version until they hold again."
            if table["held"]
            else "pgtrickle.test_status() has each of them.",
        )
    if table["pending"] > MANY:
        yield _note(
            "warn",
            name,
            f"has {amount(table['pending'])} changes waiting.",
            "They are read at once, by the next refresh.",
        )


def is_late(table: Row) -> bool:
    """Whether a stream table is further behind than its schedule explains."""
    staleness, period = table["staleness"], table["period"]
    return staleness is not None and period is not None and staleness > LATE * period + GRACE


def _note(severity: str, name: str | None, words: str, remedy: str) -> Row:
    return {"severity": severity, "name": name, "words": words, "remedy": remedy}


def _span(seconds: float) -> str:
    """A time in words.

    >>> _span(4.2), _span(300), _span(7300), _span(200000)
    ('4 s', '5 min', '2 h', '2 d')
    """
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


LAKES = """
SELECT l.name, l.catalog_schema, l.remote, l.is_default FROM pgtrickle.pgt_lakes l
ORDER BY l.is_default DESC, l.name LIMIT 20
"""


def lakes(conn: Connection) -> list[Row]:
    """Figures of the lakes whose catalogs are here; read by the engine's role, for only counts come out."""
    from runnel.http.metrics.lakes import counts

    return [
        {**lake, **(counts(conn, lake["catalog_schema"]) if not lake["remote"] else {})} for lake in rows(conn, LAKES)
    ]


def numbers(value: Any) -> Any:
    """What JSON has no word for, as numbers and texts."""
    return float(value) if hasattr(value, "as_tuple") else str(value)
