"""Which generated queries get a plan: `python -m tests.oracle.planned --batches 50 [--seed 1]`.

Compiles without running anything, so hundreds of queries take a minute. Prints the share that deltas maintain, and
the others by reason, each with the operators that queries refused for it have in common and the shortest one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from runnel.catalog.migrate import migrate
from runnel.errors import RunnelError
from runnel.server.embedded import EmbeddedServer
from runnel.sql.compile import compile_query
from tests.oracle.coverage import operators, table_of
from tests.oracle.samples import laid, sample
from tests.oracle.scenario import Scenario


@dataclass
class Outcome:
    """Planned queries, and the others by reason."""

    planned: Counter[str] = field(default_factory=Counter)
    count: int = 0
    refused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def __str__(self) -> str:
        missing = sum(map(len, self.refused.values()))
        lines = [f"{self.count} queries, {self.count - missing} planned ({1 - missing / max(self.count, 1):.1%})"]
        for reason, queries in sorted(self.refused.items(), key=lambda r: -len(r[1])):
            common = set.intersection(*(operators(q) for q in queries))
            lines.append(f"\n{len(queries)} x {reason}\n    all have: {', '.join(sorted(common)) or '-'}")
            lines.append(f"    shortest: {min(queries, key=len)}")
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
        finally:
            server.stop("immediate")
    print(outcome)
    return 1 if outcome.refused else 0


def plan(conn: psycopg.Connection, scenario: Scenario, outcome: Outcome) -> None:
    """Compile a scenario's queries, each over tables that stand for the stream tables before it."""
    with laid(conn, scenario, "planned"):
        for name, query in scenario.streams.items():
            outcome.count += 1
            reason = _reason(conn, query, scenario.time_zone)
            if reason is None:
                outcome.planned.update(operators(query))
            else:
                outcome.refused[reason].append(query)
            conn.execute(f"CREATE TABLE {name} AS {query} WITH NO DATA".encode())


def _reason(conn: psycopg.Connection, query: str, time_zone: str) -> str | None:
    try:
        return compile_query(conn, query, settings={"search_path": "planned", "TimeZone": time_zone}).reason
    except RunnelError as error:
        return f"error: {error.message}"
    except Exception as error:  # noqa: BLE001  (a crash of the compiler is a finding)
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"crash: {type(error).__name__} {error} ({Path(last.filename).name}:{last.lineno})"


if __name__ == "__main__":
    sys.exit(main())
