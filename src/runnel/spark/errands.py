"""Work that tasks do for its effect: one task each, and an answer to the driver."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from runnel.errors import RunnelError

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

_ANSWER = pa.schema([("number", pa.int64()), ("answer", pa.binary())])

T = TypeVar("T")


def run_errands(sessions: Sessions, count: int, errand: Callable[[int], T]) -> list[T]:
    """What the errand answers for each number below `count`, in order. It travels pickled, not in a query plan."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  (tasks import this module without it)

    from runnel.spark.job import run  # noqa: PLC0415

    # A range of n partitions puts exactly one number into each task.
    numbers = sessions.large.range(0, count, 1, count)
    table = run(numbers.mapInArrow(_errands(errand), from_arrow_schema(_ANSWER)))
    answers: dict[int, Any] = {}
    for number, data in zip(table["number"].to_pylist(), table["answer"].to_pylist(), strict=True):
        answer = pickle.loads(data)  # noqa: S301  (made by our own tasks)
        if isinstance(answer, RunnelError):
            raise answer
        answers[number] = answer
    return [answers[number] for number in range(count)]


def _errands(errand: Callable[[int], object]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                try:
                    answer: object = errand(number)
                except RunnelError as error:
                    # Spark would wrap it; the driver should see it as it is, and the store may be back tomorrow.
                    answer = type(error)(error.message, hint=error.hint, sqlstate=error.sqlstate)
                yield pa.record_batch([[number], [pickle.dumps(answer)]], schema=_ANSWER)

    return run_all
