"""Which generated queries get a plan: `python -m tests.oracle.planned --batches 50 [--seed 1]`.

Compiles without running anything, so hundreds of queries take a minute. Prints the share that deltas maintain, and
the others by reason, each with the shortest query refused for it, made as short as possible.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from runnel.catalog.migrate import migrate
from runnel.errors import RunnelError
from runnel.server.embedded import EmbeddedServer
from runnel.sql.compile import compile_query
from tests.oracle.coverage import operators, table_of
from tests.oracle.reduce import simpler_queries
from tests.oracle.samples import laid, sample
from tests.oracle.scenario import Scenario, mentions

SHORTEN_SECONDS = 8


@dataclass
class Outcome:
    """Planned queries, and the others by reason."""

    planned: Counter[str] = field(default_factory=Counter)
    count: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")
    shortest: dict[str, tuple[str, Scenario]] = field(default_factory=dict)

    def __str__(self) -> str:
        missing = self.refused.total()
        lines = [f"{self.count} queries, {self.count - missing} planned ({1 - missing / max(self.count, 1):.1%})"]
        for reason, times in self.refused.most_common():
            query, scenario = self.shortest[reason]
            used = [t for t in scenario.tables if t.startswith("CREATE") and mentions(query, t.split()[2])]
            used += [f"{name} is {text}" for name, text in scenario.streams.items() if mentions(query, name)]
            lines += [f"\n{times} x {reason}", f"    {query}", *(f"    -- {t}" for t in used)]
        lines.append(f"\nthe slowest took {self.slowest[0]:.1f} s: {self.slowest[1]}")
        return "\n".join([*lines, "\noperators in planned queries:", table_of(self.planned)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=30, help="of ten scenarios")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="runnel-planned-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)
        server = EmbeddedServer(Path(directory) / "home")
        server.start()
        try:
            migrate(server.dsn)
            with psycopg.connect(server.dsn, autocommit=True) as conn:
                for number in range(options.seed, options.seed + options.batches):
                    for scenario in sample(number, 10):
                        plan(conn, scenario, outcome)
                for reason in outcome.refused:
                    shorten(conn, reason, outcome)
        finally:
            server.stop("immediate")
    print(outcome)
    return 1 if outcome.refused else 0


def plan(conn: psycopg.Connection, scenario: Scenario, outcome: Outcome) -> None:
    """Compile a scenario's queries, each over tables that stand for the stream tables before it."""
    with laid(conn, scenario, "planned"):
        for name, query in scenario.streams.items():
            outcome.count += 1
            started = time.monotonic()
            reason = _reason(conn, query, scenario.time_zone)
            outcome.slowest = max(outcome.slowest, (time.monotonic() - started, query))
            if reason is None:
                outcome.planned.update(operators(query))
            else:
                outcome.refused[reason] += 1
                if len(query) < len(outcome.shortest.get(reason, (query + " ",))[0]):
                    outcome.shortest[reason] = (query, scenario)
            conn.execute(f"CREATE TABLE {name} AS {query} WITH NO DATA".encode())


def _general(reason: str) -> str:
    """The reason without names, so that the same reasons are counted together.

    >>> _general('the function unnest("a1"."b") of columns of several tables')
    'the function unnest(..) of columns of several tables'
    """
    reason = re.sub(r"the (outer join condition|aggregate \w+).*", r"the \1", reason)
    return re.sub(r'"[^"]*"(\."[^"]*")?', "..", re.sub(r"\(.*\)", "(..)", reason))


def shorten(conn: psycopg.Connection, reason: str, outcome: Outcome) -> None:
    """Take pieces from the shortest refused query while it is refused for the same reason."""
    query, scenario = outcome.shortest[reason]
    until = time.monotonic() + SHORTEN_SECONDS
    with laid(conn, scenario, "planned"):
        for name, text in scenario.streams.items():
            conn.execute(f"CREATE TABLE {name} AS {text} WITH NO DATA".encode())
        progress = True
        while progress and time.monotonic() < until:
            progress = False
            for text in simpler_queries(query):
                shorter = len(text) < len(query) and _is_valid(conn, text)
                if shorter and _reason(conn, text, scenario.time_zone) == reason:
                    query, progress = text, True
                    break
    outcome.shortest[reason] = (query, scenario)


def _is_valid(conn: psycopg.Connection, query: str) -> bool:
    try:
        conn.execute(f"EXPLAIN {query}".encode())
    except psycopg.Error:
        return False
    return True


def _reason(conn: psycopg.Connection, query: str, time_zone: str) -> str | None:
    try:
        reason = compile_query(conn, query, settings={"search_path": "planned", "TimeZone": time_zone}).reason
        return None if reason is None else _general(reason)
    except RunnelError as error:
        return f"error: {_general(error.message)}"
    except Exception as error:  # noqa: BLE001  (a crash of the compiler is a finding)
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"crash: {type(error).__name__} {error} ({Path(last.filename).name}:{last.lineno})"


if __name__ == "__main__":
    sys.exit(main())
