"""Whatever the query and whatever happens to its tables: stream table = query, maintained by deltas."""

from __future__ import annotations

import pytest

from tests.oracle.batches import Batches
from tests.oracle.replay import Oracle

BATCHES = 4


@pytest.fixture(scope="package")
def batches(oracle: Oracle) -> Batches:
    return Batches(oracle.replay, most_steps=3)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(BATCHES))
def test_stream_tables_equal_their_queries(batches: Batches, number: int) -> None:
    batches.run(number)
