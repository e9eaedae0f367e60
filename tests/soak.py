"""The oracle property for as long as you like: `python -m tests.soak --minutes 10 [--seed 1] [--tasks-above 1]`.

Starts its own PostgreSQL and Spark, replays random scenarios until the time is over, and prints what it did. Every
failure is shrunk and printed as code for tests/oracle/test_regressions.py; the exit code is 1 if there was one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg

import runnel
from runnel.server.embedded import EmbeddedServer
from runnel.spark.session import build_sessions
from tests.conftest import running_engine
from tests.oracle.batches import Batches
from tests.oracle.coverage import table_of
from tests.oracle.replay import Oracle
from tests.oracle.scenario import Mismatch

REPORT_SECONDS = 60


def main() -> int:
    options = _options()
    first = options.seed if options.seed is not None else random.randrange(1_000_000)
    # What hypothesis thinks of slow tests is not news here.
    warnings.simplefilter("ignore")
    # Ended early, the soak still stops what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _stack(options.tasks_above) as oracle:
        oracle.lenient = options.lenient
        _show(f"soak: {options.minutes:g} minutes from seed {first}")
        return _soak(oracle, options.minutes * 60, first, options.failures)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, help="the first batch; the others follow")
    parser.add_argument("--failures", type=int, default=10, help="stop after so many")
    parser.add_argument("--tasks-above", type=int, help="work on more rows is done by tasks; 1: everything is large")
    parser.add_argument("--lenient", action="store_true", help="pass over queries that are refused at creation")
    return parser.parse_args()


@contextlib.contextmanager
def _stack(tasks_above: int | None) -> Iterator[Oracle]:
    with tempfile.TemporaryDirectory(prefix="runnel-soak-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)  # noqa: S103  (the server's account must get in)
        server = EmbeddedServer(Path(directory) / "home")
        server.start()
        sessions = build_sessions("local[2]")
        try:
            with psycopg.connect(server.dsn, autocommit=True) as conn:
                conn.execute("ALTER SYSTEM SET fsync = off")
                conn.execute("SELECT pg_reload_conf()")
            with (
                running_engine(server.dsn, sessions.base, tasks_above=tasks_above),
                contextlib.closing(runnel.connect(server.dsn)) as client,
            ):
                yield Oracle(server.dsn, client)
        finally:
            sessions.stop()
            server.stop("immediate")


def _show(text: str) -> None:
    print(text, flush=True)


def _soak(oracle: Oracle, seconds: float, first: int, most_failures: int) -> int:
    started = reported = time.monotonic()
    batches = Batches(oracle.replay, most_steps=5, deadline=started + seconds, notice=_show)
    failures: list[tuple[int, str]] = []
    number = first
    while time.monotonic() < started + seconds and len(failures) < most_failures:
        try:
            batches.run(number)
        except KeyboardInterrupt:
            _show("\ninterrupted")
            break
        except Mismatch as mismatch:
            failures.append((number, str(mismatch)))
            _show(f"\nFAILURE {len(failures)} in batch {number}, {mismatch}")
        except Exception as error:  # noqa: BLE001  (a broken batch is a finding, not the end)
            failures.append((number, repr(error)))
            _show(f"\nERROR in batch {number}: {error!r}")
        number += 1
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            _show(f"{reported - started:6.0f} s: {oracle.figures}, {len(failures)} failures")
    spent = time.monotonic() - started
    print(f"\n{oracle.figures}\nin {spent:.0f} s, batches {first} to {number - 1}: {len(failures)} failures")
    print(f"stream tables per operator:\n{table_of(oracle.figures.operators)}")
    for reason, times in oracle.figures.refusals.most_common():
        print(f"  {times} refused: {reason}")
    for batch, text in failures:
        print(f"  batch {batch}: {text.splitlines()[0]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
