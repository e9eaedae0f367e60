"""Run a DataFrame as one Spark job, and say what went wrong in words."""

from __future__ import annotations

from contextlib import nullcontext

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

from runnel.errors import SparkFailure
from runnel.spark.meter import Meter


def run(rows: DataFrame, meter: Meter | None = None) -> pa.Table:
    """The rows, on the driver; `meter` counts jobs and tasks, where one task does not do it all."""
    try:
        with meter.jobs() if meter is not None else nullcontext():
            return rows.toArrow()
    except Py4JJavaError as error:
        raise failure(error) from error


def failure(error: Py4JJavaError) -> SparkFailure:
    """What to say when a job has failed."""
    return SparkFailure(f"Spark: {_cause(error)}")


def _cause(error: Py4JJavaError) -> str:
    """The innermost cause in one line: the layers around it only repeat that a job failed."""
    thrown = error.java_exception
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
    lines = [line for line in str(thrown.toString()).splitlines() if line.strip()]
    # A Python worker's failure carries the worker's own trace, whose last line says what it was.
    return lines[-1].strip() if len(lines) > 1 and "Traceback" in str(thrown) else lines[0].strip()
