"""The relay: one thread that listens, and one per pipeline, each with a connection of its own.

A sink that is slow or dead keeps nobody waiting but its own pipeline. Several relays share the pipelines: each is
worked on by the session that has claimed it, as long as that session lives. What a pipeline is told may change while it
runs; its thread is then replaced.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.catalog.lost import first_line
from runnel.catalog.sessions import connect
from runnel.errors import RunnelError
from runnel.relay import catalog, webhooks
from runnel.relay.arrival import Reception
from runnel.relay.config import Pipeline
from runnel.relay.delivery import Delivery, Step
from runnel.relay.registry import open_sink, open_source

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at an outbox that nobody has spoken of."""
CLAIM_SECONDS = 1.0
"""Between two attempts to get a pipeline that another relay has."""
CONFIG_SECONDS = 5.0
"""Between two looks at the pipelines, unless one is changed."""
CHANGE_SECONDS = 0.1
"""Between two looks while a worker is being replaced."""
SWEEP_SECONDS = 60.0
SECONDS_TO_STOP = 10.0


@dataclass
class Worker:
    """The thread of one pipeline."""

    dsn: str = field(repr=False)
    pipeline: Pipeline
    woken: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread = field(init=False)

    def start(self) -> None:
        """Begin to work."""
        self.thread = threading.Thread(target=self._run, name=f"relay {self.pipeline.name}", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End after the step that is under way."""
        self.stopping.set()
        self.woken.set()

    def _run(self) -> None:
        failures = 0
        while not self.stopping.is_set():
            try:
                with connect(self.dsn, f"runnel relay {self.pipeline.name}"[:60], timeout=10) as conn:
                    # Code of others may run in this session: afterwards all that is prepared is thrown away.
                    conn.prepare_threshold = None
                    if catalog.take(conn, self.pipeline):
                        self._work(conn)
                    else:
                        self.stopping.wait(CLAIM_SECONDS)
                failures = 0
            except Exception as error:
                failures += 1
                known = isinstance(error, RunnelError | psycopg.Error)
                text = first_line(error) if isinstance(error, psycopg.Error) else str(error)
                log.warning("relay %s: %s", self.pipeline.name, text, exc_info=None if known else error)
                self._record(text)
                self.stopping.wait(min(0.5 * 2 ** min(failures, 6), 30.0))

    def _work(self, conn: psycopg.Connection[Any]) -> None:
        if self.pipeline.inbox:
            self._receive(conn)
            return
        # Whatever is wrong with the sink has a row to be written to.
        catalog.standing(conn, self.pipeline)
        sink = open_sink(self.pipeline, self.dsn)
        try:
            delivery = Delivery(conn, self.pipeline, sink)
            while not self.stopping.is_set():
                self.woken.clear()
                self._rest(delivery.step())
        finally:
            sink.close()

    def _rest(self, step: Step) -> None:
        if step.over:
            self.stop()
        if step.error is not None:
            log.warning("relay %s: %s", self.pipeline.name, step.error)
        if step.wait is not None:
            self.stopping.wait(step.wait)
        elif not step.sent:
            self.woken.wait(LOOK_SECONDS)

    def _receive(self, conn: psycopg.Connection[Any]) -> None:
        source = open_source(self.pipeline)
        try:
            reception = Reception(conn, self.pipeline, source)
            while not self.stopping.is_set():
                reception.step(LOOK_SECONDS)
        finally:
            source.close()

    def _record(self, text: str) -> None:
        """Say in the catalog what is wrong, if it can be reached."""
        try:
            with connect(self.dsn, "runnel relay", timeout=5) as conn:
                if self.pipeline.inbox:
                    catalog.not_received(conn, self.pipeline.name, text)
                else:
                    catalog.failed(conn, self.pipeline, text)
        except (RunnelError, psycopg.Error):
            log.debug("the failure could not be recorded", exc_info=True)


class Relay:
    """All pipelines of a database, until it is closed."""

    def __init__(self, dsn: str, *, only: Callable[[str], bool] | None = None) -> None:
        """`only`: which pipelines this relay may work on, by name; all unless given."""
        self._dsn = dsn
        self._only = only or (lambda _: True)
        self._workers: dict[str, Worker] = {}
        self._stopping = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._thread: threading.Thread | None = None
        self._forbidden: set[str] = set()
        self._swept = 0.0

    def start(self) -> None:
        """Begin, in threads of its own."""
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the steps that are under way."""
        self._stopping.set()
        if self._thread is not None:
            os.write(self._wake_write, b"x")
            self._thread.join(SECONDS_TO_STOP)
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with connect(self._dsn, "runnel relay", timeout=10) as conn:
                    conn.execute("LISTEN tide_outbox_new")
                    conn.execute("LISTEN tide_relay_config")
                    while not self._stopping.is_set():
                        self._look(conn)
                        self._listen(conn)
            except Exception as error:
                known = isinstance(error, RunnelError | psycopg.Error)
                log.warning("relay: %s", error, exc_info=None if known else error)
                self._stopping.wait(1.0)
        for worker in self._workers.values():
            worker.stop()
        deadline = time.monotonic() + SECONDS_TO_STOP
        for worker in self._workers.values():
            worker.thread.join(max(0.0, deadline - time.monotonic()))

    def _look(self, conn: psycopg.Connection[Any]) -> None:
        """Bring the workers in step with what is configured."""
        found, forbidden = catalog.pipelines(conn)
        for name in set(forbidden) - self._forbidden:
            log.warning("relay %s: its owner may not do this any more", name)
        self._forbidden = set(forbidden)
        # Webhooks are pushed to the HTTP server; nobody asks for them.
        wanted = {p.name: p for p in found if self._only(p.name) and not (p.inbox and p.kind == webhooks.KIND)}
        for name, worker in list(self._workers.items()):
            if wanted.get(name) != worker.pipeline:
                worker.stop()
            if worker.stopping.is_set() and not worker.thread.is_alive():
                del self._workers[name]
        for name, pipeline in wanted.items():
            if name not in self._workers:
                self._workers[name] = Worker(self._dsn, pipeline)
                self._workers[name].start()
        if time.monotonic() - self._swept > SWEEP_SECONDS:
            self._swept = time.monotonic()
            catalog.sweep(conn)

    def _listen(self, conn: psycopg.Connection[Any]) -> None:
        changing = any(worker.stopping.is_set() for worker in self._workers.values())
        seconds = CHANGE_SECONDS if changing else CONFIG_SECONDS
        select.select([conn.fileno(), self._wake_read], [], [], seconds)
        for heard in conn.notifies(timeout=0):
            for worker in self._workers.values():
                if heard.payload in (worker.pipeline.place, worker.pipeline.name):
                    worker.woken.set()
