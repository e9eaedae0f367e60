"""TPC-DS: every query has a plan by deltas, and some are run at a tiny scale."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

import runnel
from runnel.bench.measure import Measurement
from runnel.bench.results import Results
from runnel.bench.tpcds import workload
from runnel.bench.workload import in_schema, open_workload
from runnel.sql.compile import compile_query

SCALE = 0.01
"""The smallest at which dsdgen ends."""
CHOSEN = (3, 8, 28, 38, 62, 97, 98)
"""Of each kind one: star join, substring, one row with LIMIT, INTERSECT, CASE sums, FULL JOIN, windows."""


@pytest.mark.slow
def test_all_99_queries_have_a_plan_by_deltas(dsn: str) -> None:
    tpcds = workload(SCALE)
    assert list(tpcds.queries) == [f"q{n:02d}" for n in range(1, 100)]
    with psycopg.connect(in_schema(dsn, tpcds.schema), autocommit=True) as conn:
        open_workload(conn, tpcds, lambda _: None)
        reasons = {}
        for name, query in tpcds.queries.items():
            compiled = compile_query(conn, query, settings={"search_path": tpcds.schema})
            if compiled.plan is None:
                reasons[name] = compiled.reason
    assert reasons == {}


@pytest.mark.slow
def test_some_queries_follow_changes_by_deltas(dsn: str, engine: runnel.Engine) -> None:
    tpcds = workload(SCALE, CHOSEN, shares=(2.0,))
    at = in_schema(dsn, tpcds.schema)
    results = Results(tpcds.title, tpcds.about)
    with psycopg.connect(at, autocommit=True) as conn, contextlib.closing(runnel.connect(at)) as client:
        open_workload(conn, tpcds, lambda _: None)
        measurement = Measurement(tpcds, client, conn, results)
        measurement.create()
        _, everything, small = tpcds.rounds
        measurement.round(everything, 0, seed=1)
        measurement.round(small, 0, seed=2)
        actions = conn.execute("SELECT DISTINCT action, status FROM pgtrickle.pgt_refresh_history").fetchall()
    assert not results.failed
    assert set(actions) == {("INITIAL", "COMPLETED"), ("DIFFERENTIAL", "COMPLETED")}
    assert {each.verified for each in results.queries.values()} == {3}
    samples = [each.rounds[everything.name][0] for each in results.queries.values()]
    assert all(sample.changes for sample in samples)
    assert any(sample.inserted or sample.deleted for sample in samples)
