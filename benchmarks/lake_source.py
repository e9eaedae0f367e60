"""Does a refresh over a lake table cost what changed, or what the table holds?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.lake import duckdb_client
from benchmarks.report import Answer, Grid, Target
from benchmarks.stack import Bench
from benchmarks.timing import breakdown, count, median, ms, timed, timed_refresh
from runnel.client import Refresh

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

DELTA = 10_000
SCATTERED = 1_000
PRODUCTS = 2_000
CATEGORIES = 12
DAYS = 365

# Evaluated by Runnel over `lake.*` and by DuckDB over the same names.
QUERY = """
SELECT p.category, e.day, SUM(e.amount) AS revenue, COUNT(*) AS events
FROM lake.{table} e JOIN lake.bench_products p ON p.id = e.product_id
WHERE e.kind <> 'test'
GROUP BY p.category, e.day
"""

_EVENTS = f"""
SELECT i AS id, DATE '2025-01-01' + (hash(i) % {DAYS})::INT AS day, 1 + (hash(i + 1) % {PRODUCTS})::INT AS product_id,
       ['view', 'buy', 'return', 'test'][1 + (i % 4)::INT] AS kind,
       ((hash(i + 2) % 10000) / 100)::DECIMAL(10, 2) AS amount
FROM range({{first}}, {{last}}) t(i)
"""


def run(bench: Bench) -> Answer:
    """Sizes take turns for the deltas; what recomputes everything goes last."""
    sizes = (100_000, 1_000_000) if bench.quick else (1_000_000, 10_000_000, 50_000_000)
    warm, rounds, whole_rounds = (1, 3, 1) if bench.quick else (3, 15, 1)
    bench.start_engine()
    with duckdb_client(bench) as duck:
        make_tables(bench, duck, sizes)
        for size in sizes:
            bench.client.create_stream_table(result_of(size), query_of(size), "@yearly", "DIFFERENTIAL")
        taken = _deltas(bench, duck, sizes, warm, rounds)
        read = {size: _lake_io(bench, size) for size in sizes}
        scattered = {size: _scattered_deletes(bench, duck, size, whole_rounds) for size in sizes}
        recomputed = {size: _recompute(duck, size, whole_rounds) for size in sizes}
        full = {size: _full(bench, duck, size, whole_rounds) for size in sizes}
        for size in sizes:
            assert same(bench, duck, size), f"{result_of(size)} differs from DuckDB's own answer"
            bench.client.drop_stream_table(result_of(size))
        drop_tables(duck, sizes)

    p50 = {size: median([spent for spent, _ in taken[size]]) for size in sizes}
    small, large = sizes[0], sizes[-1]
    rows = []
    for size in sizes:
        io = read[size]
        rows.append(
            [
                count(size),
                ms(p50[size]),
                f"{p50[size] / p50[small]:.2f}x",
                _files(io),
                _bytes(io),
                ms(recomputed[size]),
                ms(full[size]),
                f"{recomputed[size] / p50[size]:.1f}x",
                ms(scattered[size]),
            ]
        )
    ratio = p50[large] / p50[small]
    whole = "once" if whole_rounds == 1 else f"median of {whole_rounds}"
    return Answer(
        question=f"Refresh over a lake table for a {DELTA:,}-row delta",
        setup=(
            f"Events in Parquet written by DuckDB, joined with {PRODUCTS:,} products of the same lake and grouped by "
            f"category and day ({CATEGORIES * DAYS:,} groups). DuckDB inserts {DELTA:,} rows, then "
            f"`refresh_stream_table`; median of {rounds} after {warm} to warm up. Beside it: DuckDB evaluating the "
            "query over the whole lake, and a FULL refresh on Spark, which also writes the differences and the "
            f"state; {whole}. The last column is the bad case: {SCATTERED:,} rows deleted all over "
            "the table, so that every file is touched and has to be read for the values of the rows that went."
        ),
        grid=Grid(
            (
                "events",
                "refresh p50",
                f"p50 / {count(small)}",
                "files read",
                "bytes read",
                "DuckDB, whole",
                "FULL on Spark",
                "DuckDB / refresh",
                f"{count(SCATTERED)} deletes anywhere",
            ),
            rows,
        ),
        breakdown=breakdown("events", {count(s): taken[s] for s in sizes}),
        targets=(
            Target(f"p50 at {count(large)} / {count(small)} events", "at most 1.3", f"{ratio:.2f}", ratio <= 1.3),
        ),
    )


def make_tables(bench: Bench, duck: DuckDBPyConnection, sizes: tuple[int, ...]) -> None:
    duck.execute(
        f"CREATE TABLE lake.bench_products AS SELECT i::INT AS id, 'category ' || i % {CATEGORIES} AS category "
        f"FROM range(1, {PRODUCTS} + 1) t(i)"
    )
    for size in sizes:
        spent = timed(
            lambda size=size: duck.execute(  # type: ignore[misc]
                f"CREATE TABLE lake.{_table(size)} AS {_EVENTS.format(first=0, last=size)}"
            )
        )
        bench.say(f"a lake table with {size:,} events ({spent / 1000:.0f} s)")


def _deltas(
    bench: Bench, duck: DuckDBPyConnection, sizes: tuple[int, ...], warm: int, rounds: int
) -> dict[int, list[tuple[float, Refresh]]]:
    taken: dict[int, list[tuple[float, Refresh]]] = {size: [] for size in sizes}
    for round_ in range(warm + rounds):
        for size in sizes:
            insert(duck, size, round_)
            spent, refresh = timed_refresh(bench.client, result_of(size))
            assert refresh.action == "DIFFERENTIAL", refresh
            if round_ >= warm:
                taken[size].append((spent, refresh))
    return taken


def _scattered_deletes(bench: Bench, duck: DuckDBPyConnection, size: int, rounds: int) -> float:
    """Milliseconds of a refresh after deletes that touch every file."""
    spent = []
    for round_ in range(rounds):
        duck.execute(f"DELETE FROM lake.{_table(size)} WHERE id < {size} AND id % {size // SCATTERED} = {round_}")
        once, refresh = timed_refresh(bench.client, result_of(size))
        assert refresh.action == "DIFFERENTIAL", refresh
        spent.append(once)
    return median(spent)


def _lake_io(bench: Bench, size: int) -> dict[str, int]:
    """What the last refresh read of the lake."""
    row = bench.conn.execute(
        "SELECT lake_io FROM pgtrickle.get_refresh_history(%s) LIMIT 1", (result_of(size),)
    ).fetchone()
    return dict(row[0]) if row and row[0] else {}


def insert(duck: DuckDBPyConnection, size: int, round_: int) -> None:
    first = size + round_ * DELTA
    duck.execute(f"INSERT INTO lake.{_table(size)} {_EVENTS.format(first=first, last=first + DELTA)}")


def _recompute(duck: DuckDBPyConnection, size: int, rounds: int) -> float:
    query = query_of(size)
    return median([timed(lambda: duck.execute(query).fetchall()) for _ in range(rounds)])


def _full(bench: Bench, duck: DuckDBPyConnection, size: int, rounds: int) -> float:
    bench.client.alter_stream_table(result_of(size), refresh_mode="FULL")
    spent = []
    for round_ in range(rounds):
        insert(duck, size, 1_000 + round_)
        once, refresh = timed_refresh(bench.client, result_of(size))
        assert refresh.action == "FULL", refresh
        spent.append(once)
    return median(spent)


def same(bench: Bench, duck: DuckDBPyConnection, size: int) -> bool:
    """The stream table against DuckDB's own answer."""
    mine = bench.conn.execute(f"SELECT category, day, revenue, events FROM {result_of(size)}".encode()).fetchall()
    return set(mine) == set(duck.execute(query_of(size)).fetchall())


def _table(size: int) -> str:
    return f"events_{count(size).replace(' ', '').lower()}"


def drop_tables(duck: DuckDBPyConnection, sizes: tuple[int, ...]) -> None:
    for size in sizes:
        duck.execute(f"DROP TABLE lake.{_table(size)}")
    duck.execute("DROP TABLE lake.bench_products")


def query_of(size: int) -> str:
    return QUERY.format(table=_table(size))


def result_of(size: int) -> str:
    return f"public.by_{_table(size)}"


def _files(io: dict[str, int]) -> str:
    return f"{io.get('files', 0)}"


def _bytes(io: dict[str, int]) -> str:
    return f"{io.get('bytes', 0) / 1024:,.0f} KiB"
