"""Whatever the query and whatever happens to its tables: stream table = query, maintained by deltas."""

from __future__ import annotations

import pytest

from tests.oracle.batches import EXAMPLES, Batches
from tests.oracle.replay import Oracle
from tests.oracle.scenario import Mismatch, Scenario

A_FEW = pytest.param(4, 3, id="a few")
FOUR_BATCHES = [pytest.param(number, EXAMPLES, marks=pytest.mark.slow) for number in range(4)]


@pytest.fixture(scope="package")
def batches(oracle: Oracle) -> Batches:
    return Batches(oracle.replay, most_steps=3)


@pytest.mark.parametrize(("number", "examples"), [A_FEW, *FOUR_BATCHES])
def test_stream_tables_equal_their_queries(batches: Batches, number: int, examples: int) -> None:
    batches.run(number, examples)


@pytest.mark.slow
def test_tasks_compute_the_same(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few with the line between small and large at one row; `make soak` does so for minutes."""
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1)
    batches.run(9, 3)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["UPDATE s0 SET c0 = 7 WHERE c0 = 1", "DELETE FROM s0", "INSERT INTO s0 TABLE s0"])
def test_a_wrong_row_does_not_go_unnoticed(oracle: Oracle, damage: str) -> None:
    scenario = Scenario(
        tables=["CREATE TABLE t0 (k int)", "INSERT INTO t0 VALUES (1), (2)"],
        streams={"s0": "SELECT a0.k AS c0 FROM t0 a0"},
        steps=[["INSERT INTO t0 VALUES (3)"], ["SET pgtrickle.allow_direct_writes = on", damage]],
    )
    with pytest.raises(Mismatch, match="s0 after step 1: missing"):
        oracle.replay(scenario)
