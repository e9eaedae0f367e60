"""Workers: threads that each have a session, sources and sinks of their own, and do one job after another.

Nothing of a worker is used by another thread, but for what may be: its connection is asked to cancel what it is at. A
refresh goes to the worker that has the temporary tables of its unit, if that one is free.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

from runnel.catalog.lost import is_lost
from runnel.catalog.owner import mark_session
from runnel.catalog.rows import StreamTable
from runnel.catalog.sessions import connect, pinned
from runnel.engine.around import Around
from runnel.engine.job import Class, Job
from runnel.engine.operations import Operations
from runnel.engine.refreshes import UNKNOWN, Refresher
from runnel.engine.registry import Registry
from runnel.model import progress
from runnel.refresh.maintained import Outcome
from runnel.refresh.unit import Workplace
from runnel.sinks.known import Known
from runnel.sinks.leftovers import Leftovers
from runnel.sinks.registry import open_sinks

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

log = logging.getLogger(__name__)

# Builds sort and hash millions of rows; the default of 4 MB would send them to disk.
MEMORY = {"work_mem": "128MB", "maintenance_work_mem": "256MB", "temp_buffers": "64MB"}
FIRST_NAME, OTHER_NAME = "runnel refresh", "runnel worker"
LONG_SECONDS = 2.0
"""A job that has taken longer leaves its place to others, and goes on beside them."""
HEAVY = 2
"""How many rebuilds by schedule begin at once; twice as many may be under way."""
CALLS = 8
"""How many calls are begun at once; the same."""
IDLE_SECONDS = 120.0
"""A worker that has had nothing to do for so long goes home."""
SECONDS_TO_STOP = 30.0
TIDY_SECONDS = 2.0

Task = Callable[[Operations], Any]

_numbers = itertools.count(1)


@dataclass
class Done:
    """What came of a job."""

    job: Job
    result: Any = None
    error: Exception | None = None
    lost: bool = False
    """Whether the worker's connection went away meanwhile."""


@dataclass
class House:
    """What all workers of an engine are given."""

    dsn: str = field(repr=False)
    sessions: Sessions
    role: str
    around: Around
    leftovers: Leftovers
    outboxes: Known[Any]
    on_event: Callable[[str], None]
    refreshed: Callable[[Sequence[Outcome]], None]
    """Stream tables were refreshed, by whomever."""
    wake: Callable[[int], None]
    """A stream table was defined, changed or resumed."""
    cancel_sessions: Callable[[str], None]
    """Cancel what sessions of that name are at: a task that is killed leaves its statement running."""


class Worker:
    """One thread, one session."""

    def __init__(self, house: House, number: int, finished: Callable[[Worker, Done], None]) -> None:
        self.house, self.number, self._finished = house, number, finished
        self.conn = connect(house.dsn, FIRST_NAME if number == 0 else OTHER_NAME, MEMORY)
        # Foreign code runs in this session, and could put a statement of its own under a prepared one's name.
        self.conn.prepare_threshold = None
        with self.conn.transaction():
            mark_session(self.conn)
        self.pid = self.conn.info.backend_pid
        self.tag = f"runnel-worker-{next(_numbers)}"
        """What its Spark jobs are known by."""
        self.job: Job | None = None
        self.idle_since = time.monotonic()
        self.redefined: deque[int | None] = deque()
        """Stream tables whose temporary tables must go; None: of all that are gone."""
        self.operations = self._operations()
        self._tasks: queue.SimpleQueue[tuple[Job, Task] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"worker {number}", daemon=True)
        self._thread.start()

    def _operations(self) -> Operations:
        house, kinds = self.house, self.house.around.kinds()
        # The name is that of the tasks' sessions; sessions of the engine's own have others.
        dsn = pinned(make_conninfo(house.dsn, application_name=self.tag))
        sinks = open_sinks(dsn, house.sessions, house.leftovers, house.outboxes)
        place = Workplace(self.conn, dsn, house.sessions, kinds, sinks, house.role, looks=house.around.looks)
        registry = Registry(kinds=kinds, plans=house.around.plans, changes=UNKNOWN)
        registry.must_log = house.around.reservations.must_log
        structure = house.around.defining
        refresher = Refresher(place, registry, house.on_event, house.refreshed, lambda: structure.changes)
        return Operations(self.conn, registry, refresher, house.wake, house.around)

    def give(self, job: Job, task: Task) -> None:
        """Let it do a job; only when it has none."""
        self.job = job
        self._tasks.put((job, task))

    def end(self) -> None:
        """Let it go home when its job is done."""
        self._tasks.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def tidy(self) -> None:
        """Drop what it has of stream tables that are gone or were redefined."""
        refresher = self.operations.refresher
        refresher.registry.reload(self.conn)
        while self.redefined:
            refresher.drop_leftovers(self.redefined.popleft())

    def interrupt(self) -> None:
        """Let a job that was asked to stop feel it. Called by another thread."""
        job = self.job
        if job is not None and job.stopped:
            job.interrupt(self.conn, self._cancel_tasks)

    def _cancel_tasks(self) -> None:
        self.house.sessions.cancel(self.tag)
        self.house.cancel_sessions(self.tag)

    def _work(self) -> None:
        self.house.sessions.enroll(self.tag)
        while (given := self._tasks.get()) is not None:
            job, task = given
            done = Done(job)
            self.operations.refresher.job = job
            progress.listen(job)
            try:
                done.result = task(self.operations)
            except Exception as error:
                done.error = error
            progress.listen(None)
            self._settle(done)
            self.house.around.reservations.release(job)
            self._finished(self, done)
        self._close()

    def _settle(self, done: Done) -> None:
        """Leave the session as a job should find it."""
        try:
            if not is_lost(self.conn) and self.conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self.conn.rollback()
            if self.redefined and not is_lost(self.conn):
                self.tidy()
        except psycopg.Error as error:
            log.debug("worker %s could not be put in order: %s", self.number, error)
        done.lost = is_lost(self.conn)

    def _close(self) -> None:
        self.operations.sinks.close()
        for kind in self.operations.registry.kinds:
            kind.close()
        self.conn.close()


@dataclass
class Pool:
    """All workers of an engine, as long as it is connected. Only the engine's own thread calls this."""

    house: House
    size: int
    """How many refreshes by schedule run at once."""
    changed: Callable[[Sequence[int]], None]
    """Called with the sessions of all workers, whenever there is another one."""
    woken: Callable[[], None]
    workers: list[Worker] = field(default_factory=list)
    _idle: list[Worker] = field(default_factory=list)
    _done: queue.SimpleQueue[Done] = field(default_factory=queue.SimpleQueue)
    _homes: dict[int, Worker] = field(default_factory=dict)
    """Per stream table the worker that has its temporary tables."""
    _hired: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._hire()

    # -- giving out work -------------------------------------------------------------------------------------

    def running(self) -> list[tuple[Worker, Job]]:
        """Who is at what."""
        return [(w, w.job) for w in self.workers if w.job is not None]

    def room(self, kind: Class) -> int:
        """How many more jobs of a class may begin."""
        jobs = [job for _, job in self.running() if job.kind == kind]
        short = [job for job in jobs if time.time() - job.began < LONG_SECONDS]
        size = {"refresh": self.size, "heavy": HEAVY, "call": CALLS}[kind]
        return min(size - len(short), 2 * size - len(jobs))

    def has_room(self, kind: Class) -> bool:
        """Whether one more job of a class may begin."""
        return self.room(kind) > 0

    def start(self, job: Job, task: Task, tables: Collection[int] = ()) -> None:
        """Begin a job on a worker that is free, or on a new one."""
        with self._lock:
            at_home = [w for t in tables if (w := self._homes.get(t)) is not None and w in self._idle]
            worker = at_home[0] if at_home else min(self._idle, key=lambda w: w.number, default=None)
            if worker is not None:
                self._idle.remove(worker)
        if worker is None:
            worker = self._hire()
            with self._lock:
                self._idle.remove(worker)
        for table in tables:
            self._homes[table] = worker
        job.began = job.since = time.time()
        worker.give(job, task)

    def finished(self) -> list[Done]:
        """Jobs that have ended since this was last asked."""
        found = []
        while True:
            try:
                found.append(self._done.get_nowait())
            except queue.Empty:
                return found

    # -- stopping work ---------------------------------------------------------------------------------------

    def interrupt(self) -> bool:
        """Let jobs that were asked to stop feel it; whether there are any."""
        stopped = [worker for worker, job in self.running() if job.stopped]
        for worker in stopped:
            try:
                worker.interrupt()
            except psycopg.Error as error:
                log.debug("job could not be interrupted: %s", error)
        return bool(stopped)

    def tidy(self, redefined: int | None) -> None:
        """Let all workers drop the temporary tables of what is gone or redefined; waits for those that are free."""
        with self._lock:
            idle, self._idle = self._idle, []
        waiting = []
        for worker in self.workers:
            worker.redefined.append(redefined)
        for worker in idle:
            ended = threading.Event()
            worker.give(Job("call", "tidy"), _tidied(worker, ended))
            waiting.append(ended)
        for ended in waiting:
            ended.wait(TIDY_SECONDS)

    def rest(self, living: Container[int]) -> None:
        """Let workers go home that have had nothing to do for a while; the first one stays."""
        with self._lock:
            tired = [w for w in self._idle if w.number and time.monotonic() - w.idle_since > IDLE_SECONDS]
            self._idle = [w for w in self._idle if w not in tired]
        for worker in tired:
            worker.end()
        self._homes = {table: w for table, w in self._homes.items() if w not in tired and table in living}
        if tired:
            self.workers = [w for w in self.workers if w not in tired]
            self.changed([w.pid for w in self.workers])

    def close(self, why: str) -> None:
        """Stop all jobs, and wait for the workers to go home."""
        for worker in self.workers:
            if worker.job is not None:
                worker.job.stop(why, ending=True)
            worker.end()
        deadline = time.monotonic() + SECONDS_TO_STOP
        while any(not worker.join(0.02) for worker in self.workers) and time.monotonic() < deadline:
            self.interrupt()
        for worker in self.workers:
            if not worker.join(0.0):
                log.warning("%s does not end; its session is closed", worker.job.what if worker.job else "a worker")
                worker.conn.close()
        self.workers.clear()
        self._idle.clear()
        self._homes.clear()

    def _hire(self) -> Worker:
        worker = Worker(self.house, self._hired, self._finish)
        try:
            self.changed([*(w.pid for w in self.workers), worker.pid])
        except BaseException:
            # Nobody would ever send it home.
            worker.end()
            raise
        self._hired += 1
        self.workers.append(worker)
        with self._lock:
            self._idle.append(worker)
        return worker

    def _finish(self, worker: Worker, done: Done) -> None:
        """Called by the worker's thread."""
        worker.job, worker.idle_since = None, time.monotonic()
        with self._lock:
            self._idle.append(worker)
        if done.job.what != "tidy":
            self._done.put(done)
            self.woken()


def _tidied(worker: Worker, ended: threading.Event) -> Task:
    def tidied(_: Operations) -> None:
        try:
            if worker.redefined:
                worker.tidy()
        finally:
            ended.set()

    return tidied


def known_rows(rows: Mapping[int, StreamTable], operations: Operations, tables: Collection[int]) -> None:
    """Bring what a worker knows in step with what the engine knows, for these tables and what they read."""
    registry = operations.registry
    changes = operations.around.defining.changes
    if registry.changes != changes:
        registry.reload(operations.conn)
        registry.changes = changes
    for table in tables:
        for each in (table, *registry.graph.get(table, ())):
            if each in rows and each in registry.rows:
                registry.rows[each] = rows[each]
