"""How fast are large changes published in the lake, and what does that take of the engine's memory?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from benchmarks.report import Answer, Grid
from benchmarks.shop import open_shop
from benchmarks.stack import Bench
from benchmarks.timing import count, timed_refresh


def run(bench: Bench) -> Answer:
    """Update two thirds of a published table, then delete most of it, in every mode."""
    size = 100_000 if bench.quick else 1_500_000
    shop = open_shop(bench, size)
    bench.start_engine()
    rows = []
    for mode in ("merge", "append", "replace"):
        source, name = f"{shop.schema}.changing", f"{shop.schema}.changing_{mode}"
        bench.conn.execute(f"CREATE TABLE {source} AS SELECT * FROM {shop.schema}.orders".encode())
        bench.client.create_stream_table(
            name, f"SELECT * FROM {source}", "@yearly", "DIFFERENTIAL", sink="ducklake", ducklake_sink_mode=mode
        )
        for label, change in (
            ("two thirds updated", f"UPDATE {source} SET quantity = quantity + 1 WHERE id % 3 > 0"),
            ("nine tenths deleted", f"DELETE FROM {source} WHERE id % 10 > 0"),
        ):
            bench.conn.execute(change.encode())
            with _growth(bench) as grown:
                whole, refresh = timed_refresh(bench.client, name)
            timings = refresh.timings or {}
            published = timings.get("publish", 0.0) + timings.get("upload", 0.0)
            # Mode replace writes what is there afterwards, the others what has changed.
            moved = (
                _rows(bench, name) if mode == "replace" else (refresh.rows_inserted or 0) + (refresh.rows_deleted or 0)
            )
            rows.append(
                [
                    f"{mode}, {label}",
                    count(moved),
                    f"{published / 1000:.1f} s",
                    f"{moved / published * 1000:,.0f}",
                    f"{whole / 1000:.1f} s",
                    f"{grown[0]:.0f} MB",
                ]  # fmt: skip
            )
        bench.client.drop_stream_table(name)
        bench.conn.execute(f"DROP TABLE {source}".encode())
    return Answer(
        question=f"Large changes of a {count(size)}-row stream table in the lake",
        setup=(
            f"All columns of {count(size)} orders; an updated row is two changes. The changes are published inside the "
            "refresh's transaction, in batches. Mode merge also finds the rows that go in the lake's files, and "
            "remembers where the new ones are. Beside it the whole refresh, and by how much the engine's own process "
            "grew in it at most."
        ),
        grid=Grid(("mode, change", "rows", "published in", "rows per second", "whole refresh", "growth"), rows),
    )


def _rows(bench: Bench, name: str) -> int:
    row = bench.conn.execute(f"SELECT count(*) FROM {name}".encode()).fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def _growth(bench: Bench) -> Iterator[list[float]]:
    """The most megabytes that the engine's process had above what it has now."""
    assert bench.engine is not None
    process, done = psutil.Process(bench.engine.pid), threading.Event()
    before = process.memory_info().rss
    grown = [0.0]

    def look() -> None:
        while not done.wait(0.02):
            grown[0] = max(grown[0], (process.memory_info().rss - before) / 2**20)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield grown
    finally:
        done.set()
        looking.join()
