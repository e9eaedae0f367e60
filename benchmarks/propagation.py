"""How long does one committed row take through many stream tables, by schedule and by hand?"""

from __future__ import annotations

from benchmarks.report import Answer, Grid, Target
from benchmarks.stack import Bench
from benchmarks.timing import median, ms, percentile, timed
from runnel.bench import dag

BEFORE = {"chain of 10": 115.0, "3 levels x 20": 608.0, "diamond": 259.0}
"""Milliseconds before plans were prepared; 800 for the chain by hand."""

AT_MOST = {"chain of 10": 600.0, "3 levels x 20": 1500.0, "diamond": 150.0}


def run(bench: Bench) -> Answer:
    """The shapes of `runnel bench dag`, and the chain once more with a call for each of its tables."""
    bench.start_engine()
    runs = 3 if bench.quick else 20
    rows, targets = [], []
    for shape in (dag.chain(), dag.layers(), dag.diamond()):
        spent = [1000 * s for s in dag.travel(bench.client, bench.conn, shape, runs=runs).seconds]
        limit = AT_MOST[shape.name]
        rows.append([f"{shape.name}, by schedule", ms(median(spent)), ms(percentile(spent, 0.95)), _before(shape.name)])
        targets.append(Target(f"{shape.name}, p50", f"at most {ms(limit)}", ms(median(spent)), median(spent) <= limit))
    by_hand = _by_hand(bench, runs)
    rows.append(["chain of 10, each by hand", ms(median(by_hand)), ms(percentile(by_hand, 0.95)), ms(800)])
    targets.append(Target("chain of 10 by hand", "at most 300 ms", ms(median(by_hand)), median(by_hand) <= 300))
    return Answer(
        question="One row through many stream tables",
        setup=(
            f"From the commit of one row to the commit of the last stream table, schedule `1s`, {runs} times; and the "
            "chain with ten calls of `refresh_stream_table`, one for each of its tables. Before: what it took while "
            "Spark planned each refresh anew."
        ),
        grid=Grid(("shape", "p50", "p95", "before"), rows),
        targets=tuple(targets),
    )


def _before(shape: str) -> str:
    return ms(BEFORE[shape])


def _by_hand(bench: Bench, runs: int) -> list[float]:
    """Milliseconds until a row has passed a chain that nobody refreshes but the caller."""
    tables = dag.open_chain(bench.client, bench.conn)

    def refresh_all() -> None:
        for name in tables:
            bench.client.refresh(name)

    spent = []
    for number in range(5 + runs):
        bench.conn.execute("INSERT INTO dag.base (grp, amount) VALUES (%s, 7)", (number % 100,))
        spent.append(timed(refresh_all))
    for name in reversed(tables):
        assert bench.client.verify(name).ok
        bench.client.drop_stream_table(name)
    return spent[5:]
