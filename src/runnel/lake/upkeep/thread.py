"""Maintenance of lakes, beside the engine's work: one thread, one lake at a time, on connections of its own.

Merging files may take minutes, and refreshes must not wait for it; what both commit is kept apart by the lake's own
protocol. A request to maintain a lake is answered from here when the work is done.
"""

from __future__ import annotations

import datetime as dt
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from runnel.catalog import requests as calls
from runnel.catalog.lost import ended, first_line
from runnel.catalog.sessions import connect
from runnel.errors import EngineBug, RunnelError, TransientError
from runnel.lake import attached as stored
from runnel.lake.connection import connect_catalog
from runnel.lake.format.model import Lake
from runnel.lake.upkeep.compact import Tasks
from runnel.lake.upkeep.maintain import maintain
from runnel.lake.upkeep.settings import Settings

log = logging.getLogger(__name__)

SECONDS_TO_STOP = 10.0
FOREVER = dt.timedelta(days=36500)
OTHER_PLACES = "SELECT data_path FROM pgtrickle.pgt_lakes WHERE name <> %s"
PENDING = "SELECT path FROM pgtrickle.pgt_lake_uploads WHERE lake = %s"


@dataclass(frozen=True, slots=True)
class Task:
    """A lake to tidy (None is the default one), and the request that waits for it, if any."""

    lake: str | None
    request_id: int | None = None


class Upkeep:
    """The thread, and what waits for it."""

    def __init__(
        self, dsn: str, on_event: Callable[[str], None], tasks: Callable[[], Tasks | None] = lambda: None
    ) -> None:
        """`tasks` are asked for when there is work."""
        self._dsn = dsn
        self._tasks_at_hand = tasks
        self._on_event = on_event
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._waiting: set[str] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self, conn: psycopg.Connection[Any]) -> None:
        """Let lakes whose turn it is join the queue."""
        for name in stored.due_for_maintenance(conn):
            if name not in self._waiting:
                self._waiting.add(name)
                self._put(Task(name))

    def answer(self, request_id: int, name: str | None) -> None:
        """Tidy a lake because somebody asked for it; the request is finished when that is done."""
        self._put(Task(name, request_id))

    def close(self) -> None:
        """Stop after the step that is under way; whatever was not committed is done again next time."""
        self._stopping.set()
        self._tasks.put(None)
        if self._thread is not None:
            self._thread.join(SECONDS_TO_STOP)
            self._thread = None

    def _put(self, task: Task) -> None:
        self._tasks.put(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="lake upkeep", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None and not self._stopping.is_set():
            try:
                self._do(task)
            except Exception:
                # A lost server ends the engine's connections too, and it says so; here the next turn tries again.
                log.warning("maintenance of lake %s was broken off", task.lake or "", exc_info=True)
            finally:
                self._waiting.discard(task.lake or "")

    def _do(self, task: Task) -> None:
        with _open(self._dsn) as conn:
            try:
                result = self._maintain(conn, task)
            except RunnelError as error:
                self._failed(conn, task, error)
            except Exception as error:
                if ended(error):
                    # The lake's own server, or ours; then this raises too, and the next engine tells whoever waits.
                    text = f"the catalog of the lake cannot be reached: {first_line(error)}"
                    self._failed(conn, task, TransientError(text))
                    return
                log.exception("maintenance of lake %s failed", task.lake)
                self._failed(conn, task, EngineBug(f"maintenance failed: {error}", hint="The engine's log has more."))
            else:
                if task.request_id is not None:
                    calls.finish_request(conn, task.request_id, result=result)

    def _maintain(self, conn: psycopg.Connection[Any], task: Task) -> dict[str, Any]:
        lake = stored.named_lake(conn, task.lake)
        pending = [str(row[0]) for row in conn.execute(PENDING, (lake.name,))]
        with self._reach(lake) as work, self._reach(lake) as observer:
            settings, tasks = _settings(conn, lake), self._tasks_at_hand()
            report = asdict(maintain(work, observer, lake, settings, pending=pending, tasks=tasks))
        stored.mark_maintained(conn, lake.name)
        log.info("lake %s was tidied: %s", lake.name, {key: value for key, value in report.items() if value})
        return report

    def _reach(self, lake: Lake) -> psycopg.Connection[Any]:
        return _open(self._dsn) if lake.dsn is None else connect_catalog(lake)

    def _failed(self, conn: psycopg.Connection[Any], task: Task, error: RunnelError) -> None:
        if task.request_id is not None:
            calls.finish_request(conn, task.request_id, error=error)
            return
        # Not again at once: the next turn comes after the same time as after a success.
        stored.mark_maintained(conn, str(task.lake))
        log.warning("lake %s could not be tidied: %s", task.lake, error)
        self._on_event(f"lake {task.lake} could not be tidied: {error}")


def _settings(conn: psycopg.Connection[Any], lake: Lake) -> Settings:
    """The usual ones; but where lakes share a folder, a file that one does not know may be the other's."""
    others = [str(row[0]) for row in conn.execute(OTHER_PLACES, (lake.name,))]
    shared = any(each.startswith(lake.data_path) or lake.data_path.startswith(each) for each in others)
    return Settings(orphan_grace=FOREVER) if shared else Settings()


def _open(dsn: str) -> psycopg.Connection[Any]:
    return connect(dsn, "runnel upkeep", timeout=10)
