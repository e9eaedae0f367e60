"""Publishing to lakes as a transaction sees it.

The lake's rows are written by the refresh transaction, so a snapshot and the rows it shows are committed together. A
lake on another server is committed just before; should the refresh then fail, the next publication finds that the
two disagree and publishes the table whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from runnel.catalog.lost import is_lost
from runnel.errors import TransientError, UserError
from runnel.lake.attached import load_lake
from runnel.lake.format import catalog
from runnel.lake.write.commit import begin_snapshot, finish
from runnel.lake.write.tables import drop_table
from runnel.lake.write.views import drop_view
from runnel.model.names import quote
from runnel.ports.sink import Later, Published, Refreshed, Result, Wish
from runnel.sinks.columns import PublishedColumn, keep_types, published
from runnel.sinks.ducklake import catalog as sinks
from runnel.sinks.ducklake import held
from runnel.sinks.ducklake.catalog import LakeSink
from runnel.sinks.ducklake.changes import publish_changes, publish_log
from runnel.sinks.ducklake.feedback import refuse_feedback
from runnel.sinks.ducklake.job import FIRST, REPLACED, Job, fits
from runnel.sinks.ducklake.large import complete_map, is_large, prepare_large, publish_large
from runnel.sinks.ducklake.options import check_columns
from runnel.sinks.ducklake.places import KnownTables, Standing, stand
from runnel.sinks.ducklake.rowmap import drop_map
from runnel.sinks.ducklake.stored import StoredFiles
from runnel.sinks.ducklake.whole import publish_whole
from runnel.sinks.ducklake.write import FileWriter
from runnel.sinks.reading import reader
from runnel.sinks.session import LakeSession
from runnel.sinks.shared import Shared
from runnel.sinks.uploads import Uploads

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]

NAME = "ducklake"


@dataclass
class Memory:
    """What publications leave for the next ones, to spare them looks at the lake."""

    stored: StoredFiles = field(default_factory=StoredFiles)
    known: KnownTables = field(default_factory=KnownTables)


@dataclass
class LakePublication:
    """What one transaction publishes to lakes."""

    conn: Connection
    shared: Shared
    memory: Memory
    uploads: Uploads = field(init=False)
    _sinks: dict[int, LakeSink] | None = None
    """As the transaction sees them; read when first asked for."""
    _lakes: dict[str, LakeSession] = field(default_factory=dict)
    _snapshots: dict[str, int] = field(default_factory=dict)
    """Per lake the last snapshot written by this transaction."""
    _later: list[Later] = field(default_factory=list)
    """Large tables."""

    def __post_init__(self) -> None:
        self.uploads = self.shared.uploads(self.conn)

    def put(self, pgt_id: int, wish: Wish) -> None:
        """Store a sink in place of another; what the other has published goes, unless the new one goes on with it."""
        before, after = wish.before, wish.after
        assert before is None or isinstance(before, LakeSink)
        assert after is None or isinstance(after, LakeSink)
        if before is not None and before.table_id is not None and (after is None or after.table_id is None):
            self._remove(before, f"{before.view_name} is no longer published in mode {before.mode}")
        if after is not None:
            sinks.save_sink(self.conn, replace(after, pgt_id=pgt_id))
        elif before is not None:
            sinks.end_sink(self.conn, pgt_id)
        self._sinks = None

    def drop(self, pgt_id: int, why: str) -> None:
        """Drop a stream table's table and view in the lake, and forget the sink."""
        sink = self._sink(pgt_id)
        if sink is None:
            return
        try:
            self._remove(sink, why)
        except UserError as error:
            # The lake was detached: what is in it is out of reach, and nobody's any more.
            log.warning("%s stays in lake %s: %s", sink.view_name, sink.lake, error)
        sinks.end_sink(self.conn, pgt_id)
        self._sinks = None

    def prepare(self, result: Result) -> None:
        """Build the row map that a large publication has left for later."""
        sink = self._sink(result.id)
        if sink is not None and sink.map_start is not None and sink.table_id is not None:
            columns = published(result.columns, result.scales)
            owner = reader(self.conn, result.owner)
            self._loaded()[result.id] = complete_map(owner, sink, result.name, result.relid, columns)

    def wants(self, pgt_id: int, *, changed: bool, definition_version: int) -> bool:
        """Whether the lake has something to learn from a refresh."""
        sink = self._sink(pgt_id)
        if sink is None:
            return False
        behind = sink.row_count is None or sink.held_since is not None
        return changed or behind or sink.definition_version != definition_version

    def publish(self, result: Result, refreshed: Refreshed) -> Published | None:
        """Publish what a refresh did; a table that is large, and to be published whole, has to wait."""
        if not self.wants(result.id, changed=refreshed.changed, definition_version=result.definition_version):
            return None
        if refreshed.held is not None:
            return self._hold(result, refreshed.held)
        began = time.perf_counter()
        with self._elsewhere():
            job = self._job(result, refreshed)
            done = self._publish(job)
        if done is not None:
            self._finish(job, done, began)
            if job.sink.held_since is not None:
                done = replace(done, reason="; ".join(filter(None, (done.reason, "published what was held back"))))
        return done

    def later(self) -> Sequence[Later]:
        """Large tables: tasks read them when this transaction has committed."""
        return tuple(self._later)

    def publish_later(self, later: Later) -> Published:
        """Publish a table whole, by Spark's tasks; in a transaction that wrote nothing to it."""
        began = time.perf_counter()
        with self._elsewhere():
            job = self._job(later.result, later.refreshed)
            done = publish_large(job, self.shared.sessions, self.shared.dsn, later.why)
        self._finish(job, done, began)
        return done

    def before_commit(self) -> None:
        """Commit lakes on other servers."""
        with self._elsewhere():
            for session in self._lakes.values():
                if session.remote and session.conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    session.conn.execute("COMMIT")

    def committed(self) -> None:
        """The files are published."""
        self.uploads.done()

    def undo(self, error: BaseException) -> None:
        """Give up transactions on other servers, and remove the files."""
        for session in self._lakes.values():
            if session.remote:
                self.shared.connections.forget(session.lake.name)
        self.shared.undo(self.uploads, error)

    # -- details -------------------------------------------------------------------------------------------

    def _hold(self, result: Result, why: str) -> Published:
        """Let the lake keep what it has. What it misses is found by the row map, or kept for the log."""
        sink = self._sink(result.id)
        assert sink is not None
        lost = False
        if sink.mode == "append" and sink.row_count is not None:
            lost = sink.columns != [c.as_json for c in _columns(sink, result)]
            if lost:
                held.drop(self.conn, result.id)
            else:
                held.keep(self.conn, result)
        self._loaded()[result.id] = sinks.mark_held(self.conn, sink, whole=lost)
        return Published(inserted=0, deleted=0, reason=f"held back from the lake: {why}")

    def _loaded(self) -> dict[int, LakeSink]:
        if self._sinks is None:
            self._sinks = sinks.load_sinks(self.conn)
        return self._sinks

    def _sink(self, pgt_id: int) -> LakeSink | None:
        sink = self._loaded().get(pgt_id)
        return sink if sink is not None and sink.publishes else None

    def _remove(self, sink: LakeSink, why: str) -> None:
        """Drop table, view and row map."""
        drop_map(self.conn, sink.pgt_id)
        held.drop(self.conn, sink.pgt_id)
        if sink.table_id is None or sink.lake is None:
            return
        session = self._session(sink.lake)
        head = catalog.head(session.observer, session.lake)
        table = catalog.table_by_id(session.observer, session.lake, sink.table_id, head)
        draft = begin_snapshot(session.conn, session.observer, session.lake)
        drop_view(draft, sink.lake_schema, sink.view_name)
        if table is not None:
            drop_table(draft, table)
        self._snapshots[sink.lake] = finish(draft, author="pg_trickle", message=why)

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
        assert done.snapshot is not None
        self._snapshots[job.session.lake.name] = done.snapshot
        if job.sink.held_since is not None:
            held.drop(self.conn, job.sink.pgt_id)
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
        if job.sink.mode != "replace" and is_large(job, self.shared.sessions.threshold):
            snapshot = prepare_large(job)
            if snapshot is not None:
                self._snapshots[job.session.lake.name] = snapshot
            self._later.append(Later(sink=NAME, result=job.result, refreshed=job.refreshed, why=why))
            return None
        return publish_whole(job, why)

    def _job(self, result: Result, refreshed: Refreshed) -> Job:
        sink = self._sink(result.id)
        assert sink is not None and sink.lake is not None  # noqa: PT018
        session = self._session(sink.lake)
        if sink.table_id is None:
            standing = Standing(catalog.head(session.observer, session.lake), None)
        else:
            standing = stand(session.observer, session.lake, sink, self.memory.known)
        columns = _columns(sink, result)
        if sink.definition_version != result.definition_version:
            catalog_schema = None if session.remote else quote(session.lake.schema)
            refuse_feedback(self.conn, result.id, result.name, catalog_schema)
        check_columns(sink, result.name, [c.name for c in columns])
        return Job(
            conn=self.conn,
            owner=reader(self.conn, result.owner),
            session=session,
            files=FileWriter(session.lake, self.uploads),
            stored=self.memory.stored,
            sink=sink,
            result=result,
            refreshed=refreshed,
            columns=columns,
            standing=standing,
            next_snapshot=max(standing.head, self._snapshots.get(sink.lake, 0)) + 1,
        )

    def _session(self, name: str) -> LakeSession:
        if name not in self._lakes:
            session = self.shared.connections.session(self.conn, load_lake(self.conn, name))
            if session.remote:
                session.conn.execute("BEGIN")
            self._lakes[name] = session
        return self._lakes[name]


def _columns(sink: LakeSink, result: Result) -> tuple[PublishedColumn, ...]:
    """The columns as they are published."""
    columns = published(result.columns, result.scales)
    return keep_types(columns, sink.columns) if sink.definition_version == result.definition_version else columns


def _why_whole(job: Job) -> str | None:
    """Why the table cannot be brought in step by its changes, or None."""
    sink, standing = job.sink, job.standing
    if sink.row_count is None:
        return FIRST
    if sink.mode == "replace":
        return REPLACED
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
    if refreshed.action == "REINITIALIZE" or not refreshed.changed or job.sink.held_since is not None:
        return True
    if refreshed.action == "DIFFERENTIAL":
        return False
    count = job.owner.value(f"SELECT count(*) FROM {job.result.name.sql()}", "int8")
    assert job.sink.row_count is not None
    return bool(count != job.sink.row_count + refreshed.inserted - refreshed.deleted)
