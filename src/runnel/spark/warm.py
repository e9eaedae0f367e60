"""Warm Spark up before saying ready: the first runs of a plan are several times slower than the later ones."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import functions as F

from runnel.spark.session import Sessions

ROUNDS = 3


def warm_up(sessions: Sessions) -> None:
    """Run a small refresh-like job a few times."""
    table = pa.table(
        {
            "k": pa.array([1, 2, 3], pa.int64()),
            "t": pa.array(["a", "b", None], pa.string()),
            "d": pa.array([1, 2, 3], pa.int64()).cast(pa.decimal128(38, 2)),
            "w": pa.array([1, 1, -1], pa.int64()),
        }
    )
    for _ in range(ROUNDS):
        left = sessions.frame(table, small=True)
        right = sessions.frame(table.rename_columns(["k2", "t2", "d2", "w2"]), small=True)
        joined = left.join(right, F.col("k") == F.col("k2")).select("t", "d", (F.col("w") * F.col("w2")).alias("w"))
        both = joined.unionByName(joined.withColumn("w", -F.col("w")))
        both.groupBy("t").agg(F.sum("w").alias("w"), F.sum("d").alias("d")).where("w != 0").toArrow()
