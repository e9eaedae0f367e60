"""Spark sessions: one application, two configurations.

Small deltas are planned once per shape (`runnel.spark.prepared`) and computed on the driver, without code generation,
adaptive execution, exchanges or broadcasts: planning and compiling cost more than the work. Large reads get Spark's
usual machinery.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from runnel.errors import RunnelError, SparkFailure
from runnel.spark.executors import check_executors
from runnel.spark.master import check_java, check_master, is_cluster
from runnel.spark.meter import Meter
from runnel.spark.package import check_package, package_settings, python_version
from runnel.spark.prepared import PreparedPlans

__all__ = ["SMALL_ROWS", "Sessions", "SparkSession", "Tasks", "adopt", "build_sessions"]

_APPLICATION = {
    "spark.ui.enabled": "false",
    # Work of several stream tables shares the cores; a long one does not keep the others waiting.
    "spark.scheduler.mode": "FAIR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.retainedExecutions": "1",
    # A large result is fetched by as many jobs as it has partitions, and all of them are counted.
    "spark.ui.retainedJobs": "300",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.driver.maxResultSize": "0",
    # Every sort and hash table zeroes one page before its first row: the default of 64 MB is felt in small jobs.
    "spark.buffer.pageSize": "1m",
    "spark.sql.warehouse.dir": "file:/tmp/runnel-warehouse",
}

# On one machine the driver talks to itself; elsewhere executors must reach it, so Spark's own choice stands.
_ONE_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

# Exactness: overflow is an error, decimals never lose digits, and no setting of the host leaks in.
_EXACT = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.crossJoin.enabled": "true",
}

_SMALL = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.join.preferSortMergeJoin": "false",
    # A prepared plan needs no exchange, unless another operator reads its rows, too.
    "spark.sql.exchange.reuse": "false",
}

# Results come back partition by partition, and the driver holds one at a time: they must stay small. How many there are
# is known when the rows are, also of what is kept until it is fetched.
_LARGE = {
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "64",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # What tasks read is of unknown size until it is read: only then may Spark find it small enough to be sent to all.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "10m",
}

SMALL_ROWS = 100_000
"""Work on at most this many rows is done on the driver, unless an engine is told otherwise."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Those of a job: done, running, and all."""

    done: int
    running: int
    all: int

    def rows(self, total: int, being_read: int) -> int:
        """About how many rows of so many are done; tasks that run have read some of theirs, at most all.

        >>> Tasks(2, 2, 8).rows(800, 0), Tasks(2, 2, 8).rows(800, 150), Tasks(2, 2, 8).rows(800, 999)
        (200, 350, 400)
        """
        return total * self.done // self.all + min(being_read, total * self.running // self.all)


@dataclass(frozen=True, slots=True)
class Sessions:
    """The two faces of one Spark application."""

    base: SparkSession
    small: SparkSession
    large: SparkSession
    owned: bool
    small_rows: int = SMALL_ROWS
    joins_in_spark: bool = False
    meter: Meter = field(default_factory=Meter, repr=False, compare=False)
    """Counts what is done with these sessions."""
    prepared: PreparedPlans = field(kw_only=True, repr=False, compare=False)
    """Plans of small work."""

    def metered(self, name: str) -> Sessions:
        """The same with a meter of its own, for one refresh."""
        return replace(self, meter=Meter(self.base.sparkContext, name))

    @property
    def threshold(self) -> int:
        """Work on more rows than this is done by tasks, from the source to the sink."""
        return self.small_rows

    @property
    def joins(self) -> bool:
        """Whether Spark joins what PostgreSQL could join itself, because all rows are PostgreSQL's own."""
        return self.joins_in_spark

    def frame(self, table: pa.Table) -> DataFrame:
        """An Arrow table as a DataFrame beside large ones; with few rows it is sent to all tasks."""
        frame = self.large.createDataFrame(table)
        return frame.hint("broadcast") if table.num_rows <= SMALL_ROWS else frame

    def small_frame(self, table: pa.Table) -> DataFrame:
        """An Arrow table as a DataFrame for one task."""
        return self.small.createDataFrame(table).coalesce(1)

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""
        return int(self.base.sparkContext.defaultParallelism)

    def enroll(self, worker: str) -> None:
        """The calling thread is a worker: its jobs can be cancelled by this name, and share the cores fairly."""
        context = self.base.sparkContext
        with contextlib.suppress(Py4JError, OSError):
            context.addJobTag(worker)
            context.setLocalProperty("spark.scheduler.pool", worker)

    def cancel(self, worker: str) -> None:
        """Cancel the jobs of a worker; any thread may."""
        with contextlib.suppress(Py4JError, OSError):
            self.base.sparkContext.cancelJobsWithTag(worker)

    def tasks_of(self, worker: str) -> Tasks:
        """How many tasks of a worker's present job are done, of how many; none of none if it has no job."""
        context = self.base.sparkContext
        try:
            spark: Any = context._jsc.sc()
            for number in context.statusTracker().getActiveJobsIds():
                job = spark.statusStore().job(number)
                if job.jobTags().contains(worker):
                    return Tasks(int(job.numCompletedTasks()), int(job.numActiveTasks()), int(job.numTasks()))
        except (Py4JError, OSError, AttributeError):
            pass  # looking never does harm
        return Tasks(0, 0, 0)

    def jobs_running(self) -> int:
        """How many jobs Spark has at this moment."""
        try:
            return len(self.base.sparkContext.statusTracker().getActiveJobsIds())
        except (Py4JError, OSError, AttributeError):
            return 0  # looking never does harm

    def stop(self) -> None:
        """Stop the application if it was started here."""
        if self.owned:
            # A signal to the whole process group, as service managers send it, may have ended the JVM already.
            with contextlib.suppress(Py4JError, OSError):
                self.base.stop()


def default_heap(total: int) -> int:
    """The largest heap in MiB on a machine with so much memory: a third, for PostgreSQL needs its share, too.

    >>> default_heap(24 * 2**30), default_heap(4 * 2**30)
    (8192, 2048)
    """
    return max(2048, min(16384, total // 3 // 2**20))


def build_sessions(master: str, small_rows: int = SMALL_ROWS, package: str | None = None) -> Sessions:
    """Start Spark. `package` is an archive of what tasks need (`runnel.spark.package`); without a cluster none is."""
    import psutil  # noqa: PLC0415  (tasks import this module, and have no psutil)

    check_master(master)
    check_java()
    sent = package if is_cluster(master) else None
    if sent is not None:
        check_package(sent)
    # What is sent along fits any Python of the same version; else the workers have the engine's own, at the same place.
    os.environ.setdefault("PYSPARK_PYTHON", f"python{python_version()}" if sent else sys.executable)
    options = os.environ.get("RUNNEL_DRIVER_JAVA_OPTIONS", "")
    memory = os.environ.get("RUNNEL_DRIVER_MEMORY") or f"{default_heap(psutil.virtual_memory().total)}m"
    builder: Any = SparkSession.builder
    builder = builder.master(master).appName("runnel").config("spark.driver.memory", memory)
    # Spark reads its log configuration before any session exists: quiet it for everybody but debuggers.
    quiet = resources.files("runnel.spark").joinpath("log4j2.properties")
    builder = builder.config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={quiet} {options}".strip())
    local = master.startswith("local") or "//127.0.0.1" in master or "//localhost" in master
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {**_APPLICATION, **(_ONE_MACHINE if local else {}), **(package_settings(sent) if sent else {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    sessions = adopt(_started(builder, master), owned=True, small_rows=small_rows)
    if is_cluster(master):
        try:
            check_executors(sessions)
        except RunnelError:
            sessions.stop()
            raise
    return sessions


def _started(builder: Any, master: str) -> SparkSession:
    try:
        session: SparkSession = builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        # The cause stands in the first lines; the rest is a trace of the JVM.
        cause = next((line.strip(": ") for line in str(error).splitlines()[1:] if line.strip()), str(error))
        raise SparkFailure(
            f"Spark did not start on {master}.", detail=cause, hint="`runnel --debug up` shows the whole trace."
        ) from error
    return session


def adopt(session: SparkSession, *, owned: bool = False, small_rows: int = SMALL_ROWS) -> Sessions:
    """Use a given session; its own configuration stays as it is."""
    small, large = session.newSession(), session.newSession()
    for key, value in {**_EXACT, **_SMALL}.items():
        small.conf.set(key, value)
    for key, value in _EXACT.items():
        large.conf.set(key, value)
    large.conf.set("spark.sql.shuffle.partitions", str(max(2, session.sparkContext.defaultParallelism)))
    for key, value in _LARGE.items():
        large.conf.set(key, value)
    return Sessions(session, small, large, owned, small_rows, prepared=PreparedPlans.over(small))
