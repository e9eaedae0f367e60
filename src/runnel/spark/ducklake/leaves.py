"""The rows of lake tables, and their changes, under the names and weights that expressions of a leaf are said over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from runnel.lake.format.catalog import ColumnHistory
from runnel.lake.read.changes import ChangeSet
from runnel.lake.read.reader import FileScan, scan_schema
from runnel.lake.read.scan import Scan
from runnel.spark import floats
from runnel.spark.ducklake.tables import change_schema, local_frame, scan_frame, task_frame
from runnel.spark.session import Sessions

WEIGHT = "#w"


def rows_frame(sessions: Sessions, scan: Scan, history: ColumnHistory, names: Sequence[str]) -> DataFrame:
    """The rows of a scan under the names that Spark SQL knows its columns by."""
    return scan_frame(sessions.large, scan, history, meter=sessions.meter).toDF(*names)


def changes_frame(sessions: Sessions, changes: ChangeSet, history: ColumnHistory, names: Sequence[str]) -> DataFrame:
    """What changed, with the weight behind the columns. Files that are new as a whole Spark may scan itself."""
    spark = sessions.large
    raw = change_schema(changes.columns)
    new, rest = told_apart(changes) if changes.columns else ([], list(changes.files))
    frame = local_frame(spark, changes.inlined, changes.columns, raw)
    sessions.meter.driver(changes.inlined.num_rows)
    if rest:
        frame = frame.union(task_frame(spark, rest, changes.columns, raw, sessions.meter))
    positions = [f"c{place}" for place in range(len(raw))]
    frame = frame.toDF(*positions).select(*positions[: len(changes.columns)], positions[-1])
    if new:
        frame = frame.union(_inserted(sessions, changes, new, history))
    return frame.toDF(*names, WEIGHT)


def told_apart(changes: ChangeSet) -> tuple[list[FileScan], list[FileScan]]:
    """The files that are new as a whole, as files to be read; and the others, which have changes."""
    new = [spec for spec in changes.files if _is_new(spec, changes.after)]
    theirs = {id(spec) for spec in new}
    whole = [replace(spec, after=None, hidden=frozenset()) for spec in new]
    return whole, [spec for spec in changes.files if id(spec) not in theirs]


def _is_new(spec: FileScan, after: int) -> bool:
    """Whether all rows of a file came within the changes: then what is left of them is what was inserted."""
    file = spec.file
    lasting = file.end is None or file.end > spec.at
    return file.begin > after and file.partial_max is None and file.begin not in spec.hidden and lasting


def _inserted(sessions: Sessions, changes: ChangeSet, specs: Sequence[FileScan], history: ColumnHistory) -> DataFrame:
    nothing = scan_schema(changes.columns).empty_table()
    scan = Scan(changes.table, changes.to, changes.columns, tuple(specs), nothing, len(specs))
    return scan_frame(sessions.large, scan, history, meter=sessions.meter).withColumn(WEIGHT, fn.lit(1).cast("bigint"))


def netted(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Changes without the rows that came and went: an expression that fails on one of them must not see it."""
    columns = [_named(name) for name in names]
    totals = rows.groupBy(*columns).agg(fn.sum(_named(WEIGHT)).alias(WEIGHT))
    return totals.where(f"`{WEIGHT}` != 0")


def computed(rows: DataFrame, filters: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Rows narrowed and computed by Spark."""
    if any(floats.FUNCTION in column for column in columns):
        floats.register(rows.sparkSession)
    return reduce(lambda found, condition: found.where(condition), filters, rows).selectExpr(*columns)


def together(parts: Sequence[DataFrame]) -> DataFrame:
    """All of them, column by column."""
    return reduce(lambda one, other: one.union(other), parts)


def _named(name: str) -> Column:
    return fn.col("`" + name.replace("`", "``") + "`")
