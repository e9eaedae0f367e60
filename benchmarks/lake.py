"""The lake under measurement: real DuckDB as its other client, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.stack import Bench
from runnel.demo.duck import open_duckdb

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

POLL_SECONDS = 0.02


@contextlib.contextmanager
def duckdb_client(bench: Bench) -> Iterator[DuckDBPyConnection]:
    """DuckDB with the bench's lake attached as `lake`, and PostgreSQL as `live`."""
    with contextlib.closing(open_duckdb(bench.dsn)) as duck:
        yield duck


@contextlib.contextmanager
def watching(dsn: str, query: str, enough: int) -> Iterator[multiprocessing.connection.Connection]:
    """A process of its own that asks DuckDB for a number until it is high enough.

    It sends `ready`, and at the end all (moment, number) at which the number had changed. Moments are those of the
    machine's monotonic clock, which all processes share.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_watch, args=(dsn, query, enough, there), daemon=True)
    process.start()
    try:
        yield here
    finally:
        process.terminate()
        process.join(10)


def _watch(dsn: str, query: str, enough: int, pipe: Any) -> None:
    with contextlib.closing(open_duckdb(dsn)) as duck:
        seen: list[tuple[float, int]] = []
        highest = 0
        pipe.send("ready")
        while highest < enough and not pipe.poll():
            found = duck.execute(query).fetchone()
            now = time.perf_counter()
            number = int(found[0] or 0) if found else 0
            if number > highest:
                highest = number
                seen.append((now, number))
            time.sleep(POLL_SECONDS)
        pipe.send(seen)
