"""All of TPC-H at a tiny scale: every query by deltas, and equal to PostgreSQL after every round of changes."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

import runnel
from runnel.bench.measure import Measurement
from runnel.bench.results import Results
from runnel.bench.tpch import workload
from runnel.bench.workload import in_schema, open_workload

SCALE = 0.002
BY_TASKS = (1, 3, 13, 18)
"""Groups of one table, joins, an outer join, a subquery with groups."""


@pytest.mark.slow
def test_all_queries_are_maintained_by_deltas(dsn: str, engine: runnel.Engine) -> None:
    tpch = workload(SCALE, shares=(2.0,))
    assert list(tpch.queries) == [f"q{n:02d}" for n in range(1, 23)]
    at = in_schema(dsn, tpch.schema)
    results = Results(tpch.title, tpch.about)
    with psycopg.connect(at, autocommit=True) as conn, contextlib.closing(runnel.connect(at)) as client:
        open_workload(conn, tpch, lambda _: None)
        measurement = Measurement(tpch, client, conn, results)
        measurement.create()
        everything, small_tables = tpch.rounds[1:]
        measurement.round(everything, 0, seed=1)
        measurement.round(small_tables, 0, seed=2)
        actions = conn.execute("SELECT DISTINCT action, status FROM pgtrickle.pgt_refresh_history").fetchall()
    assert not results.failed
    assert set(actions) == {("INITIAL", "COMPLETED"), ("DIFFERENTIAL", "COMPLETED")}
    # Created and after each round.
    assert {each.verified for each in results.queries.values()} == {3}
    # Every query reads something that changed, and for most of them it matters.
    samples = [each.rounds[everything.name][0] for each in results.queries.values()]
    assert all(sample.changes and sample.rows_read for sample in samples)
    assert sum(bool(sample.inserted or sample.deleted) for sample in samples) >= 12


@pytest.mark.slow
def test_some_queries_by_tasks(dsn: str, engine: runnel.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line between small and large at one row; `make soak` runs all of them so."""
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1)
    tpch = workload(SCALE, BY_TASKS, shares=(2.0,))
    at = in_schema(dsn, tpch.schema)
    results = Results(tpch.title, tpch.about)
    with psycopg.connect(at, autocommit=True) as conn, contextlib.closing(runnel.connect(at)) as client:
        open_workload(conn, tpch, lambda _: None)
        measurement = Measurement(tpch, client, conn, results)
        measurement.create()
        measurement.round(tpch.rounds[1], 0, seed=3)
    assert not results.failed
    assert {each.verified for each in results.queries.values()} == {2}
