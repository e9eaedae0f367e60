"""The engine: starts, waits for something to do, does it, stops.

One thread drives everything, on three connections: one holds the claim on the database and listens, one answers
requests, one refreshes. When the server goes away the connections are made anew and the work goes on; Spark stays.
Whatever else fails is kept where it belongs: in its request, its stream table, or its step of housekeeping.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from runnel.catalog import claim, loopback, store
from runnel.catalog import requests as calls
from runnel.catalog.lost import first_line, is_lost
from runnel.catalog.migrate import SET_SETTING, migrate, package_version
from runnel.catalog.sessions import connect, pinned
from runnel.engine.clocks import Clocks
from runnel.engine.definitions import release_sources
from runnel.engine.drift import ddl_is_followed, record_missing
from runnel.engine.gate import WakeGate
from runnel.engine.housekeeping import Housekeeping, repair_capture
from runnel.engine.notices import CHANGES, DDL, OUTSIDE, Ears
from runnel.engine.operations import Operations
from runnel.engine.patience import Patience
from runnel.engine.refreshes import Refresher, describe_failure
from runnel.engine.registry import Registry
from runnel.engine.requests import answer
from runnel.engine.verification import Verification
from runnel.engine.watch import IDLE_SECONDS, POLL_SECONDS, Watch
from runnel.errors import TransientError, UserError
from runnel.model.prepared import PlansKept
from runnel.refresh.unit import Workplace
from runnel.sinks.registry import open_sinks
from runnel.sources.registry import all_kinds, all_services

if TYPE_CHECKING:
    from runnel.spark.session import Sessions, SparkSession

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
HOUSEKEEPING_SECONDS = 5.0
DDL_SECONDS = 0.5
"""The least time between two looks at what DDL has done; anybody can say that there was some."""
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
RUNNABLE = ("ACTIVE", "INITIALIZING")
# Builds sort and hash millions of rows; the default of 4 MB would send them to disk.
MEMORY = {"work_mem": "128MB", "maintenance_work_mem": "256MB", "temp_buffers": "64MB"}


class Engine:
    """Maintains the stream tables of one database."""

    def __init__(
        self,
        dsn: str,
        *,
        spark: SparkSession | None = None,
        master: str = "local[*]",
        on_event: Callable[[str], None] | None = None,
        home: Path | None = None,
        data_path: str | None = None,
        everyone_creates: bool = False,
        verify_every: float | None = None,
        tasks_above: int | None = None,
        joins_in_spark: bool = False,
        spark_package: str | None = None,
    ) -> None:
        """Maintain the stream tables of `dsn`.

        `home` is a directory for what this stack keeps outside of the database: the key of stored credentials, and
        the files of the default lake unless `data_path` names another place. Without both there is no default lake.
        `everyone_creates`: stream tables need no membership in `pgtrickle_user`. Each
        `verify_every` seconds a stream table chosen by chance is compared with its query; never if None. Work on
        more than `tasks_above` rows (100,000 unless given) is done by Spark's tasks; `joins_in_spark`: these also join
        what PostgreSQL could join itself. `spark_package` is an archive that executors of a cluster get, made by
        `runnel spark package`.
        """
        self.dsn = dsn
        self._everyone_creates = everyone_creates
        self._spark = spark
        self._master = master
        self._tasks_above = tasks_above
        self._joins_in_spark = joins_in_spark
        self._spark_package = spark_package
        self._on_event = on_event or (lambda _: None)
        self._sessions: Sessions | None = None
        self._stopping = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._registry = Registry()
        self._clocks = Clocks()
        self._connections: list[psycopg.Connection[Any]] = []
        self._connected = False
        self._patience = Patience(FIRST_WAIT, LONGEST_WAIT)
        self._house = Housekeeping()
        self._housekept = 0.0
        self._ddl_told = False
        self._ddl_looked = 0.0
        self._beaten = 0.0
        self._services = all_services(dsn, home, data_path, self._on_event, lambda: self._sessions)
        self._verification = Verification(verify_every, self._on_event)
        self.loopback_problem: TransientError | None = None

    # -- life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install or upgrade the schemas, become the engine, start Spark, and warm it up."""
        migrate(self.dsn)
        self._connect()
        if self._everyone_creates:
            self._control.execute(SET_SETTING, ("creators", "everyone"))
        self.loopback_problem = loopback.find_problem(self._control, self.dsn)
        if self.loopback_problem is not None:
            log.warning("%s", self.loopback_problem)
        for service in self._services:
            service.prepare(self._control)
        if not self._stopping.is_set():
            self._start_spark()

    def run(self) -> None:
        """Work until `stop`."""
        while not self._stopping.is_set():
            try:
                if not self._connected:
                    self._connect()
                    log.warning("connected again")
                self._cycle()
                self._patience.reset()
            except Exception as error:
                if self._stopping.is_set():
                    break
                self._recover(error)
                self._stopping.wait(self._patience.next())

    def _recover(self, error: Exception) -> None:
        """Whatever it was, the work goes on: on new connections if those we had are gone, else from the catalog."""
        if not self._connected or is_lost(*self._connections):
            text = first_line(error)
            log.warning("%s: %s", "lost the database" if self._connected else "cannot connect", text)
            self._disconnect()
            return
        log.error("unexpected, the scheduler stumbled: %s", describe_failure(error), exc_info=error)
        for conn in self._connections:
            if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                conn.rollback()
        self._registry.forget_all()
        self._clocks.mark_all_dirty()

    def stop(self) -> None:
        """Ask `run` to return soon; safe from other threads and from signal handlers."""
        self._stopping.set()
        self._wake()

    def close(self) -> None:
        """Let go of everything."""
        self._stopping.set()
        for service in self._services:
            service.close()
        if self._connections:
            try:
                claim.release(self._listen)
            except psycopg.Error:
                log.debug("could not unregister", exc_info=True)
        self._disconnect()
        if self._sessions is not None:
            self._sessions.stop()
            self._sessions = None

    def __enter__(self) -> Engine:
        """Start on entering a `with` block."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close on leaving it."""
        self.close()

    # -- connections ---------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._listen = self._open("runnel engine")
        self._claim()
        self._registry.kinds = all_kinds()
        self._watch = Watch(self._registry.kinds)
        self._ears = Ears(self._listen, frozenset(kind.hint for kind in self._registry.kinds if kind.hint))
        self._ears.open()
        self._control = self._open("runnel requests")
        self._refresh = self._open("runnel refresh", MEMORY)
        # Foreign code runs in this session, and could put a statement of its own under a prepared one's name.
        self._refresh.prepare_threshold = None
        claim.register_writer(self._listen, self._refresh.info.backend_pid)
        row = self._refresh.execute("SELECT current_user").fetchone()
        assert row is not None
        self._role = str(row[0])
        calls.abandon_requests(self._control)
        release_sources(self._control)
        self._registry.forget_all()
        self._registry.reload(self._control)
        self._clocks.mark_all_dirty()
        self._told_of_ddl = ddl_is_followed(self._control)
        self._gate = WakeGate(self._control)
        # A former engine may have left the gate open.
        self._gate.open()
        self._follow_sources()
        self._connected = True

    def _claim(self) -> None:
        host, version = socket.gethostname(), package_version()
        if claim.claim(self._listen, host=host, os_pid=os.getpid(), version=version, spark_master=self._master):
            return
        holder = claim.holder(self._listen)
        self._disconnect()
        who = "another session"
        if holder:
            since = holder["started_at"].strftime("%Y-%m-%d %H:%M:%S")
            who = f"process {holder['os_pid']} on {holder['host']}, running since {since}"
        message = f"another Runnel engine works on this database: {who}"
        hint = "Stop it first (runnel down), or use the one that runs."
        if self._sessions is None:
            raise UserError(message, hint=hint, sqlstate="55006")
        # After a lost connection the server may not have noticed yet that our former session is gone.
        raise TransientError(message, hint=hint)

    def _open(self, name: str, settings: Mapping[str, str] | None = None) -> psycopg.Connection[Any]:
        conn = connect(self.dsn, name, settings)
        self._connections.append(conn)
        return conn

    def _disconnect(self) -> None:
        self._connected = False
        for conn in self._connections:
            conn.close()
        self._connections.clear()
        if self._operations is not None:
            self._operations.refresher.sinks.close()
        for kind in self._registry.kinds:
            kind.close()
        self._operations = None

    def _start_spark(self) -> None:
        from runnel.spark import session, warm  # noqa: PLC0415  (Spark is imported only when it is used)
        from runnel.spark.master import is_cluster  # noqa: PLC0415

        began = time.monotonic()
        rows = session.SMALL_ROWS if self._tasks_above is None else self._tasks_above
        if self._spark is not None:
            self._sessions = session.adopt(self._spark, small_rows=rows)
        else:
            if is_cluster(self._master):
                # A cluster that is full, or has no workers, keeps everybody waiting without a word.
                self._on_event(f"Spark on {self._master}: waiting for executors ...")
            self._sessions = session.build_sessions(self._master, rows, self._spark_package)
        self._sessions = replace(self._sessions, joins_in_spark=self._joins_in_spark)
        if self._spark is None:
            self._on_event(f"Spark started ({time.monotonic() - began:.1f} s), warming up ...")
            warm.warm_up(self._sessions)

    _operations: Operations | None = None

    def operations(self) -> Operations:
        """The verbs, bound to the current connections."""
        if self._operations is None:
            assert self._sessions is not None, "call start() first"
            dsn = pinned(self.dsn)
            place = Workplace(
                self._refresh, dsn, self._sessions, self._registry.kinds, open_sinks(dsn, self._sessions), self._role
            )
            refresher = Refresher(place, self._registry, self._on_event)
            self._operations = Operations(self._refresh, self._registry, refresher, self._clocks.forget)
        return self._operations

    # -- the loop ------------------------------------------------------------------------------------------

    def _cycle(self) -> None:
        self._serve_requests()
        wait = self._refresh_due()
        if wait > 0 and not self._stopping.is_set():
            self._verification.turn(self.operations())
            wait = min(wait, self._verification.wait())
        look = self._gate.wait()
        if not self._stopping.is_set():
            idle = POLL_SECONDS if self._registry.readers(*self._watch.polled) else IDLE_SECONDS
            self._sleep(min(wait, idle if look is None else look, self._until_hints()))
        self._hear()

    def _beat(self) -> None:
        """Let health_check see that the loop comes round."""
        if time.time() - self._beaten >= BEAT_SECONDS:
            self._beaten = time.time()
            store.beat(self._control, self._sessions.prepared.kept if self._sessions else PlansKept())

    def _serve_requests(self) -> None:
        self._beat()
        requests = calls.take_requests(self._control)
        if requests:
            self._ears.not_in_vain()
            if self._ddl_told:
                self._follow_ddl()
            # A query may name a table elsewhere that was made a moment ago.
            self._follow_sources()
        for request in requests:
            answer(self.operations(), self._services, request, self._control)
            if self._stopping.is_set():
                return

    def _refresh_due(self) -> float:
        """Refresh what is due; seconds until something will be."""
        self._clocks.update(self._registry.rows)
        for unit in self._registry.units():
            if self._stopping.is_set():
                return 0.0
            try:
                busy = self._refresh_unit(unit)
            except Exception as error:
                if is_lost(*self._connections):
                    raise
                # Not even the failure could be recorded: the other stream tables must not wait for that.
                log.error("stream tables %s are left alone for a while", unit, exc_info=error)
                self._clocks.hold(unit)
                busy = True
            if busy:
                self._serve_requests()
                self._clocks.update(self._registry.rows)
        self._keep_house()
        upcoming = [self._clocks.due(n, self._registry.graph) for n in self._registry.rows if self._is_runnable(n)]
        return max(0.0, min((d for d in upcoming if d is not None), default=time.time() + IDLE_SECONDS) - time.time())

    def _is_runnable(self, node: int) -> bool:
        # Requests served between two units may have dropped or added stream tables.
        return node in self._clocks and node in self._registry.rows and self._registry.rows[node].status in RUNNABLE

    def _refresh_unit(self, unit: Sequence[int]) -> bool:
        """Refresh stream tables that belong together, if one of them is due; whether one was."""
        now = time.time()
        active = [n for n in unit if self._is_runnable(n)]
        planned = {n: self._clocks.due(n, self._registry.graph) for n in active}
        due = [n for n, at in planned.items() if at is not None and at <= now]
        if not due:
            return False
        if not self._told_of_ddl:
            self.operations().redefiner.follow(look=True)
        refresher = self.operations().refresher
        broken = {n: error for n in due if (error := self._clocks.broken(n)) is not None}
        for node, error in broken.items():
            refresher.fail(node, error)
        active = [n for n in active if n not in broken and self._is_runnable(n)]
        self._clocks.begin(active)
        # Periods count from here: what was looked at before may have taken its time.
        began = time.time()
        outcomes = refresher.refresh_unit(active, "SCHEDULER")
        for node in active:
            worked = any(o.table.id == node and (o.changed or o.changes_read) for o in outcomes)
            self._clocks.finish(node, began, planned.get(node), worked=worked or not outcomes)
        changed = {o.table.id for o in outcomes if o.changed}
        self._clocks.mark_dirty(n for n, reads in self._registry.graph.items() if reads & changed and n not in active)
        return True

    def _keep_house(self) -> None:
        """Now and then: prune what every consumer has passed, and look for sources that drifted."""
        if time.time() - self._housekept < HOUSEKEEPING_SECONDS:
            return
        self._housekept = time.time()
        refresher = self.operations().refresher
        with self._house.step("pruning", *self._connections):
            self._house.prune(self._control, self._registry)
        with self._house.step("temporary tables", *self._connections):
            refresher.drop_leftovers()
        with self._house.step("sinks", *self._connections):
            refresher.tidy_sinks()
        with self._house.step("services", *self._connections):
            for service in self._services:
                service.look(self._control)
        with self._house.step("capture", *self._connections):
            for source in repair_capture(self._control, self._registry):
                self._clocks.mark_dirty(self._registry.readers(source))
        if self._sessions is not None:
            self._sessions.prepared.retain(self._registry.rows.keys())
        with self._house.step("definitions", *self._connections):
            record_missing(self._control, self._registry.rows, self._registry.kinds)
            self.operations().redefiner.follow(look=True)

    def _sleep(self, seconds: float) -> None:
        """Until something is heard, asked for, or due."""
        if seconds <= 0:
            return
        deaf = self._ears.deaf_seconds()
        heard = [self._wake_read] if deaf else [self._listen.fileno(), self._wake_read]
        readable, _, _ = select.select(heard, [], [], min(seconds, deaf) if deaf else seconds)
        if self._wake_read in readable:
            os.read(self._wake_read, 4096)

    def _hear(self) -> None:
        """Take in hints: that sources changed, that definitions did, that something elsewhere moved."""
        silent = self._gate.wait() is not None
        hints = self._ears.hear()
        self._ddl_told |= DDL in hints
        if OUTSIDE in hints:
            self._watch.tell()
        if hints & {CHANGES, OUTSIDE}:
            self._gate.hint()
        sources = self._registry.relations(self._registry.rows) & self._registry.tracked
        for source in self._gate.look(sources):
            self._ears.not_in_vain()
            self._clocks.mark_dirty(self._registry.readers(source))
        if self._ddl_told and time.time() - self._ddl_looked >= DDL_SECONDS:
            self._follow_ddl()
        if self._watch.is_due(awake=silent):
            self._follow_sources()

    def _until_hints(self) -> float:
        """Seconds until a hint is followed that came too soon after the last one of its kind."""
        now = time.time()
        ddl = self._ddl_looked + DDL_SECONDS - now if self._ddl_told else IDLE_SECONDS
        return max(0.0, min(ddl, self._watch.wait()))

    def _follow_ddl(self) -> None:
        """Bring definitions in step with what DDL did to their sources."""
        self._ddl_told, self._ddl_looked = False, time.time()
        with self._house.step("sources", *self._connections):
            release_sources(self._control)
        self._registry.reload(self._control)
        refresher = self.operations().refresher
        with self._house.step("temporary tables", *self._connections):
            refresher.drop_leftovers()
        with self._house.step("sinks", *self._connections):
            refresher.tidy_sinks()
        self.operations().redefiner.follow()

    def _follow_sources(self) -> None:
        """Look at sources elsewhere: whoever reads one that moved may have changes waiting."""
        with self._house.step("sources elsewhere", *self._connections):
            self._watch.follow(self._control)
        moved = self._watch.moved(self._control)
        if moved:
            self._ears.not_in_vain()
            self._gate.open()
        self._clocks.mark_dirty(self._registry.readers(*moved))

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except (BlockingIOError, OSError):
            log.debug("already awake")
