"""Nexmark over few events: every query by deltas, and equal to PostgreSQL after new events and corrections."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

import runnel
from runnel.bench.measure import Measurement
from runnel.bench.nexmark import workload
from runnel.bench.results import Results
from runnel.bench.workload import in_schema, open_workload

SOME = (2, 3, 4, 7, 12, 17, 19)
"""A filter, joins, groups over groups, a window function; the rest are variations."""


BY_TASKS = (3, 4, 19)


@pytest.mark.slow
def test_queries_follow_new_events_and_corrections(dsn: str, engine: runnel.Engine) -> None:
    _follow(dsn, SOME)


@pytest.mark.slow
def test_some_queries_by_tasks(dsn: str, engine: runnel.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line between small and large at one row; `make soak` runs all of them so."""
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1)
    _follow(dsn, BY_TASKS)


def _follow(dsn: str, numbers: tuple[int, ...]) -> None:
    nexmark = workload(2_000, numbers, shares=(2.0,))
    assert len(nexmark.queries) == len(numbers)
    at = in_schema(dsn, nexmark.schema)
    results = Results(nexmark.title, nexmark.about)
    with psycopg.connect(at, autocommit=True) as conn, contextlib.closing(runnel.connect(at)) as client:
        open_workload(conn, nexmark, lambda _: None)
        measurement = Measurement(nexmark, client, conn, results)
        measurement.create()
        for seed, round_ in enumerate(nexmark.rounds):
            measurement.round(round_, 0, seed)
    assert not results.failed
    assert {each.verified for each in results.queries.values()} == {3}
    assert all(each.rounds["all 2 %"][0].changes for each in results.queries.values())
