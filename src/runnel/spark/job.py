"""Run a DataFrame as one Spark job, and say what went wrong in words."""

from __future__ import annotations

from contextlib import nullcontext

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame

from runnel.errors import SparkFailure
from runnel.spark.meter import Meter

FAILURES = (Py4JJavaError, CapturedException)
"""What a job raises. PySpark turns those that it knows, such as an error in a Python task, into errors of its own."""


def run(rows: DataFrame, meter: Meter | None = None) -> pa.Table:
    """The rows, on the driver; `meter` counts jobs and tasks, where one task does not do it all."""
    try:
        with meter.jobs() if meter is not None else nullcontext():
            return rows.toArrow()
    except FAILURES as error:
        raise failure(error) from error


def failure(error: Py4JJavaError | CapturedException) -> SparkFailure:
    """What to say when a job has failed."""
    return SparkFailure(f"Spark: {_cause(error)}")


def _cause(error: Py4JJavaError | CapturedException) -> str:
    """The innermost cause in one line: the layers around it only repeat that a job failed."""
    if isinstance(error, CapturedException):
        return _told(str(error))
    thrown = error.java_exception
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
    return _told(str(thrown.toString()))


def _told(text: str) -> str:
    """A Python worker's failure carries the worker's own trace, whose last line says what it was.

    >>> _told("PythonException: from a worker:\\nTraceback (most recent call last):\\n  File x\\nValueError: 1")
    'ValueError: 1'
    """
    lines = [line for line in text.splitlines() if line.strip()] or ["no message"]
    return lines[-1 if len(lines) > 1 and "Traceback" in text else 0].strip()
