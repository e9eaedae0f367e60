"""How long does a FULL refresh take, compared with the query in PostgreSQL?"""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from benchmarks.report import Answer, Grid
from benchmarks.stack import Bench
from benchmarks.timing import STEPS, ms
from runnel.bench.measure import Measurement
from runnel.bench.results import QueryResult, Results, geometric_mean
from runnel.bench.tpch import workload
from runnel.bench.workload import in_schema, open_workload
from runnel.client import connect


def run(bench: Bench) -> Answer:
    """At the size of the page."""
    return measure(bench, 0.01, (1, 3, 6)) if bench.quick else measure(bench, 1.0)


def measure(bench: Bench, scale: float, numbers: Collection[int] = ()) -> Answer:
    """Build all queries as stream tables, time them in PostgreSQL, then recompute each of them twice."""
    load = workload(scale, numbers)
    dsn = in_schema(bench.dsn, load.schema)
    with psycopg.connect(dsn, autocommit=True) as conn, connect(dsn) as client:
        open_workload(conn, load, bench.say)
        bench.start_engine()
        measured = Measurement(load, client, conn, Results(load.title, load.about))
        for step in (measured.create, measured.postgres, measured.full):
            bench.say(f"TPC-H: {step.__name__}")
            step()
        for name in load.queries:
            client.drop_stream_table(f"{load.schema}.{name}")
        conn.execute(f"DROP SCHEMA {load.schema} CASCADE".encode())
    return answer(measured.results, scale)


def answer(results: Results, scale: float) -> Answer:
    """Per query, and the geometric mean."""
    queries = [each for each in results.queries.values() if not each.error]
    rows = [
        [q.name, ms(q.postgres_ms), ms(q.full.ms), f"{_ratio(q):.2f}x", ms(q.create_ms or 0), f"{q.rows or 0:,}"]
        for q in queries
        if q.full and q.postgres_ms
    ]
    mean = geometric_mean(_ratio(q) for q in queries)
    rows.append(["geometric mean", "", "", f"{mean:.2f}x" if mean else "-", "", ""])
    which = "All 22 queries" if len(results.queries) == 22 else f"{len(results.queries)} queries"
    return Answer(
        question=f"FULL refresh of TPC-H at scale {scale:g}, compared with PostgreSQL",
        setup=(
            f"{which} as stream tables. PostgreSQL: the query itself, median of three (of one above 5 s). FULL: "
            "everything is recomputed and the rows that differ are written, the faster of two; it keeps the state "
            "that later differential refreshes need. Every result was compared with its query."
        ),
        grid=Grid(("query", "PostgreSQL", "FULL", "ratio", "first build", "rows"), rows),
        breakdown=_steps(queries),
        notes=tuple(f"{name} took no part: {why}" for name, why in results.failed.items()),
    )


def _ratio(query: QueryResult) -> float:
    assert query.full is not None
    assert query.postgres_ms
    return query.full.ms / query.postgres_ms


def _steps(queries: list[QueryResult]) -> Grid:
    rows = []
    for query in queries:
        assert query.full is not None
        spent = [query.full.timings.get(step, 0.0) for step in STEPS]
        rest = query.full.ms - sum(spent)
        rows.append([query.name, *(f"{value:.0f}" for value in (*spent, rest, query.full.ms))])
    return Grid(("query", *STEPS, "rest", "whole"), rows)
