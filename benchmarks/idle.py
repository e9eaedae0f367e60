"""What does a cycle cost when nothing has changed?"""

from __future__ import annotations

import threading

from benchmarks.report import Answer, Grid, Target
from benchmarks.shop import open_shop
from benchmarks.stack import Bench
from benchmarks.timing import median, ms, percentile, timed
from runnel.engine import Engine


def run(bench: Bench) -> Answer:
    """Once as a client asks for it, once inside an engine, as the scheduler does it."""
    size = 10_000 if bench.quick else 1_000_000
    rounds = 30 if bench.quick else 300
    shop = open_shop(bench, size)
    bench.start_engine()
    name = f"{shop.schema}.unchanged"
    bench.client.create_stream_table(name, shop.revenue, "@yearly", "DIFFERENTIAL")
    bench.client.refresh(name)
    known = len(bench.client.history(name, rounds))
    asked = [timed(lambda: bench.client.refresh(name)) for _ in range(rounds)]
    # What was done since comes first; of calls that found nothing to do there is no line.
    since = len(bench.client.history(name, known + rounds)) - known
    jobs = sum(r.spark_jobs or 0 for r in bench.client.history(name, since)) if since else 0
    bench.stop_engine()
    inside = _inside(bench, name, rounds)
    bench.start_engine()
    bench.client.drop_stream_table(name)
    rows = [
        ["in the engine", ms(median(inside)), ms(percentile(inside, 0.95)), "0"],
        ["refresh_stream_table, seen by its caller", ms(median(asked)), ms(percentile(asked, 0.95)), str(jobs)],
    ]
    return Answer(
        question="A cycle with no changes",
        setup=(
            f"revenue_by_day over {size:,} orders, nothing written in between; {rounds} times. A caller's session sees "
            "by itself that nothing waits, and does not ask the engine."
        ),
        grid=Grid(("cycle", "p50", "p95", "Spark jobs"), rows),
        targets=(
            Target("a cycle with no changes", "at most 10 ms", ms(median(inside)), median(inside) <= 10),
            Target("refresh_stream_table with nothing to do", "at most 10 ms", ms(median(asked)), median(asked) <= 10),
            Target("Spark jobs of a cycle with no changes", "none", str(jobs), jobs == 0),
        ),
    )


def _inside(bench: Bench, name: str, rounds: int) -> list[float]:
    """Milliseconds of the scheduler's own call, in an engine of this process."""
    with Engine(bench.dsn, master="local[1]") as engine:
        working = threading.Thread(target=engine.run, daemon=True)
        working.start()
        # An answer says that there are workers.
        assert bench.client.verify(name).ok
        operations = engine.operations()
        registry = operations.refresher.registry
        registry.reload(operations.conn)
        members = [i for i, row in registry.rows.items() if row.pgt_name == "unchanged"]
        operations.refresher.refresh_unit(members, "SCHEDULER")
        spent = [timed(lambda: operations.refresher.refresh_unit(members, "SCHEDULER")) for _ in range(rounds)]
        engine.stop()
        working.join()
        return spent
