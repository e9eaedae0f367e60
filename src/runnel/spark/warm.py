"""Warm Spark up: the first runs of a plan are ten times slower than the later ones.

That takes some seconds of the processor, and is done while the engine has nothing else to do. Whatever it does itself
warms Spark up as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from runnel.spark.job import run
from runnel.spark.prepared import Owner, PreparedPlans
from runnel.spark.session import Sessions

MOST_SECONDS = 6.0
MOST_ROUNDS = 25
RUNS = 40
"""Of a prepared plan, per round: it takes a small part of the time that planning takes."""

NOBODY = Owner(0, "")
"""Owns the plans that are made here."""


def warm_up(sessions: Sessions, may_go_on: Callable[[], bool]) -> None:
    """Plan and run the kind of plan that a small refresh runs, again and again for a few seconds."""
    prepared = PreparedPlans(sessions.small, factory=sessions.prepared.factory)
    left = pa.table(
        {
            "l0_0": pa.array(range(50), pa.int64()),
            "l0_1": pa.array([f"t{i % 7}" for i in range(50)], pa.string()),
            "l0_2": pa.array(range(50), pa.int64()).cast(pa.decimal128(38, 2)),
            "w0": pa.array([1, -1] * 25, pa.int64()),
        }
    )
    tables = [left, left.rename_columns(["l1_0", "l1_1", "l1_2", "w1"])]
    began = time.monotonic()
    for number in range(MOST_ROUNDS):
        if time.monotonic() - began > MOST_SECONDS or not may_go_on():
            break
        plan = prepared.find(NOBODY, number, [table.schema for table in tables], _frame)
        if plan is None:
            run(_frame([sessions.small_frame(table) for table in tables]))
        else:
            for _ in range(RUNS):
                plan.run(tables)


def _frame(inputs: Sequence[DataFrame]) -> DataFrame:
    left, right = inputs
    joined = left.join(right, F.expr("l0_0 = l1_0"))
    rows = joined.selectExpr(
        "0S AS b", "l0_1 AS b0_0", "l0_0 AS b0_1", "w0 * w1 AS w", "CAST(w0 * w1 AS DECIMAL(10, 0)) * l1_2 AS s0"
    )
    alone = left.join(right.select("l1_0"), F.expr("l0_0 = l1_0"), "left_anti").selectExpr(
        "0S AS b", "l0_1 AS b0_0", "l0_0 AS b0_1", "-w0 AS w", "CAST(w0 AS DECIMAL(10, 0)) * l0_2 AS s0"
    )
    both = rows.unionByName(alone, allowMissingColumns=True)
    totals = [F.expr("sum(w) AS w"), F.expr("sum(s0) AS s0")]
    return both.groupBy("b", "b0_0", "b0_1").agg(*totals).where("w != 0 OR s0 != 0")
