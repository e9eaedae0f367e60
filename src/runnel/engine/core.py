"""The engine: starts, waits for something to do, does it, stops.

One thread drives everything, on three connections: one holds the engine's lock and listens, one answers requests,
one refreshes. When the server goes away the connections are made anew and the work goes on; Spark stays.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from runnel.catalog import loopback, store
from runnel.catalog import requests as calls
from runnel.catalog.migrate import migrate, package_version
from runnel.engine import lakes, sinks
from runnel.engine.definitions import release_sources
from runnel.engine.gate import WakeGate
from runnel.engine.housekeeping import prune, repair_capture
from runnel.engine.operations import Operations
from runnel.engine.refreshes import Refresher, describe_failure
from runnel.engine.registry import Registry
from runnel.engine.requests import answer
from runnel.engine.standins import Standins
from runnel.engine.upkeep import Upkeep
from runnel.errors import TransientError, UserError
from runnel.schedule.due import Clocked, due_at
from runnel.schedule.spec import parse_schedule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from runnel.spark.session import Sessions

log = logging.getLogger(__name__)

CHANNELS = ("pgtrickle_request", "pgtrickle_wake", "pgtrickle_ddl")
HOUSEKEEPING_SECONDS = 5.0
IDLE_SECONDS = 30.0
LAKE_LOOK_SECONDS = 0.1
LAKE_POLL_SECONDS = 1.0
"""How often lakes are looked at that cannot tell of new snapshots."""
RECONNECT_SECONDS = 0.5
RUNNABLE = ("ACTIVE", "INITIALIZING")
SLIP_SECONDS = 0.5
"""A refresh that starts this much late still counts from when it was due."""


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
    ) -> None:
        """Maintain the stream tables of `dsn`.

        `home` is a directory for what this stack keeps outside of the database: the key of stored credentials, and
        the files of the default lake unless `data_path` names another place. Without both there is no default lake.
        """
        self.dsn = dsn
        self._home = home
        self._data_path = data_path
        self._spark = spark
        self._master = master
        self._on_event = on_event or (lambda _: None)
        self._sessions: Sessions | None = None
        self._stopping = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._registry = Registry()
        self._clocks: dict[int, Clocked] = {}
        self._connections: list[psycopg.Connection[Any]] = []
        self._housekept = 0.0
        self._lakes = Standins()
        self._lakes_looked = 0.0
        self._upkeep = Upkeep(dsn, self._on_event)
        self.loopback_problem: TransientError | None = None

    # -- life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install or upgrade the schemas, become the engine, start Spark, and warm it up."""
        migrate(self.dsn)
        self._connect()
        self.loopback_problem = loopback.find_problem(self._control, self.dsn)
        if self.loopback_problem is not None:
            log.warning("%s", self.loopback_problem)
        lakes.prepare(self._control, self._home, self._data_path)
        if not self._stopping.is_set():
            self._start_spark()

    def run(self) -> None:
        """Work until `stop`."""
        while not self._stopping.is_set():
            try:
                if not self._connections:
                    self._connect()
                self._cycle()
            except psycopg.OperationalError as error:
                if self._stopping.is_set():
                    break
                log.warning("lost the database: %s", str(error).strip().splitlines()[0] if str(error) else error)
                self._on_event("lost the database, reconnecting")
                self._disconnect()
                self._stopping.wait(RECONNECT_SECONDS)
            except TransientError as error:
                log.warning("%s", error)
                self._disconnect()
                self._stopping.wait(RECONNECT_SECONDS)
            except Exception as error:
                # Whatever it was, the other stream tables must not suffer: start over from the catalog.
                log.exception("the scheduler stumbled")
                self._on_event(f"unexpected: {describe_failure(error)}")
                self._disconnect()
                self._stopping.wait(RECONNECT_SECONDS)

    def stop(self) -> None:
        """Ask `run` to return soon; safe from other threads and from signal handlers."""
        self._stopping.set()
        self._wake()

    def close(self) -> None:
        """Let go of everything."""
        self._stopping.set()
        self._upkeep.close()
        if self._connections:
            try:
                store.unregister_engine(self._listen)
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
        if not store.try_engine_lock(self._listen):
            holder = store.load_engine(self._listen)
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
        for channel in CHANNELS:
            self._listen.execute(f"LISTEN {channel}".encode())
        store.register_engine(
            self._listen,
            host=socket.gethostname(),
            os_pid=os.getpid(),
            version=package_version(),
            spark_master=self._master,
        )
        self._control = self._open("runnel requests")
        self._refresh = self._open("runnel refresh")
        # Builds sort and hash millions of rows; the default of 4 MB would send them to disk.
        for setting in ("work_mem = '128MB'", "maintenance_work_mem = '256MB'", "temp_buffers = '64MB'"):
            self._refresh.execute(f"SET {setting}".encode())
        row = self._refresh.execute("SELECT current_user, current_user::regrole::oid::int8").fetchone()
        assert row is not None
        self._role, self._role_oid = str(row[0]), int(row[1])
        calls.abandon_requests(self._control)
        release_sources(self._control)
        self._registry.forget_all()
        self._registry.reload(self._control)
        for clock in self._clocks.values():
            clock.dirty = True
        self._gate = WakeGate(self._control)
        # A former engine may have left the gate open.
        self._gate.open()
        self._lakes = Standins()
        self._follow_lakes()

    def _open(self, name: str) -> psycopg.Connection[Any]:
        conn = psycopg.connect(self.dsn, autocommit=True, application_name=name)
        conn.execute("SET jit = off")
        self._connections.append(conn)
        return conn

    def _disconnect(self) -> None:
        for conn in self._connections:
            conn.close()
        self._connections.clear()
        if self._operations is not None:
            self._operations.refresher.publisher.close()
        self._lakes.catalogs.close()
        self._operations = None

    def _start_spark(self) -> None:
        from runnel.spark import session, warm  # noqa: PLC0415  (Spark is imported only when it is used)

        began = time.monotonic()
        self._sessions = session.adopt(self._spark) if self._spark is not None else session.build_sessions(self._master)
        if self._spark is None:
            self._on_event(f"Spark started ({time.monotonic() - began:.1f} s), warming up ...")
            warm.warm_up(self._sessions)

    _operations: Operations | None = None

    def operations(self) -> Operations:
        """The verbs, bound to the current connections."""
        if self._operations is None:
            assert self._sessions is not None, "call start() first"
            refresher = Refresher(
                self._refresh, self.dsn, self._sessions, self._registry, self._role, self._role_oid, self._on_event,
                self._lakes,
            )  # fmt: skip
            self._operations = Operations(self._refresh, self._registry, refresher, self._forget_clock)
        return self._operations

    # -- the loop ------------------------------------------------------------------------------------------

    def _cycle(self) -> None:
        self._serve_requests()
        wait = self._refresh_due()
        look = self._gate.wait()
        if not self._stopping.is_set():
            idle = LAKE_POLL_SECONDS if self._registry.lake_readers(self._lakes.polled) else IDLE_SECONDS
            self._sleep(min(wait, idle if look is None else look))
        self._hear()

    def _serve_requests(self) -> None:
        requests = calls.take_requests(self._control)
        if requests:
            # A query may name a lake table that was made a moment ago.
            self._follow_lakes()
        for request in requests:
            answer(self.operations(), self._upkeep, request, self._control)
            if self._stopping.is_set():
                return

    def _refresh_due(self) -> float:
        """Refresh what is due; seconds until something will be."""
        self._update_clocks()
        for unit in self._registry.units():
            if self._stopping.is_set():
                return 0.0
            now = time.time()
            # Requests served between two units may have dropped or added stream tables.
            active = [n for n in unit if n in self._clocks and self._registry.rows[n].status in RUNNABLE]
            planned = {n: due_at(n, self._clocks, self._registry.graph) for n in active}
            if not any(d is not None and d <= now for d in planned.values()):
                continue
            for node in active:
                self._clocks[node].dirty = False
            outcomes = self.operations().refresher.refresh_unit(active, "SCHEDULER")
            # A look that found nothing does not delay the next change; cron and the clock go on in any case.
            for node in active:
                clock = self._clocks.get(node)
                worked = any(o.table.id == node and (o.changed or o.changes_read) for o in outcomes)
                if clock and (worked or clock.uses_clock or clock.schedule.kind == "cron" or not outcomes):
                    # Counted from when it was due, so that a steady stream of changes keeps a steady rhythm.
                    late = now - (planned.get(node) or now)
                    clock.last_start = now - late if late < SLIP_SECONDS else now
            changed = {o.table.id for o in outcomes if o.changed}
            for node, reads in self._registry.graph.items():
                if reads & changed and node not in active and node in self._clocks:
                    self._clocks[node].dirty = True
            self._serve_requests()
            self._update_clocks()
        self._keep_house()
        upcoming = [
            due_at(n, self._clocks, self._registry.graph)
            for n, row in self._registry.rows.items()
            if row.status in RUNNABLE
        ]
        return max(0.0, min((d for d in upcoming if d is not None), default=time.time() + IDLE_SECONDS) - time.time())

    def _update_clocks(self) -> None:
        for pgt_id, row in self._registry.rows.items():
            known = self._clocks.get(pgt_id)
            if known is None:
                known = self._clocks[pgt_id] = Clocked(parse_schedule(row.schedule), row.uses_clock)
                if known.schedule.kind == "cron" and row.last_refresh_at:
                    # The filling of a new table, or a restart, does not count as a refresh; a fired cron does.
                    known.last_start = row.last_refresh_at.timestamp()
            if known.schedule.text != row.schedule:
                known.schedule = parse_schedule(row.schedule)
            retry = row.retry_at.timestamp() if row.retry_at else 0.0
            if retry:
                known.dirty = True
            known.retry_at = retry
        for gone in self._clocks.keys() - self._registry.rows.keys():
            del self._clocks[gone]

    def _forget_clock(self, pgt_id: int) -> None:
        """A stream table was defined, changed or resumed: it is due as soon as it has changes."""
        self._clocks.pop(pgt_id, None)

    def _keep_house(self) -> None:
        """Now and then: prune what every consumer has passed, and look for sources that drifted."""
        if time.time() - self._housekept < HOUSEKEEPING_SECONDS:
            return
        self._housekept = time.time()
        prune(self._control, self._registry)
        sinks.tidy(self.operations().refresher)
        self._upkeep.look(self._control)
        for source in repair_capture(self._control, self._registry):
            self._mark_dirty(source)

    def _sleep(self, seconds: float) -> None:
        """Until something is heard, asked for, or due."""
        if seconds <= 0:
            return
        readable, _, _ = select.select([self._listen.fileno(), self._wake_read], [], [], seconds)
        if self._wake_read in readable:
            os.read(self._wake_read, 4096)

    def _hear(self) -> None:
        """Take in notifications: whose source changed, and whether definitions did."""
        sources = {oid for reads in self._registry.sources.values() for oid in reads} & self._registry.tracked
        changed: set[int] = set()
        silent = self._gate.wait() is not None
        told = False
        try:
            changed.update(self._gate.look(sources))
        except psycopg.errors.UndefinedTable:
            # A source was dropped a moment ago, its buffer with it; the next look starts from the same snapshot.
            self._registry.reload(self._control)
        for note in self._listen.notifies(timeout=0):
            if note.channel == "pgtrickle_wake":
                if note.payload == "lake":
                    told = True
                else:
                    changed.add(int(note.payload or 0))
                self._gate.open()
            elif note.channel == "pgtrickle_ddl":
                release_sources(self._control)
                self._registry.reload(self._control)
                sinks.tidy(self.operations().refresher)
                self.operations().follow_views()
        for source in changed:
            self._mark_dirty(source)
        waited = time.time() - self._lakes_looked
        if told or waited >= (
            LAKE_LOOK_SECONDS if silent else LAKE_POLL_SECONDS if self._lakes.polled else IDLE_SECONDS
        ):
            self._follow_lakes()

    def _follow_lakes(self) -> None:
        """Look for new snapshots of lakes: whoever reads such a lake may have changes waiting."""
        self._lakes_looked = time.time()
        self._lakes.follow(self._control)
        moved = self._lakes.moved()
        if moved:
            self._gate.open()
        for reader in self._registry.lake_readers(moved):
            if reader in self._clocks:
                self._clocks[reader].dirty = True

    def _mark_dirty(self, source: int) -> None:
        """Changes may be waiting for whoever reads a captured table."""
        for reader in self._registry.readers(source):
            if reader in self._clocks:
                self._clocks[reader].dirty = True

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except (BlockingIOError, OSError):
            log.debug("already awake")
