"""Work that is stopped at a moment chosen by chance, and what must not be left of it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

import runnel
from tests.e2e.helpers import eventually, leftovers, rows, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CALLER = "caller to be stopped"
INTERRUPT = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND state = 'active'"
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'runnel-worker-%' AND state <> 'idle'"

Work = Callable[[runnel.Client], object]


def do(dsn: str, work: Work) -> bool:
    """Whether a call, on a connection of its own, came to its end."""
    with runnel.connect(make_conninfo(dsn, application_name=CALLER)) as client:
        try:
            work(client)
        except runnel.RunnelError as error:
            assert "cancel" in str(error).lower(), error  # noqa: PT017  (nothing else may go wrong)
            return False
        return True


def stop_somewhere(
    dsn: str,
    db: psycopg.Connection,
    engine: runnel.Engine,
    name: str,
    work: Work,
    seconds: float,
    chance: random.Random,
) -> bool:
    """Let work on a stream table begin, and stop it at some moment of so many seconds; whether it had ended before."""
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(do(dsn, work)))
    thread.start()
    time.sleep(chance.random() * seconds)
    if chance.random() < 0.5:
        with runnel.connect(dsn) as client:
            try:
                client.cancel(name)
            except runnel.RunnelError as error:
                assert "does not exist" in str(error)  # noqa: PT017  (it is being created, and has not begun)
    else:
        db.execute(INTERRUPT, (CALLER,))
    thread.join(60)
    assert not thread.is_alive(), "it never came back"
    assert ended, "it went wrong"
    eventually(lambda: not [j for _, j in engine.pool.running() if j.subject.endswith(name)], what="the work goes on")
    return ended[0]


def files(place: Path) -> set[str]:
    """The names of all data files of a lake."""
    return {path.name for path in place.rglob("*.parquet")}


class Quiet:
    """A database, its engine and its lake in a quiet moment, to be compared with later ones."""

    def __init__(self, db: psycopg.Connection, spark: SparkSession, lake: Path) -> None:
        self.db, self.spark, self.lake = db, spark, lake
        self._left, self._files = leftovers(db), files(lake)

    def nothing_is_left(self) -> None:
        """Nothing is there, nobody is at work, and no file is on its way that was not then."""
        end = time.monotonic() + 20
        while (found := self._new()) and time.monotonic() < end:
            time.sleep(0.1)
        assert not found, "something is left behind"
        assert value(self.db, SESSIONS) == 0, "a task's session is still at work"
        tracker = self.spark.sparkContext.statusTracker()
        eventually(lambda: not tracker.getActiveJobsIds(), what="a Spark job goes on")
        strange = (
            "SELECT relname FROM pg_class WHERE relname ~ '^pgt_[a-z]+_[0-9]+_' AND relpersistence = 't' AND "
            "substring(relname FROM '[0-9]+')::int8 <> ALL (SELECT pgt_id FROM pgtrickle.pgt_stream_tables)"
        )
        eventually(lambda: not rows(self.db, strange), what="temporary tables of nobody")

    def no_file_is_lost(self) -> None:
        """All data files are known to the lake's catalog; call it when nothing is published any more."""
        # Files of failed transactions are looked for until none can come any more.
        eventually(
            lambda: not rows(self.db, "SELECT * FROM pgtrickle.pgt_lake_uploads WHERE given_up_at IS NULL"),
            20,
            what="an upload is neither published nor given up",
        )
        known = {path.rsplit("/", 1)[-1] for (path,) in rows(self.db, _known_files(self.db))}
        assert files(self.lake) - self._files <= known, "files that no catalog knows"

    def _new(self) -> dict[str, list[Any]]:
        # What was dropped before may have gone from the lake meanwhile.
        now = leftovers(self.db)
        new = {name: [each for each in now[name] if each not in was] for name, was in self._left.items()}
        return {name: found for name, found in new.items() if found and name != "stream tables"}


def _known_files(db: psycopg.Connection) -> str:
    schema = value(db, "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'ducklake_data_file'")
    tables = ("ducklake_data_file", "ducklake_delete_file", "ducklake_files_scheduled_for_deletion")
    return " UNION ALL ".join(f"SELECT path FROM {schema}.{table}" for table in tables)
