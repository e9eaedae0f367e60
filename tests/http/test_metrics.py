"""What Prometheus reads, by its own parser: figures that follow the catalog, counters that never fall, few labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from runnel.http.metrics import figures, refreshes
from runnel.http.server import HttpServer
from tests.iceberg.clients import serving
from tests.lake.duck import Duck

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

TABLE = """
INSERT INTO pgtrickle.pgt_stream_tables (pgt_relid, pgt_schema, pgt_name, owner, original_query, defining_query,
    schedule, refresh_mode, effective_mode, status, is_populated, frontier, data_timestamp, last_refresh_at)
SELECT 900000 + i, 'public', 't' || i, current_user::regrole, 'SELECT 1', 'SELECT 1', '5s', 'AUTO', 'DIFFERENTIAL',
       'ACTIVE', true, jsonb_build_object('postgres', pg_current_snapshot()::text), now() - interval '1 min', now()
FROM generate_series(%s::int, %s::int) i
"""
REFRESH = """
INSERT INTO pgtrickle.pgt_refresh_history (refresh_id, pgt_id, start_time, end_time, action, status, initiated_by,
    changes_read, rows_inserted, rows_deleted, timings, work)
OVERRIDING SYSTEM VALUE
SELECT %(id)s, pgt_id, now() + interval '1 s', now() + interval '1.2 s', 'DIFFERENTIAL', %(status)s, 'SCHEDULER',
       10, 3, 1,
       '{"read": 120.5, "merge": 30}', '{"plans": 1, "driver_rows": 13}'
FROM pgtrickle.pgt_stream_tables WHERE pgt_name = %(name)s
"""


def scraped(url: str) -> Samples:
    time.sleep(1.05)  # an answer is shared for a second
    answer = requests.get(f"{url}/metrics", timeout=30)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


@pytest.fixture
def http(dsn: str, tmp_path: Path) -> Iterator[HttpServer]:
    with serving(dsn, tmp_path / "http") as server:
        yield server


def test_figures_follow_the_catalog(db: psycopg.Connection, http: HttpServer) -> None:
    db.execute(TABLE, (1, 2))
    db.execute("CREATE TABLE source (id int)")
    db.execute("SELECT pgtrickle._capture_install('source'::regclass, '{id}')")
    db.execute("INSERT INTO source SELECT generate_series(1, 7)")
    db.execute(
        "INSERT INTO pgtrickle.pgt_dependencies (pgt_id, source_relid, source_type, source_name) "
        "SELECT pgt_id, 'source'::regclass, 'TABLE', 'public.source' FROM pgtrickle.pgt_stream_tables "
        "WHERE pgt_name = 't1'"
    )
    db.execute("UPDATE pgtrickle.pgt_stream_tables SET status = 'SUSPENDED' WHERE pgt_name = 't2'")
    found = scraped(http.url)
    assert value(found, "runnel_engine_up") == 0 and value(found, "runnel_engine_stream_tables") == 2
    assert value(found, "runnel_stream_table_pending_changes", stream_table="public.t1") == 7
    assert value(found, "runnel_stream_table_period_seconds", stream_table="public.t1") == 5
    staleness = value(found, "runnel_stream_table_staleness_seconds", stream_table="public.t1")
    assert staleness is not None and 59 < staleness < 120
    assert (
        value(found, "runnel_stream_table_info", stream_table="public.t2", status="SUSPENDED", mode="DIFFERENTIAL") == 1
    )
    size = value(found, "runnel_buffer_bytes", source="public.source")
    assert size is not None and size > 0
    assert (value(found, "runnel_process_resident_bytes", process="engine") or 0) > 1_000_000


def test_tests_are_told_by_their_counts(db: psycopg.Connection, http: HttpServer) -> None:
    db.execute(TABLE, (1, 1))
    db.execute(
        "INSERT INTO pgtrickle.pgt_tests (pgt_id, position, name, definition, on_violation, status, violations) "
        "SELECT pgt_id, n, 'test ' || n, '{}', 'hold', (ARRAY['violated', 'error', 'ok'])[n], (ARRAY[4, 0, 0])[n] "
        "FROM pgtrickle.pgt_stream_tables, generate_series(1, 3) n"
    )
    db.execute(
        "INSERT INTO pgtrickle.pgt_sinks (pgt_id, sink, lake, lake_schema, view_name, held_since) "
        "SELECT pgt_id, 'ducklake', 'ducklake', 'main', 't1', 'epoch' FROM pgtrickle.pgt_stream_tables"
    )
    found = scraped(http.url)
    labels = {"stream_table": "public.t1", "on_violation": "hold"}
    assert value(found, "runnel_test_violations", test="test 1", **labels) == 4
    assert value(found, "runnel_test_error", test="test 1", **labels) == 0
    assert value(found, "runnel_test_error", test="test 2", **labels) == 1
    assert value(found, "runnel_test_violations", test="test 3", **labels) == 0
    assert value(found, "runnel_stream_table_held_timestamp_seconds", stream_table="public.t1") == 0


def test_refreshes_are_counted_once_and_counters_never_fall(db: psycopg.Connection, http: HttpServer) -> None:
    db.execute(TABLE, (1, 1))
    db.execute(REFRESH, {"id": 5, "status": "COMPLETED", "name": "t1"})
    done = {"stream_table": "public.t1", "action": "DIFFERENTIAL"}
    first = scraped(http.url)
    assert value(first, "runnel_refreshes_total", **done, status="COMPLETED") == 1
    assert value(first, "runnel_refresh_rows_total", stream_table="public.t1", change="inserted") == 3
    assert value(first, "runnel_refresh_step_seconds_total", stream_table="public.t1", step="read") == 0.1205
    assert value(first, "runnel_refresh_duration_seconds_bucket", action="DIFFERENTIAL", le="0.25") == 1
    assert value(first, "runnel_refresh_duration_seconds_bucket", action="DIFFERENTIAL", le="0.1") == 0
    assert value(first, "runnel_spark_work_total", what="driver_rows") == 13
    # One that began earlier commits later, another fails, and what was counted is pruned.
    db.execute(REFRESH, {"id": 3, "status": "COMPLETED", "name": "t1"})
    db.execute(REFRESH, {"id": 6, "status": "FAILED", "name": "t1"})
    db.execute("DELETE FROM pgtrickle.pgt_refresh_history WHERE refresh_id = 5")
    again = scraped(http.url)
    assert value(again, "runnel_refreshes_total", **done, status="COMPLETED") == 2
    assert value(again, "runnel_refreshes_total", **done, status="FAILED") == 1
    assert value(scraped(http.url), "runnel_refreshes_total", **done, status="COMPLETED") == 2


def test_lakes_are_measured(db: psycopg.Connection, http: HttpServer, lake: str, duck: Callable[..., Duck]) -> None:
    client = duck(lake)
    client.run("CREATE TABLE t AS SELECT range AS id FROM range(5000)")
    client.run("DELETE FROM t WHERE id % 10 = 0")
    found = scraped(http.url)
    assert (
        value(found, "runnel_lake_files", lake="lake") == 1
        and value(found, "runnel_lake_small_files", lake="lake") == 1
    )
    assert (
        value(found, "runnel_lake_deleted_rows", lake="lake") == 500
        and value(found, "runnel_lake_tables", lake="lake") == 1
    )
    snapshots = value(found, "runnel_lake_snapshots", lake="lake")
    client.run("INSERT INTO t SELECT range FROM range(5000)")
    assert value(scraped(http.url), "runnel_lake_snapshots", lake="lake") == (snapshots or 0) + 1


def test_labels_are_bounded(db: psycopg.Connection, http: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST", 3)
    monkeypatch.setattr(refreshes, "MOST", 2)
    db.execute(TABLE, (1, 5))
    for i in range(1, 5):
        db.execute(REFRESH, {"id": i, "status": "COMPLETED", "name": f"t{i}"})
    for path in ("/nothing/1", "/nothing/2", "/iceberg/v1/config", "/healthz"):
        requests.get(http.url + path, timeout=10)
    found = scraped(http.url)
    tables = {dict(labels)["stream_table"] for name, labels in found if name == "runnel_stream_table_info"}
    assert len(tables) == 3 and value(found, "runnel_left_out", kind="stream_table") == 2
    counted = {dict(labels)["stream_table"] for name, labels in found if name == "runnel_refreshes_total"}
    assert len(counted) == 3 and refreshes.OTHERS in counted
    others = {"stream_table": refreshes.OTHERS, "action": "DIFFERENTIAL", "status": "COMPLETED"}
    assert value(found, "runnel_refreshes_total", **others) == 2
    parts = {dict(labels)["part"] for name, labels in found if name == "runnel_http_requests_total"}
    assert parts == {"page", "iceberg", "health"}


def test_health_needs_no_token_and_metrics_do(dsn: str, tmp_path: Path) -> None:
    with serving(dsn, tmp_path / "http", loopback_reads=False) as server:
        assert requests.get(f"{server.url}/healthz", timeout=10).text == "ok\n"
        ready = requests.get(f"{server.url}/readyz", timeout=10)
        assert (ready.status_code, ready.json()) == (503, {"database": True, "engine": False})
        for path in ("/metrics", "/iceberg/v1/lake/namespaces/x/tables/healthz", "/healthz/", "//healthz"):
            assert requests.get(server.url + path, timeout=10).status_code == 401, path
        token = (tmp_path / "http" / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        assert "runnel_engine_up 0.0" in requests.get(f"{server.url}/metrics", headers=headers, timeout=10).text
        foreign = requests.get(f"{server.url}/healthz", headers={"Host": "evil.example"}, timeout=10)
        assert foreign.status_code == 403


@pytest.mark.slow
def test_a_scrape_of_500_stream_tables_is_cheap(db: psycopg.Connection, http: HttpServer) -> None:
    """With a source each, and 100,000 refreshes in the history."""
    db.execute(TABLE, (1, 500))
    db.execute("DO $$ BEGIN FOR i IN 1..100 LOOP EXECUTE format('CREATE TABLE s%s (id int)', i); "
               "PERFORM pgtrickle._capture_install(format('s%s', i)::regclass, '{id}'); END LOOP; END $$")  # fmt: skip
    db.execute(
        "INSERT INTO pgtrickle.pgt_dependencies (pgt_id, source_relid, source_type, source_name) "
        "SELECT pgt_id, ('s' || (pgt_id % 100 + 1))::regclass, 'TABLE', 's' FROM pgtrickle.pgt_stream_tables"
    )
    db.execute(
        "INSERT INTO pgtrickle.pgt_refresh_history (pgt_id, start_time, end_time, action, status, initiated_by, "
        "timings) SELECT s.pgt_id, now() - interval '1 h', now(), 'DIFFERENTIAL', 'COMPLETED', 'SCHEDULER', "
        "'{\"read\": 1}' "
        "FROM generate_series(1, 200), pgtrickle.pgt_stream_tables s"
    )
    db.execute("ANALYZE pgtrickle.pgt_refresh_history, pgtrickle.pgt_stream_tables, pgtrickle.pgt_dependencies")
    scraped(http.url)
    times = []
    for _ in range(5):
        time.sleep(1.05)
        began = time.perf_counter()
        text = requests.get(f"{http.url}/metrics", timeout=30).text
        times.append(time.perf_counter() - began)
    assert text.count("runnel_stream_table_staleness_seconds{") == 500
    print(f"scrape of 500 stream tables: {sorted(round(t * 1000) for t in times)} ms, {len(text) / 1000:.0f} kB")
    assert min(times) < 1.0
