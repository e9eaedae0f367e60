"""What does watching a lake cost those who commit to it?"""

from __future__ import annotations

import contextlib

from benchmarks.report import Answer, Grid, Target
from benchmarks.stack import Bench
from benchmarks.timing import median, ms, percentile, timed
from runnel.demo.duck import open_duckdb

SCHEMAS = {"plain": "ducklake_plain", "watched": "ducklake_watched"}
STATEMENTS = {
    "insert of 1,000 rows, a file": "INSERT INTO {lake}.t SELECT range FROM range(1000)",
    "insert of 1 row, inlined": "INSERT INTO {lake}.t VALUES (1)",
}
LIMIT = 1.2


def run(bench: Bench) -> Answer:
    """Two lakes of one database take turns; one of them is watched."""
    rounds = 15 if bench.quick else 100
    bench.start_engine()
    for kind, schema in SCHEMAS.items():
        bench.client.attach_lake(kind, schema, data_path=f"{bench.lake}_{kind}", create=True)
    # The cost of capture, not that of an engine which works beside: that is the refresh's own.
    bench.client.watch_lake("watched", schedule="10s")
    with contextlib.ExitStack() as stack:
        ducks = {
            kind: stack.enter_context(contextlib.closing(open_duckdb(bench.dsn, catalog_schema=schema)))
            for kind, schema in SCHEMAS.items()
        }
        for duck in ducks.values():
            duck.execute("CREATE TABLE lake.t (id BIGINT)")
        spent: dict[str, dict[str, list[float]]] = {what: {kind: [] for kind in ducks} for what in STATEMENTS}
        for round_ in range(rounds + 3):
            for what, text in STATEMENTS.items():
                for kind in ducks if round_ % 2 else reversed(ducks):
                    once = timed(lambda kind=kind, text=text: ducks[kind].execute(text.format(lake="lake")))  # type: ignore[misc]
                    if round_ >= 3:
                        spent[what][kind].append(once)
    assert bench.client.verify("watched_watch.files_per_table").ok
    bench.client.unwatch_lake("watched")
    for kind in SCHEMAS:
        bench.client.detach_lake(kind)
    rows, targets = [], []
    for what, found in spent.items():
        plain, watched = (median(found[kind]) for kind in SCHEMAS)
        late = [ms(percentile(found[kind], 0.95)) for kind in SCHEMAS]
        ratio = watched / plain
        rows.append([what, ms(plain), ms(watched), f"{ratio:.2f}x", *late])
        targets.append(Target(f"watched / plain, {what}", f"at most {LIMIT}x", f"{ratio:.2f}x", ratio <= LIMIT))
    return Answer(
        question="DuckDB's commits to a lake that is watched",
        setup=(
            "Two lakes in one database, one of them watched by `runnel lake watch` with schedule `10s`. A DuckDB "
            f"client for each, taking turns, a commit per statement; {rounds} of each. The engine "
            "runs and refreshes the watch."
        ),
        grid=Grid(("statement", "plain, p50", "watched, p50", "ratio", "plain, p95", "watched, p95"), rows),
        targets=targets,
    )
