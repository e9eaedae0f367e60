"""Executors of a cluster, before the first refresh: have they the engine's Python, its packages, and this Runnel?

Without asking, the first large refresh would fail with a trace of a worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from runnel.errors import SparkFailure, UserError
from runnel.spark.package import DISTRIBUTIONS, python_version, sources_digest

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

_ANSWER = pa.schema([("host", pa.string()), ("sources", pa.string())])

_OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH(?:.*? different version: (\S+) than)?|magic number")
_NO_MODULE = re.compile(r"No module named '?([\w.]+)|PyArrow .*must be installed")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')


def check_executors(sessions: Sessions) -> None:
    """Ask as many tasks as run at once; raise what to do if one cannot work."""
    from runnel.spark.job import run

    count = sessions.parallelism
    try:
        answers = run(sessions.large.range(0, count, 1, count).mapInArrow(_answer, "host string, sources string"))
    except SparkFailure as error:
        raise explained(error, str(error.__cause__)) from error
    for host, sources in zip(answers["host"].to_pylist(), answers["sources"].to_pylist(), strict=True):
        if sources != sources_digest():
            raise UserError(
                f"The worker on {host} has another Runnel than this engine.",
                hint="Install the same on all workers, or send it along: see `runnel spark package --help`.",
            )


def explained(error: SparkFailure, trace: str) -> SparkFailure | UserError:
    """What a worker that cannot work means.

    >>> str(explained(SparkFailure("Spark: it failed"), "ModuleNotFoundError: No module named 'pyarrow'"))
    'The workers lack the Python package pyarrow.'
    """
    version = python_version()
    theirs = f"PYSPARK_PYTHON names the Python of the workers, say PYSPARK_PYTHON=/usr/bin/python{version}."
    if found := _OTHER_PYTHON.search(trace):
        other = f"Python {found[1]}" if found[1] else "another Python"
        return UserError(f"The workers have {other}, and the engine has Python {version}.", hint=theirs)
    if found := _NO_PYTHON.search(trace):
        return UserError(f"The workers have no {found[1]}.", hint=theirs)
    if found := _NO_MODULE.search(trace):
        name = (found[1] or "pyarrow").split(".")[0]
        if name in {"runnel", *(each.replace("-", "_") for each in DISTRIBUTIONS)}:
            return UserError(
                f"The workers lack the Python package {name}.",
                hint="Send along what they need: see `runnel spark package --help`.",
            )
    return error


def _answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import socket

    import adbc_driver_postgresql.dbapi  # noqa: F401

    import runnel.transport  # noqa: F401

    for batch in batches:
        rows = batch.num_rows
        yield pa.record_batch([[socket.gethostname()] * rows, [sources_digest()] * rows], schema=_ANSWER)
