"""The engine: its life, from the claim on a database to the end.

One thread decides (`runnel.engine.loop`), on two connections: one holds the claim on the database and listens, one
takes requests and keeps house. What takes longer is done by workers (`runnel.engine.workers`). When the server goes
away the connections are made anew and the work goes on; Spark stays. Whatever else fails is kept where it belongs: in
its request, its stream table, or its step of housekeeping.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from runnel.catalog import claim, loopback, origin
from runnel.catalog import requests as calls
from runnel.catalog.lost import ended, first_line, is_lost
from runnel.catalog.migrate import SET_SETTING, migrate, package_version
from runnel.catalog.restored import take_over
from runnel.catalog.sessions import connect
from runnel.engine.application import Application
from runnel.engine.attention import Attention
from runnel.engine.definitions import release_captures, release_sources
from runnel.engine.desk import Desk
from runnel.engine.loop import Loop, WorkerLost
from runnel.engine.operations import Operations
from runnel.engine.patience import Patience
from runnel.engine.refreshes import describe_failure
from runnel.engine.standby import await_turn
from runnel.engine.verification import Verification
from runnel.engine.workers import Pool
from runnel.errors import TransientError, UserError
from runnel.sources.registry import all_kinds, all_services

if TYPE_CHECKING:
    from runnel.spark.session import SparkSession

log = logging.getLogger(__name__)

FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
# The loop never waits long for a lock: whoever holds it may be at work for minutes.
BRIEF = {"lock_timeout": "300ms"}


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
        workers: int | None = None,
        standby: bool = False,
        cdc_mode: str | None = None,
    ) -> None:
        """Maintain the stream tables of `dsn`.

        `home` is a directory for what this stack keeps outside of the database: the key of stored credentials, and
        the files of the default lake unless `data_path` names another place. Without both there is no default lake.
        `everyone_creates`: stream tables need no membership in `pgtrickle_user`. Each
        `verify_every` seconds a stream table chosen by chance is compared with its query; never if None. Work on
        more than `tasks_above` rows (100,000 unless given) is done by Spark's tasks; `joins_in_spark`: these also join
        what PostgreSQL could join itself. `spark_package` is an archive that executors of a cluster get, made by
        `runnel spark package`. `workers` is how many refreshes run side by side; by default as many as there are
        cores, and at least two. `standby`: if another engine works on the database, wait for its end with Spark
        ready, and take its place. `cdc_mode` is how changes are captured for stream tables that do not say: by
        'trigger', from the 'wal', or 'auto'; as it was before if None.
        """
        self.dsn = dsn
        self._everyone_creates = everyone_creates
        self._standby, self._cdc_mode = standby, cdc_mode
        on_event = on_event or (lambda _: None)
        self._spark = Application(spark, master, tasks_above, joins_in_spark, spark_package, on_event)
        self._desk = Desk(dsn, workers or max(2, os.cpu_count() or 2), on_event)
        self._attention = Attention(self._desk)
        self._services = all_services(dsn, home, data_path, on_event, lambda: self._spark.sessions, self._desk.wake)
        self._desk.around.kinds = lambda: all_kinds(self._services)
        self.loop = Loop(self._desk, self._attention, Verification(verify_every, on_event), self._services)
        self.looks = self._desk.around.looks
        """Which stream tables somebody looks at; give it to a server that shows them."""
        self._desk.around.recapture = self.loop.keep_house_soon
        self._connected = False
        self._patience = Patience(FIRST_WAIT, LONGEST_WAIT)
        self.loopback_problem: TransientError | None = None

    # -- life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install or upgrade the schemas, become the engine, and let Spark start: what needs it waits for it."""
        if self._standby:
            self._spark.start()
            self._spark.warm_up(lambda: self._desk.is_busy)
        while not self._standby or await_turn(self.dsn, self._desk.stopping):
            try:
                self._take_office()
            except TransientError:
                if not self._standby:
                    raise
                # Another one that waited was faster.
            else:
                return

    def _take_office(self) -> None:
        migrate(self.dsn)
        self._connect()
        if self._spark.sessions is None and self._spark.starts_by_itself:
            self._spark.begin()
        if self._everyone_creates:
            self._desk.control.execute(SET_SETTING, ("creators", "everyone"))
        if self._cdc_mode is not None:
            self._desk.control.execute(SET_SETTING, ("cdc_mode", self._cdc_mode))
        self.loopback_problem = loopback.find_problem(self._desk.control, self.dsn)
        if self.loopback_problem is not None:
            log.warning("%s", self.loopback_problem)
        for service in self._services:
            service.prepare(self._desk.control)
        if self._desk.stopping.is_set():
            return
        if self._spark.sessions is None and not self._spark.starts_by_itself:
            self._spark.start()
        if self._spark.sessions is not None:
            self._desk.hire(self._spark.sessions)

    def run(self) -> None:
        """Work until `stop`."""
        sessions = self._spark.wait(self._desk.stopping)
        if sessions is None:
            return
        self._spark.warm_up(lambda: self._desk.is_busy)
        while not self._desk.stopping.is_set():
            try:
                away = not self._connected
                if away:
                    self._connect()
                if not self._desk.has_workers:
                    self._desk.hire(sessions)
                if away:
                    log.warning("connected again")
                self.loop.turn()
                self._patience.reset()
            except Exception as error:
                if self._desk.stopping.is_set():
                    break
                self._recover(error)
                self._desk.stopping.wait(self._patience.next())

    def _recover(self, error: Exception) -> None:
        """Whatever it was, the work goes on: on new connections if those we had are gone, else from the catalog."""
        if not self._connected or isinstance(error, WorkerLost) or ended(error) or is_lost(*self._desk.connections):
            text = first_line(error)
            log.warning("%s: %s", "lost the database" if self._connected else "cannot connect", text)
            self._disconnect()
            return
        log.error("unexpected, the scheduler stumbled: %s", describe_failure(error), exc_info=error)
        for conn in self._desk.connections:
            if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                conn.rollback()
        self._desk.forget()

    def stop(self) -> None:
        """Ask `run` to return soon; safe from other threads and from signal handlers."""
        self._desk.stopping.set()
        self._desk.wake()

    def close(self) -> None:
        """Let go of everything."""
        self._desk.stopping.set()
        for service in self._services:
            service.close()
        self._desk.dismiss("the engine stops")
        if self._desk.connections:
            try:
                claim.release(self._desk.listen)
            except psycopg.Error:
                log.debug("could not unregister", exc_info=True)
        self._disconnect()
        self._spark.stop()

    def __enter__(self) -> Engine:
        """Start on entering a `with` block."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close on leaving it."""
        self.close()

    # -- connections ---------------------------------------------------------------------------------------

    def _connect(self) -> None:
        desk = self._desk
        desk.listen = self._open("runnel engine")
        self._claim()
        self._attention.open()
        desk.control = self._open("runnel requests", BRIEF)
        row = desk.control.execute("SELECT current_user").fetchone()
        assert row is not None
        desk.role = str(row[0])
        if not take_over(desk.control, self._restored):
            origin.mark_first(desk.control)
        origin.note_roles(desk.control)
        calls.abandon_requests(desk.control)
        release_captures(desk.control)
        release_sources(desk.control)
        for service in self._services:
            service.connected(desk.control)
        desk.forget()
        desk.reload()
        self._attention.look_around()
        self._connected = True

    def _restored(self, conn: psycopg.Connection[Any]) -> None:
        for service in self._services:
            service.restored(conn)

    def _claim(self) -> None:
        listen, host, version = self._desk.listen, socket.gethostname(), package_version()
        if claim.claim(listen, host=host, os_pid=os.getpid(), version=version, spark_master=self._spark.master):
            return
        holder = claim.holder(listen)
        self._disconnect()
        who = "another session"
        if holder:
            since = holder["started_at"].strftime("%Y-%m-%d %H:%M:%S")
            who = f"process {holder['os_pid']} on {holder['host']}, running since {since}"
        message = f"another Runnel engine works on this database: {who}"
        hint = "Stop it first (runnel down), or use the one that runs."
        if self._spark.sessions is None:
            raise UserError(message, hint=hint, sqlstate="55006")
        # After a lost connection the server may not have noticed yet that our former session is gone.
        raise TransientError(message, hint=hint)

    def _open(self, name: str, settings: Mapping[str, str] | None = None) -> psycopg.Connection[Any]:
        conn = connect(self.dsn, name, settings)
        self._desk.connections.append(conn)
        return conn

    def _disconnect(self) -> None:
        self._connected = False
        self._desk.dismiss("the engine has lost the database")
        for conn in self._desk.connections:
            conn.close()
        self._desk.connections.clear()
        for kind in self._desk.registry.kinds:
            kind.close()

    @property
    def pool(self) -> Pool:
        """The workers."""
        return self._desk.pool

    def operations(self) -> Operations:
        """The verbs of the first worker; for tests."""
        return self.pool.workers[0].operations
