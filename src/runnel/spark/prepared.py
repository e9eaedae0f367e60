"""Prepared plans: what a small refresh has Spark do is planned once per shape, and run over other rows each time.

Catalyst and the scheduler take thirty times as long as Spark's operators over a few hundred rows. So a shape (which
terms, over which columns) is planned over slots, leaves without rows, and kept. A run gives the slots their rows and
computes the result in the driver. The other half, with all that is known of Spark's insides, is `PreparedPlans.java`:
it is compiled when the driver starts, by the compiler that Spark brings. Where that fails, under another version of
Spark, everything is planned each time and run as a job, as are the few plans that cannot be prepared.
"""

from __future__ import annotations

import logging
import os
import struct
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from runnel.model.prepared import PlansKept
from runnel.spark.job import FAILURES, failure

log = logging.getLogger(__name__)

MOST_PLANS = 200
"""Kept at once; those that were not used for the longest time make room."""

MOST_BYTES = 256 * 2**20
"""What they may hold of the driver's memory; beyond it they make room as well."""

HELD_PER_WRITTEN = 12
"""A plan in memory is at most so many times as long as written down: 7.5 to 11.4 times, measured for 2 to 8 tables."""

OFTEN = 10
"""So many times a plan that was made for more changes serves; then one is made for these."""

Key = tuple[Hashable, tuple[pa.Schema, ...]]
"""What a plan is found by, among those of a stream table."""

Build = Callable[[Sequence[DataFrame]], DataFrame]
"""Makes a frame of its inputs."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A stream table in one of its definitions: its plans are forgotten with it."""

    id: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A plan in the JVM. Threads may share it: they run it one after the other, each over its own rows."""

    plan: Any
    folder: str
    bytes: int = 0
    """What it holds of the driver's memory, at most."""

    def run(self, tables: Sequence[pa.Table]) -> pa.Table:
        """The result over these rows, one table per slot.

        Rows pass in a file, as PySpark itself hands them over, in a folder that is Spark's own.
        """
        descriptor, path = tempfile.mkstemp(dir=self.folder)
        try:
            with open(descriptor, "wb") as file:
                for table in tables:
                    file.write(_framed(table))
            try:
                self.plan.run(path)
            except FAILURES as error:
                raise failure(error) from error
            with open(path, "rb") as file:
                return pa.ipc.open_stream(file.read()).read_all()
        finally:
            os.unlink(path)


@dataclass
class PreparedPlans:
    """The plans of one application."""

    session: SparkSession
    most: int = MOST_PLANS
    most_bytes: int = MOST_BYTES
    factory: Any = None
    """Makes plans in the JVM; None: it cannot be made."""
    _plans: OrderedDict[tuple[Owner, Key], PreparedPlan | None] = field(default_factory=OrderedDict)
    """None: a shape that cannot be prepared."""
    _missed: OrderedDict[tuple[Owner, Key], int] = field(default_factory=OrderedDict)
    """How often there was no plan of a shape, of those asked for last."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _used: int = 0
    _made: int = 0

    @classmethod
    def over(cls, session: SparkSession) -> PreparedPlans:
        """None yet; the session is the one that plans and runs them."""
        if session.sparkContext._encryption_enabled:
            log.warning("plans are not prepared, small refreshes take longer: rows would pass in unencrypted files")
            return cls(session)
        try:
            return cls(session, factory=_factory(session))
        except (Py4JError, PySparkException) as error:
            log.warning("plans are not prepared, small refreshes take longer: %s", str(error).splitlines()[0])
            return cls(session)

    def find(
        self, owner: Owner, shape: Hashable, schemas: Sequence[pa.Schema], build: Build | None = None
    ) -> PreparedPlan | None:
        """The plan of a shape, made by `build`, if given, where there is none yet; None: plan it each time.

        The shape must say all that `build` depends on, and not only to this process's objects.
        """
        if self.factory is None:
            return None
        key = owner, (shape, tuple(schemas))
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                self._used += self._plans[key] is not None
                return self._plans[key]
        if build is None:
            return None
        made = self._prepared(schemas, build)
        with self._lock:
            self._made += made is not None
            for known in [k for k in self._plans if k[0].id == owner.id and k[0] != owner]:
                del self._plans[known]
            self._plans[key] = made
            while len(self._plans) > self.most or (len(self._plans) > 1 and self._bytes() > self.most_bytes):
                self._plans.popitem(last=False)
        return made

    def instead_of(self, owner: Owner, shape: Hashable, schemas: Sequence[pa.Schema]) -> list[Key]:
        """What else is prepared for a stream table; nothing if the shape itself is known, or wanted often.

        A plan that was made for more takes a little longer, each time.
        """
        with self._lock:
            mine = owner, (shape, tuple(schemas))
            if self.factory is None or mine in self._plans:
                return []
            self._missed[mine] = self._missed.pop(mine, 0) + 1
            if len(self._missed) > self.most:
                self._missed.popitem(last=False)
            if self._missed[mine] > OFTEN:
                return []
            return [key for (who, key), plan in self._plans.items() if who == owner and plan is not None]

    def retain(self, owners: Collection[int]) -> None:
        """Forget the plans of all other stream tables."""
        with self._lock:
            for key in [k for k in self._plans if k[0].id not in owners]:
                del self._plans[key]

    @property
    def kept(self) -> PlansKept:
        """How many there are, and how well they serve."""
        with self._lock:
            plans = sum(plan is not None for plan in self._plans.values())
            refused = len(self._plans) - plans
            return PlansKept(plans=plans, bytes=self._bytes(), refused=refused, used=self._used, made=self._made)

    def _bytes(self) -> int:
        return sum(plan.bytes for plan in self._plans.values() if plan is not None)

    def _prepared(self, schemas: Sequence[pa.Schema], build: Build) -> PreparedPlan | None:
        slots = [DataFrame(self.factory.slot(from_arrow_schema(s).json()), self.session) for s in schemas]
        frame = build(slots)
        plan = self.factory.prepare(frame._jdf, [slot._jdf for slot in slots])
        refusal = plan.refusal()
        if refusal is not None:
            log.info("a plan is made each time that it is needed, because of %s", refusal)
            return None
        return PreparedPlan(plan, self.session.sparkContext._temp_dir, HELD_PER_WRITTEN * plan.written())


_classes: weakref.WeakKeyDictionary[SparkContext, Any] = weakref.WeakKeyDictionary()
"""The Java half, compiled once per application."""


def _factory(session: SparkSession) -> Any:
    """The Java half, made for a session."""
    context, java, jvm = session.sparkContext, session._jsparkSession, session._jvm
    if context not in _classes:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()  # type: ignore[union-attr]
        compiler.setParentClassLoader(java.getClass().getClassLoader())
        compiler.cook(resources.files("runnel.spark").joinpath("PreparedPlans.java").read_text())
        _classes[context] = compiler.getClassLoader().loadClass("runnel.PreparedPlans")
    arguments = context._gateway.new_array(jvm.java.lang.Object, 1)  # type: ignore[union-attr]
    arguments[0] = java
    return _classes[context].getConstructors()[0].newInstance(arguments)


def _framed(table: pa.Table) -> bytes:
    """An Arrow stream, after its length."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    whole: bytes = sink.getvalue().to_pybytes()
    return struct.pack(">i", len(whole)) + whole
