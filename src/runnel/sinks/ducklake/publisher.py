"""Publishing as refreshes see it: one `Publication` per refresh transaction, over connections that stay.

The lake's rows are written by the refresh transaction, so a snapshot and the rows it shows are committed together. A
lake on another server is committed just before; should the refresh then fail, the next publication finds that the
two disagree and publishes the table whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from runnel.catalog.lost import is_lost
from runnel.catalog.owner import AsOwner, as_owner
from runnel.errors import RunnelError, TransientError
from runnel.lake.attached import load_lake, load_lakes
from runnel.lake.format import catalog
from runnel.lake.store.storage import StoreError
from runnel.lake.write.commit import begin_snapshot, finish
from runnel.lake.write.tables import drop_table
from runnel.lake.write.views import drop_view
from runnel.model.names import Name
from runnel.sinks import catalog as sinks
from runnel.sinks.catalog import Sink
from runnel.sinks.ducklake.changes import publish_changes, publish_log
from runnel.sinks.ducklake.columns import SETTINGS, PublishedColumn, keep_types, published
from runnel.sinks.ducklake.job import Job, fits
from runnel.sinks.ducklake.large import complete_map, is_large, prepare_large, publish_large
from runnel.sinks.ducklake.leftovers import Leftovers
from runnel.sinks.ducklake.options import check_columns
from runnel.sinks.ducklake.places import KnownTables, Standing, stand
from runnel.sinks.ducklake.rowmap import drop_map
from runnel.sinks.ducklake.session import Connections, LakeSession
from runnel.sinks.ducklake.stored import StoredFiles
from runnel.sinks.ducklake.uploads import Uploads
from runnel.sinks.ducklake.whole import publish_whole
from runnel.sinks.ducklake.write import FileWriter
from runnel.sinks.files.export import export_changes
from runnel.sinks.model import Published, Refreshed, Result

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]


@dataclass
class Publisher:
    """What publications share."""

    dsn: str
    sessions: Sessions
    connections: Connections = field(init=False)
    leftovers: Leftovers = field(init=False)
    stored: StoredFiles = field(default_factory=StoredFiles)
    known: KnownTables = field(default_factory=KnownTables)

    def __post_init__(self) -> None:
        self.connections = Connections(self.dsn)
        self.leftovers = Leftovers(self.dsn)

    @contextmanager
    def publication(self, conn: Connection) -> Iterator[Publication]:
        """Put this around the transaction: it looks after its files when that has ended, one way or the other."""
        current = Publication(self, conn)
        try:
            yield current
        except BaseException as error:
            current.undo(error)
            raise
        current.uploads.done()

    def close(self) -> None:
        """Let go of all connections."""
        self.leftovers.close()
        self.connections.close()


@dataclass(frozen=True, slots=True)
class Later:
    """A table that is published in a transaction of its own."""

    result: Result
    refreshed: Refreshed
    why: str


@dataclass
class Publication:
    """What one transaction publishes."""

    publisher: Publisher
    conn: Connection
    uploads: Uploads = field(init=False)
    _lakes: dict[str, LakeSession] = field(default_factory=dict)
    _snapshots: dict[str, int] = field(default_factory=dict)
    """Per lake the last snapshot written by this transaction."""
    later: list[Later] = field(default_factory=list)
    """Large tables, to be published by `publish_large` when this transaction has committed."""
    _xid: str | None = None

    def __post_init__(self) -> None:
        self.uploads = Uploads(self.publisher.connections.observer, self._transaction_id)

    def publish(self, sink: Sink, result: Result, refreshed: Refreshed) -> Published | None:
        """Publish what a refresh did to a stream table; None when there is nothing to say."""
        if exports(sink, refreshed.changed):
            export_changes(
                self._owner(result.owner), self.uploads, sink, result, refreshed, load_lakes(self.conn).values()
            )
        if not publishes(sink, refreshed.changed, result.definition_version):
            return None
        began = time.perf_counter()
        with self._elsewhere():
            job = self._job(sink, result, refreshed)
            done = self._publish(job)
        if done is not None:
            self._finish(job, done, began)
        return done

    def publish_large(self, sink: Sink, result: Result, refreshed: Refreshed) -> Published:
        """Publish a table whole, by Spark's tasks; in a transaction that wrote nothing to it."""
        began = time.perf_counter()
        with self._elsewhere():
            job = self._job(sink, result, refreshed)
            done = publish_large(job, self.publisher.sessions, self.publisher.dsn, "")
        self._finish(job, done, began)
        return done

    def complete_map(self, sink: Sink, name: Name, relid: int, owner: str, columns: Sequence[PublishedColumn]) -> Sink:
        """Build the row map that a large publication has left for later; before the table changes."""
        return complete_map(self._owner(owner), sink, name, relid, columns)

    def drop(self, sink: Sink, *, why: str) -> None:
        """Drop a stream table's table and view in the lake, and forget the sink."""
        drop_map(self.conn, sink.pgt_id)
        if sink.publishes and sink.table_id is not None and sink.lake is not None:
            session = self._session(sink.lake)
            head = catalog.head(session.observer, session.lake)
            table = catalog.table_by_id(session.observer, session.lake, sink.table_id, head)
            draft = begin_snapshot(session.conn, session.observer, session.lake)
            drop_view(draft, sink.lake_schema, sink.view_name)
            if table is not None:
                drop_table(draft, table)
            self._snapshots[sink.lake] = finish(draft, author="pg_trickle", message=why)
        sinks.delete_sink(self.conn, sink.pgt_id)

    def commit_others(self) -> None:
        """Commit lakes on other servers; call just before the refresh's own COMMIT."""
        with self._elsewhere():
            for session in self._lakes.values():
                if session.remote and session.conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    session.conn.execute("COMMIT")

    def undo(self, error: BaseException) -> None:
        """After a failure: what was uploaded goes, if it is sure that nothing of it was committed."""
        for session in self._lakes.values():
            if session.remote:
                self.publisher.connections.forget(session.lake.name)
        if not self.uploads.any:
            return
        connections = self.publisher.connections
        try:
            # A store that has just failed would only make us wait.
            if not isinstance(error, StoreError):
                self.uploads.undo(connections, load_lakes(connections.observer()))
        except (RunnelError, psycopg.Error) as trouble:
            log.info("files of the failed refresh are removed later: %s", trouble)
        self.publisher.leftovers.wake()

    # -- details -------------------------------------------------------------------------------------------

    @contextmanager
    def _elsewhere(self) -> Iterator[None]:
        """A lost server of a lake is not the loss of the engine's own: the refresh is tried again later."""
        try:
            yield
        except psycopg.Error as error:
            for session in self._lakes.values():
                if session.remote and is_lost(session.conn, session.observer):
                    raise TransientError(
                        f"lake {session.lake.name}: the connection to the server of its catalog was lost",
                        hint="The stream table is refreshed again when it is back.",
                    ) from error
            raise

    def _finish(self, job: Job, done: Published, began: float) -> None:
        self._snapshots[job.session.lake.name] = done.snapshot
        done.timings["publish"] = round((time.perf_counter() - began) * 1000 - job.files.milliseconds, 3)
        done.timings["upload"] = round(job.files.milliseconds, 3)

    def _publish(self, job: Job) -> Published | None:
        why = _why_whole(job)
        if why is None:
            assert job.standing.table is not None
            if job.logs:
                return publish_log(job, job.standing.table)
            done = publish_changes(job, job.standing.table, resync=_distrusts_delta(job))
            if isinstance(done, Published):
                return done
            why = done
        # In mode replace the lake is to change together with the table, however large.
        if job.sink.mode != "replace" and is_large(job):
            snapshot = prepare_large(job)
            if snapshot is not None:
                self._snapshots[job.session.lake.name] = snapshot
            self.later.append(Later(job.result, job.refreshed, why))
            return None
        return publish_whole(job, why)

    def _job(self, sink: Sink, result: Result, refreshed: Refreshed) -> Job:
        assert sink.lake is not None
        session = self._session(sink.lake)
        if sink.table_id is None:
            standing = Standing(catalog.head(session.observer, session.lake), None)
        else:
            standing = stand(session.observer, session.lake, sink, self.publisher.known)
        columns = published(result.columns, result.scales)
        if sink.definition_version == result.definition_version:
            columns = keep_types(columns, sink.columns)
        check_columns(sink, result.name, [c.name for c in columns])
        return Job(
            conn=self.conn,
            owner=self._owner(result.owner),
            session=session,
            files=FileWriter(session.lake, self.uploads, sink.compression),
            stored=self.publisher.stored,
            sink=sink,
            result=result,
            refreshed=refreshed,
            columns=columns,
            standing=standing,
            next_snapshot=max(standing.head, self._snapshots.get(sink.lake, 0)) + 1,
        )

    def _owner(self, role: str) -> AsOwner:
        owner = as_owner(self.conn, role, SETTINGS)
        owner.pin()
        return owner

    def _session(self, name: str) -> LakeSession:
        if name not in self._lakes:
            session = self.publisher.connections.session(self.conn, load_lake(self.conn, name))
            if session.remote:
                session.conn.execute("BEGIN")
            self._lakes[name] = session
        return self._lakes[name]

    def _transaction_id(self) -> str:
        if self._xid is None:
            row = self.conn.execute("SELECT pg_current_xact_id()::text").fetchone()
            assert row is not None
            self._xid = str(row[0])
        return self._xid


def exports(sink: Sink, changed: bool) -> bool:
    """Whether a refresh's changes are to be written to a file of their own."""
    return changed and sink.delta_export_path is not None


def publishes(sink: Sink, changed: bool, definition_version: int) -> bool:
    """Whether the lake has something to learn from a refresh."""
    return sink.publishes and (changed or sink.row_count is None or sink.definition_version != definition_version)


def _why_whole(job: Job) -> str | None:
    """Why the table cannot be brought in step by its changes, or None."""
    sink, standing = job.sink, job.standing
    if sink.row_count is None:
        return "first publication"
    if sink.mode == "replace":
        return "mode replace"
    if standing.table is None:
        return "its table in the lake is gone"
    if sink.columns != [c.as_json for c in job.columns]:
        return "its columns have changed"
    if not fits(job):
        return "another writer altered its table in the lake"
    if (standing.next_row_id, standing.rows) != (sink.next_row_id, sink.row_count) or standing.touched:
        return "another writer changed its rows in the lake"
    return None


def _distrusts_delta(job: Job) -> bool:
    """Whether the delta may not start from what was published: somebody may have written to the stream table."""
    refreshed = job.refreshed
    if refreshed.action == "REINITIALIZE" or not refreshed.changed:
        return True
    if refreshed.action == "DIFFERENTIAL":
        return False
    count = job.owner.value(f"SELECT count(*) FROM {job.result.name.sql()}", "int8")
    assert job.sink.row_count is not None
    return bool(count != job.sink.row_count + refreshed.inserted - refreshed.deleted)
