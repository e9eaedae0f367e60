"""TPC-H by all engines on the same files: the 22 queries are equal, and the first one is timed."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engines.conftest import Place
from tests.engines.tpch import assert_equal, load, queries
from tests.iceberg.clients import ducks

SMALL = float(os.environ.get("RUNNEL_ENGINES_SMALL", "0.01"))
SCALE = float(os.environ.get("RUNNEL_ENGINES_SCALE", "1"))
RUNS = 3

Run = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def engines(place: Place) -> Iterator[dict[str, tuple[str, Callable[[str], None], Run]]]:
    """By name: the dialect, how to choose a schema of the lake, and how to ask."""
    with ducks(place.http) as ice:

        def trino(sql: str) -> list[tuple[Any, ...]]:
            return place.trino.rows(sql, catalog="ice", schema=chosen[0])

        chosen = ["main"]
        yield {
            "DuckDB, DuckLake": ("duckdb", lambda name: place.duck.run(f"USE lake.{name}") and None, place.duck.rows),
            "DuckDB, Iceberg": (
                "duckdb", lambda name: ice.execute(f"USE ice.{name}") and None, lambda sql: ice.execute(sql).fetchall()
            ),
            "Spark": ("spark", lambda name: place.spark.rows(f"USE ice.{name}") and None, place.spark.rows),
            "Trino": ("trino", lambda name: chosen.__setitem__(0, name), trino),
        }  # fmt: skip
        place.duck.run("USE lake.main")


def test_all_queries_are_equal_in_all_engines(place: Place, engines: Any) -> None:
    load(place.duck, "tpch", SMALL)
    for _, choose, _ in engines.values():
        choose("tpch")
    compared = 0
    for number, query in queries().items():
        found = {name: ask(query.sql(dialect=dialect)) for name, (dialect, _, ask) in engines.items()}
        wanted = found.pop("DuckDB, DuckLake")
        for name, rows in found.items():
            assert_equal(rows, wanted, f"query {number} by {name}")
            compared += 1
    assert compared == 22 * 3


def test_the_first_query_timed(place: Place, engines: Any) -> None:
    load(place.duck, "tpch_large", SCALE, ["lineitem"])
    query = queries()[1]
    wanted = None
    for name, (dialect, choose, ask) in engines.items():
        choose("tpch_large")
        text = query.sql(dialect=dialect)
        seconds = []
        for _ in range(RUNS):
            began = time.monotonic()
            rows = ask(text)
            seconds.append(time.monotonic() - began)
        print(
            f"TPC-H Q1, scale {SCALE:g}, {name}: first {seconds[0]:.2f} s, then {statistics.median(seconds[1:]):.2f} s"
        )
        assert len(rows) == 4
        if wanted is None:
            wanted = rows
        assert_equal(rows, wanted, name)
