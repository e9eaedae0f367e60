"""The views and functions that pg_trickle's dashboards ask: their columns, and what they say of a live database."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.cli.logs import JsonFormat
from tests.e2e.helpers import Stream, eventually, rows, script, value

ORDERS = """
CREATE TABLE orders (id int PRIMARY KEY, customer text, amount numeric(10,2));
INSERT INTO orders SELECT i, 'c' || i % 4, i FROM generate_series(1, 20) i;
"""
TOTALS = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"

# What pg_trickle's reference names; ours may have more.
COLUMNS = {
    "pgtrickle.stream_tables_info": "pgt_id pgt_relid pgt_name pgt_schema defining_query original_query schedule "
    "refresh_mode status is_populated data_timestamp frontier last_refresh_at consecutive_errors "
    "needs_reinit created_at updated_at "
    "staleness stale",
    "pgtrickle.pg_stat_stream_tables": "pgt_id pgt_schema pgt_name status refresh_mode data_timestamp staleness stale "
    "total_refreshes successful_refreshes failed_refreshes avg_duration_ms consecutive_errors cdc_modes scc_id "
    "last_fixpoint_iterations is_populated total_rows_inserted total_rows_deleted last_action last_status",
    "pgtrickle.quick_health": "total_stream_tables error_tables stale_tables scheduler_running status",
    "pgtrickle.health_summary()": "total_stream_tables active_count error_count suspended_count stale_count "
    "reinit_pending max_staleness_seconds scheduler_status cache_hit_rate",
    "pgtrickle.st_refresh_stats()": "pgt_name pgt_schema status refresh_mode is_populated total_refreshes "
    "successful_refreshes failed_refreshes total_rows_inserted total_rows_updated total_rows_deleted avg_duration_ms "
    "last_refresh_action last_refresh_status last_refresh_at staleness_secs stale",
    "pgtrickle.list_sources('totals')": "source_table source_oid source_type cdc_mode columns_used",
    "pgtrickle.check_cdc_health()": "source_relid source_table cdc_mode slot_name lag_bytes confirmed_lsn alert",
    "pgtrickle.diagnose_errors('totals')": "event_time error_type error_message remediation",
    "pgtrickle.refresh_efficiency()": "pgt_schema pgt_name refresh_mode total_refreshes diff_count full_count "
    "avg_diff_ms avg_full_ms avg_change_ratio diff_speedup last_refresh_at",
    "pgtrickle.recommend_refresh_mode()": "pgt_schema pgt_name current_mode effective_mode recommended_mode confidence "
    "reason signals",
    "pgtrickle.explain_st('totals')": "property value",
}  # fmt: skip


def record(db: psycopg.Connection, query: str) -> dict[str, Any]:
    """The only row of a query, by column."""
    cursor = db.execute(query.encode())
    (row,) = cursor.fetchall()
    assert cursor.description is not None
    return dict(zip((c.name for c in cursor.description), row, strict=True))


@pytest.fixture
def totals(db: psycopg.Connection, stream: Stream) -> None:
    script(db, ORDERS)
    stream("totals", TOTALS)


@pytest.fixture
def guest(db: psycopg.Connection, dsn: str, schema: str) -> Iterator[psycopg.Connection]:
    """Somebody without any rights."""
    if not value(db, "SELECT count(*) FROM pg_roles WHERE rolname = 'e2e_guest'"):
        db.execute("CREATE ROLE e2e_guest LOGIN")
    db.execute(f"GRANT USAGE ON SCHEMA {schema} TO e2e_guest".encode())
    with contextlib.closing(psycopg.connect(make_conninfo(dsn, user="e2e_guest"), autocommit=True)) as conn:
        yield conn


def test_everybody_reads_the_columns_that_the_reference_names(totals: None, guest: psycopg.Connection) -> None:
    for relation, expected in COLUMNS.items():
        cursor = guest.execute(f"SELECT * FROM {relation}".encode())
        assert cursor.description is not None
        missing = set(expected.split()) - {c.name for c in cursor.description}
        assert not missing, f"{relation} lacks {missing}"
    assert guest.execute("SELECT pgtrickle.export_definition('totals')").fetchone()


def test_refreshes_are_counted(db: psycopg.Connection, client: runnel.Client, totals: None) -> None:
    db.execute("UPDATE orders SET amount = amount + 1 WHERE id <= 2")
    client.refresh("totals")
    stat = record(db, "SELECT * FROM pgtrickle.pg_stat_stream_tables WHERE pgt_schema = current_schema()")
    assert (stat["total_refreshes"], stat["successful_refreshes"], stat["failed_refreshes"]) == (2, 2, 0)
    assert (stat["total_rows_inserted"], stat["total_rows_deleted"]) == (6, 2)
    assert stat["cdc_modes"] == ["trigger"] and stat["last_action"] == "DIFFERENTIAL" and stat["avg_duration_ms"] > 0
    assert stat["stale"] is None, "cron has no period"
    same = record(db, "SELECT * FROM pgtrickle.st_refresh_stats() WHERE pgt_schema = current_schema()")
    assert (same["total_refreshes"], same["total_rows_inserted"], same["total_rows_updated"]) == (2, 6, 0)
    assert same["staleness_secs"] == 0
    worth = record(db, "SELECT * FROM pgtrickle.refresh_efficiency() WHERE pgt_schema = current_schema()")
    assert (worth["diff_count"], worth["full_count"]) == (1, 1)
    assert worth["diff_speedup"].endswith("x") and worth["avg_full_ms"] > 0


def test_a_table_is_stale_when_its_schedule_has_passed(db: psycopg.Connection, stream: Stream) -> None:
    script(db, ORDERS)
    stream("often", TOTALS, schedule="1h")
    stream("follows", "SELECT count(*) AS n FROM often", schedule="2h30m")
    stream("asked", TOTALS, schedule="calculated")
    stream("reads_asked", "SELECT count(*) AS n FROM asked", schedule="200ms")
    periods = rows(
        db,
        "SELECT s.pgt_name, p.period::text FROM pgtrickle._periods() p "
        "JOIN pgtrickle.pgt_stream_tables s USING (pgt_id) "
        "WHERE s.pgt_schema = current_schema() ORDER BY 1",
    )
    assert periods == [
        ("asked", "00:00:00.2"),
        ("follows", "02:30:00"),
        ("often", "01:00:00"),
        ("reads_asked", "00:00:00.2"),
    ]
    # `often` was refreshed a moment ago and is not due again for an hour; two hours later it would be stale.
    db.execute("INSERT INTO orders VALUES (100, 'c1', 5)")
    stale = "SELECT stale FROM pgtrickle.stream_tables_info WHERE pgt_name = 'often' AND pgt_schema = current_schema()"
    assert value(db, stale) is False
    db.execute(
        "UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = now() - interval '2 hours' WHERE pgt_name = 'often'"
    )
    assert value(db, stale) is True
    assert value(db, "SELECT status FROM pgtrickle.quick_health") in ("WARNING", "CRITICAL")
    assert value(db, "SELECT stale_count FROM pgtrickle.health_summary()") >= 1


def test_health_follows_what_happens(db: psycopg.Connection, client: runnel.Client, totals: None) -> None:
    health = record(db, "SELECT * FROM pgtrickle.quick_health")
    assert health["scheduler_running"] is True and health["total_stream_tables"] >= 1
    client.alter_stream_table("totals", status="SUSPENDED")
    assert value(db, "SELECT status FROM pgtrickle.quick_health") == "CRITICAL"
    summary = record(db, "SELECT * FROM pgtrickle.health_summary()")
    assert summary["suspended_count"] == 1 and summary["scheduler_status"] == "ACTIVE"
    db.execute("SELECT pgtrickle.resume_stream_table('totals')")


def test_sources_and_capture(db: psycopg.Connection, stream: Stream, totals: None, schema: str) -> None:
    stream("top", "SELECT max(total) AS most FROM totals")
    assert rows(
        db, "SELECT source_table, source_type, cdc_mode, columns_used FROM pgtrickle.list_sources('totals')"
    ) == [(f"{schema}.orders", "table", "trigger", "amount, customer")]
    assert rows(db, "SELECT source_type, cdc_mode FROM pgtrickle.list_sources('top')") == [("stream_table", "log")]
    with pytest.raises(psycopg.errors.UndefinedTable, match="does not exist"):
        rows(db, "SELECT * FROM pgtrickle.list_sources('nothing')")
    alert = f"SELECT cdc_mode, alert FROM pgtrickle.check_cdc_health() WHERE source_table = '{schema}.orders'"
    assert rows(db, alert) == [("TRIGGER", None)]
    oid = value(db, "SELECT 'orders'::regclass::oid")
    db.execute("BEGIN")
    db.execute(f"ALTER TABLE orders DISABLE TRIGGER pgtrickle_{oid}_upd".encode())
    (found,) = rows(db, alert)
    db.execute("ROLLBACK")
    assert found in (("TRIGGER", "capture_trigger_missing_or_disabled"), ("TRIGGER", None)), (
        "or undone by event triggers"
    )


def test_a_failure_is_diagnosed(db: psycopg.Connection, stream: Stream, schema: str) -> None:
    script(db, "CREATE TABLE people (id int, pay text); INSERT INTO people VALUES (1, '10')")
    stream("numbers", "SELECT id, pay::int AS pay FROM people")
    db.execute("INSERT INTO people VALUES (2, 'plenty')")
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormat(()))
    logging.getLogger("runnel").addHandler(handler)
    try:
        with pytest.raises(psycopg.Error):
            db.execute("SELECT pgtrickle.refresh_stream_table('numbers')")
    finally:
        logging.getLogger("runnel").removeHandler(handler)
    found = eventually(
        lambda: rows(db, "SELECT error_type, error_message, remediation FROM pgtrickle.diagnose_errors('numbers')")
    )
    said = [json.loads(line) for line in written.getvalue().splitlines()]
    # On a slow machine it has been tried again meanwhile.
    failed = rows(db, "SELECT refresh_id FROM pgtrickle.get_refresh_history('numbers') WHERE status = 'FAILED'")
    told = {(s["stream_table"], s["refresh_id"]) for s in said if "failed" in s["message"]}
    assert told and told <= {(f"{schema}.numbers", number) for (number,) in failed}
    kind, message, remedy = found[0]
    assert kind == "user" and "plenty" in message and "resume_stream_table" in remedy


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("division by zero (22012); who may act as its owner reads the message", "user"),
        ('relation "x" does not exist', "schema"),
        ("internal error (Py4JJavaError): OutOfMemoryError", "performance"),
        ("server closed the connection unexpectedly", "infrastructure"),
    ],
)
def test_kinds_of_errors(db: psycopg.Connection, message: str, kind: str) -> None:
    assert db.execute("SELECT kind FROM pgtrickle._remedy(%s)", (message,)).fetchone() == (kind,)


def test_an_exported_definition_makes_the_same_table(db: psycopg.Connection, totals: None, schema: str) -> None:
    text = value(db, "SELECT pgtrickle.export_definition('totals')")
    before = rows(db, "SELECT * FROM totals ORDER BY 1")
    db.execute("SELECT pgtrickle.drop_stream_table('totals')")
    db.execute("SET search_path = pg_catalog")
    db.execute(text.encode())
    assert rows(db, f"SELECT * FROM {schema}.totals ORDER BY 1") == before
    assert value(db, f"SELECT pgtrickle.export_definition('{schema}.totals')") == text


def test_properties(db: psycopg.Connection, client: runnel.Client, stream: Stream, totals: None, schema: str) -> None:
    stream("top", "SELECT max(total) AS most FROM totals")
    db.execute("INSERT INTO orders VALUES (100, 'c1', 5)")
    client.refresh("totals")
    found = dict(rows(db, "SELECT property, value FROM pgtrickle.explain_st('totals')"))
    assert found["pgt_name"] == f"{schema}.totals" and found["output_columns"] == "customer, total"
    assert found["dvm_supported"] == "true" and "groups by" in found["operator_tree"]
    assert json.loads(found["refresh_timing_stats"])["samples"] == 2
    assert json.loads(found["amplification_stats"])["samples"] >= 1
    assert f'"{schema}.totals" -> "{schema}.top"' in found["dependency_graph_dot"]
    assert f'"{schema}.orders" -> "{schema}.totals"' in found["dependency_graph_dot"]
    with db.transaction():
        db.execute("SET TRANSACTION READ ONLY")
        assert "operator_tree" not in dict(rows(db, "SELECT property, value FROM pgtrickle.explain_st('totals')"))


def test_advice(db: psycopg.Connection, stream: Stream, totals: None) -> None:
    stream("recomputed", "SELECT id, now() AS seen FROM orders", mode="AUTO")
    mine = (
        "SELECT pgt_name, recommended_mode, confidence FROM pgtrickle.recommend_refresh_mode() "
        "WHERE pgt_schema = current_schema() ORDER BY 1"
    )
    assert rows(db, mine) == [("recomputed", "KEEP", "high"), ("totals", "KEEP", "low")]
    db.execute(
        "INSERT INTO pgtrickle.pgt_refresh_history (pgt_id, start_time, end_time, action, status, initiated_by, "
        "changes_read, rows_inserted, rows_deleted) SELECT s.pgt_id, now() - interval '5 s', now(), "
        "'DIFFERENTIAL', 'COMPLETED', "
        "'SCHEDULER', 10, 1, 1 FROM pgtrickle.pgt_stream_tables s, generate_series(1, 30) "
        "WHERE s.pgt_name = 'totals' AND s.pgt_schema = current_schema()"
    )
    (advice,) = rows(
        db,
        "SELECT recommended_mode, confidence, signals ->> 'diff_count' FROM pgtrickle.recommend_refresh_mode('totals')",
    )
    assert advice == ("AUTO", "high", "30")
