"""What is generated must be valid PostgreSQL with one result: else a difference would say nothing about Runnel."""

from __future__ import annotations

import psycopg
import pytest

from tests.oracle.coverage import PATTERNS, operators
from tests.oracle.samples import TOO_MUCH, laid, sample, shuffle, unshuffle
from tests.sampling import sampled

SEEDS = (1, 2, 3)
QUERIES = 60


@pytest.mark.parametrize("number", sampled(SEEDS, every=3))
def test_queries_are_valid_and_do_not_depend_on_the_order_of_rows(dsn: str, number: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for index, scenario in enumerate(sample(number, QUERIES)):
            with laid(conn, scenario, f"x{index}") as tables:
                expected = {}
                try:
                    for name, query in scenario.streams.items():
                        conn.execute(f"CREATE TABLE {name} AS {query}".encode())
                        expected[name] = tables.results(query)
                    shuffle(tables)
                    found = {name: tables.results(query) for name, query in scenario.streams.items()}
                except TOO_MUCH:
                    continue
                finally:
                    unshuffle(conn)
            for name in scenario.tied:
                del found[name], expected[name]
            assert found == expected, scenario


@pytest.mark.slow
def test_every_operator_is_generated() -> None:
    scenarios = [s for number in range(40) for s in sample(number, 10)]
    met = {o for s in scenarios for query in s.streams.values() for o in operators(query)}
    assert met == set(PATTERNS)
