"""One row through a small shape, by the engine's own schedule."""

from __future__ import annotations

import psycopg
import pytest

import runnel
from runnel.bench import dag


@pytest.mark.slow
def test_a_row_travels_through_a_diamond(db: psycopg.Connection, client: runnel.Client) -> None:
    found = dag.travel(client, db, dag.diamond(), runs=2, warm=1, rows=500)
    assert len(found.seconds) == 2
    assert all(0 < seconds < 30 for seconds in found.seconds)
    # The plans of the four stream tables are prepared: none needs a job.
    assert found.jobs == [0, 0]
    assert not client.status()
    assert dag.grid([found]).rows[0][0] == "diamond (4 stream tables)"


def test_shapes_are_what_their_names_say() -> None:
    assert len(dag.chain(10).tables) == 10
    assert len(dag.layers(3, 20).tables) == 60
    # Sources come before their readers.
    for shape in (dag.chain(), dag.layers(), dag.diamond()):
        seen: set[str] = {"base"}
        for name, query in shape.tables.items():
            words = query.replace(",", " ").split()
            assert {word.removeprefix("dag.") for word in words if word.startswith("dag.")} <= seen
            seen.add(name)
