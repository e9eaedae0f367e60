"""Counts what one refresh has Spark and the driver do.

What tasks read and print is counted in the tasks, by an accumulator: no job more, and no row looked at twice. Jobs and
tasks are counted by Spark itself, under a group that only these jobs have and that Spark's pages show. In the small
there is nothing to ask: a prepared plan needs no job, and what cannot be prepared is one job with one task.

Whatever cannot be learnt is left out: counting never fails a refresh.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from runnel.model.work import WorkDone

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

Mapped = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for `mapInArrow`."""
Sums = dict[int, tuple[int, int, int, int, int]]
"""Rows and bytes read, rows and bytes written, and the bytes of the largest part, by the number of the meter."""

log = logging.getLogger(__name__)

_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
_PATIENCE = 2000
"""Milliseconds to wait for Spark's own book-keeping, which lags behind its jobs."""

_NOTHING = (0, 0, 0, 0, 0)

_numbers = itertools.count(1)
_accumulators: weakref.WeakKeyDictionary[SparkContext, Accumulator[Sums]] = weakref.WeakKeyDictionary()
"""One per application, for all meters: PySpark keeps each accumulator for ever."""


@dataclass(frozen=True, slots=True)
class Wrote:
    """What the tasks of some jobs have printed."""

    size: int = 0
    """In bytes."""
    largest: int = 0
    """Of its largest part."""


@dataclass
class Meter:
    """The work of one refresh of one stream table, while it is done."""

    context: SparkContext | None = None
    """Without one nothing of Spark's is counted."""
    name: str = "runnel"
    """What Spark's pages call the jobs."""
    counts: Counter[str] = field(default_factory=Counter)
    """By the names of `WorkDone`."""
    number: int = field(default_factory=lambda: next(_numbers))
    last_wrote: Wrote = Wrote()
    """By the tasks that were counted last."""

    @property
    def work(self) -> WorkDone:
        """So far."""
        return WorkDone(**self.counts)

    def prepared(self) -> None:
        """A plan that the driver ran by itself."""
        self.counts["plans"] += 1

    def one_task_jobs(self, number: int = 1) -> None:
        """Jobs that need not be looked for, because it is known how many they are."""
        self.counts.update(jobs=number, tasks=number)

    def driver(self, rows: int) -> None:
        """Rows that the driver has read or passed on."""
        self.counts["driver_rows"] += rows

    def written(self, rows: int, size: int = 0) -> None:
        """Rows that tasks have printed or written."""
        self.counts.update(written_rows=rows, written_bytes=size)

    def scanned(self, rows: int, size: int) -> None:
        """Files that Spark scans by itself, as their catalog describes them."""
        self.counts.update(read_rows=rows, read_bytes=size)

    def in_tasks(self) -> TaskCounter:
        """What a task's function takes with it, to count there."""
        return TaskCounter(None if self.context is None else _accumulator(self.context), self.number)

    def reading(self, read: Mapped) -> Mapped:
        """A function for `mapInArrow`, whose rows count as read by tasks."""
        return _counted(read, self.in_tasks())

    @contextmanager
    def jobs(self) -> Iterator[None]:
        """Count the jobs that are started inside, and what their tasks read."""
        context = self.context
        if context is None:
            yield
            return
        group = f"runnel-{self.number}-{next(_numbers)}"
        before = _start_group(context, group, self.name)
        try:
            yield
        finally:
            jobs, tasks = _end_group(context, group, before)
            read, read_bytes, wrote, wrote_bytes, largest = _accumulator(context).value.pop(self.number, _NOTHING)
            self.counts.update(jobs=jobs, tasks=tasks, read_rows=read, read_bytes=read_bytes)
            self.written(wrote, wrote_bytes)
            self.last_wrote = Wrote(wrote_bytes, largest)


@dataclass(frozen=True, slots=True)
class TaskCounter:
    """The part of a meter that works inside tasks; what it counts arrives when the task has ended."""

    total: Accumulator[Sums] | None
    number: int

    def read(self, batch: pa.RecordBatch) -> None:
        """A batch that the task has read."""
        if self.total is not None:
            self.total.add({self.number: (batch.num_rows, batch.nbytes, 0, 0, 0)})

    def wrote(self, rows: int, size: int) -> None:
        """Rows that the task has printed, in so many bytes."""
        if self.total is not None:
            self.total.add({self.number: (0, 0, rows, size, 0)})

    def part(self, size: int) -> None:
        """The end of a part of what the task has printed, which `wrote` has counted."""
        if self.total is not None:
            self.total.add({self.number: (0, 0, 0, 0, size)})


def _counted(read: Mapped, counter: TaskCounter) -> Mapped:
    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in read(batches):
            counter.read(batch)
            yield batch

    return counted


class _AddUp:
    """How the counts of tasks are added up."""

    def zero(self, value: Sums) -> Sums:  # noqa: ARG002
        return {}

    def addInPlace(self, total: Sums, more: Sums) -> Sums:  # noqa: N802  (PySpark's name)
        for number, (*counts, largest) in more.items():
            *known, known_largest = total.get(number, _NOTHING)
            read, read_bytes, wrote, wrote_bytes = map(sum, zip(known, counts, strict=True))
            total[number] = read, read_bytes, wrote, wrote_bytes, max(known_largest, largest)
        return total


def _accumulator(context: SparkContext) -> Accumulator[Sums]:
    if context not in _accumulators:
        sums: Any = _AddUp()  # it need not inherit, and tasks need not import what it would inherit from
        _accumulators[context] = context.accumulator({}, sums)
    return _accumulators[context]


def _start_group(context: SparkContext, group: str, name: str) -> list[str | None]:
    """From here on jobs of this thread belong to the group; what they belonged to before."""
    before = [context.getLocalProperty(key) for key in _PROPERTIES]
    context.setJobGroup(group, name)
    return before


def _end_group(context: SparkContext, group: str, before: list[str | None]) -> tuple[int, int]:
    """How many jobs a group had, and how many tasks these; none if Spark is no longer there to say."""
    from py4j.protocol import Py4JError  # noqa: PLC0415  (tasks import this module)

    jobs = tasks = 0
    try:
        for key, value in zip(_PROPERTIES, before, strict=True):
            context._jsc.setLocalProperty(key, value)  # None forgets it
        spark: Any = context._jsc.sc()
        spark.listenerBus().waitUntilEmpty(_PATIENCE)
        store = spark.statusStore()
        for job in context.statusTracker().getJobIdsForGroup(group):
            jobs += 1
            tasks += int(store.job(job).numCompletedTasks())
    except (Py4JError, OSError, AttributeError) as error:  # a context that was stopped has no JVM
        log.debug("the jobs of %s were not counted to the end: %s", group, type(error).__name__)
    return jobs, tasks
