"""How long does a FULL refresh over a lake table take, compared with DuckDB?"""

from __future__ import annotations

from benchmarks import lake_source
from benchmarks.lake import duckdb_client
from benchmarks.report import Answer, Grid
from benchmarks.stack import Bench
from benchmarks.timing import breakdown, count, median, ms, timed, timed_refresh
from runnel.client import Refresh


def run(bench: Bench) -> Answer:
    """At the size of the page."""
    return measure(bench, 200_000, 1) if bench.quick else measure(bench, 50_000_000, 3)


def measure(bench: Bench, size: int, rounds: int) -> Answer:
    """The query of the other lake benchmark: a join of two lake tables, grouped."""
    bench.start_engine()
    name, query = lake_source.result_of(size), lake_source.query_of(size)
    full: list[tuple[float, Refresh]] = []
    with duckdb_client(bench) as duck:
        lake_source.make_tables(bench, duck, (size,))
        built = timed(lambda: bench.client.create_stream_table(name, query, "@yearly", "FULL"))
        theirs = []
        for round_ in range(rounds):
            lake_source.insert(duck, size, round_)
            taken = timed_refresh(bench.client, name)
            assert taken[1].action == "FULL", taken[1]
            full.append(taken)
            theirs.append(timed(lambda: duck.execute(query).fetchall()))
        assert lake_source.same(bench, duck, size), f"{name} differs from DuckDB's own answer"
        bench.client.drop_stream_table(name)
        lake_source.drop_tables(duck, (size,))
    ours, duckdb = median([spent for spent, _ in full]), median(theirs)
    rows = [
        ["first build", ms(built), f"{built / duckdb:.1f}x"],
        ["FULL refresh", ms(ours), f"{ours / duckdb:.1f}x"],
        ["DuckDB, the query", ms(duckdb), "1.0x"],
    ]
    return Answer(
        question=f"FULL on Spark over {count(size)} rows of a lake table, compared with DuckDB",
        setup=(
            "Events in Parquet, joined with products of the same lake, grouped by category and day. DuckDB evaluates "
            f"the same query over the same files; median of {rounds}."
        ),
        grid=Grid(("work", "time", "ratio"), rows),
        breakdown=breakdown("refresh", {"FULL": full}),
    )
