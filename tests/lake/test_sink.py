"""A stream table with a sink: DuckDB shows what PostgreSQL shows, refresh by refresh."""

from __future__ import annotations

import psycopg
import pytest

import runnel
from tests.lake.duck import Duck
from tests.lake.places import Place
from tests.lake.published import Published
from tests.lake.sinks import PER_KIND, ROWS, lake, place, sales, steps

__all__ = ["lake", "place", "sales"]


@pytest.mark.parametrize("mode", ["merge", "append", "replace"])
def test_duckdb_shows_what_postgresql_shows(
    mode: str, sales: psycopg.Connection, place: Place, lake: Duck, client: runnel.Client
) -> None:
    tables = []
    for name, query in (("per_kind", PER_KIND), ("rows", ROWS)):
        client.create_stream_table(name, query, schedule="1h", sink="ducklake", ducklake_sink_mode=mode)
        tables.append(Published(name, mode, sales))
        tables[-1].observe(lake)
    for _ in steps(sales):
        client.refresh()
        for table in tables:
            table.observe(lake)
    for table in tables:
        assert len(table.history) >= 7
        table.check_history(lake)
        table.check_provenance()
    place.check(sales)
