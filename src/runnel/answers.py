"""What a client answers: the results of its calls as dataclasses, the same for a notebook, the terminal and JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runnel.model.work import WorkDone


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTableStatus:
    """One stream table as `runnel status` shows it."""

    relation: str  # quoted, and qualified where the search path asks for it: usable in SQL as it is
    schema: str
    name: str
    status: str
    refresh_mode: str
    effective_mode: str
    mode_reason: str | None
    schedule: str
    is_populated: bool
    data_timestamp: dt.datetime | None
    staleness: dt.timedelta | None
    last_refresh_at: dt.datetime | None
    last_refresh_ms: float | None
    last_action: str | None
    rows_inserted: int | None
    rows_deleted: int | None
    pending_changes: int | None
    consecutive_errors: int
    last_error: str | None
    sink: str | None = None
    """Lake and mode, when it is published."""
    work: WorkDone | None = None
    """By whom the last refresh was evaluated."""
    tests: str | None = None
    """What its tests find, in a line: 'ok', or what is violated, and whether it is held back; None without tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestStatus:
    """One test of a stream table, and what it found last."""

    __test__ = False  # pytest is not meant

    stream_table: str
    test: str
    on_violation: str
    status: str
    """'ok', 'violated', 'error' (it could not be run) or 'pending' (it was not run yet)."""
    violations: int
    problem: str | None
    since: dt.datetime
    checked_at: dt.datetime | None
    definition: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """One line of a stream table's history."""

    name: str
    start_time: dt.datetime
    end_time: dt.datetime | None
    data_timestamp: dt.datetime | None
    action: str
    status: str
    initiated_by: str | None
    changes_read: int | None
    rows_inserted: int | None
    rows_deleted: int | None
    reason: str | None
    error_message: str | None
    timings: Mapping[str, float] | None
    spark_jobs: int | None
    lake_io: Mapping[str, int] | None = None
    """Files and bytes read of lakes, files skipped by their statistics, inlined rows."""
    work: WorkDone | None = None
    """By whom it was evaluated: jobs, tasks, what these read and wrote, what passed the driver."""

    @property
    def milliseconds(self) -> float | None:
        if self.end_time is None:
            return None
        return (self.end_time - self.start_time).total_seconds() * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """A stream table compared with its query in one snapshot; the rows are PostgreSQL's own text of them."""

    ok: bool
    missing: Sequence[str]
    unexpected: Sequence[str]
    counts: Mapping[str, int]
    error: str | None = None
    """Why nothing could be compared, where somebody goes on with other tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A piece of work that the engine is at."""

    name: str
    """The stream table, or those of a unit."""
    command: str
    phase: str
    rows_done: int | None
    """In this phase, as far as they can be counted."""
    rows_total: int | None
    """About how many there are."""
    elapsed: dt.timedelta
    remaining: dt.timedelta | None
    """About how long this phase still takes."""
    started_at: dt.datetime
    caller_pid: int | None
    """The session that waits for it; None: it is done by schedule."""
    worker_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One answer of `validate` or `health`."""

    name: str
    result: str
    severity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedLake:
    """One lake as `runnel lake list` shows it."""

    name: str
    catalog_schema: str
    data_path: str
    encrypted: bool
    remote: bool
    is_default: bool
    attached_at: dt.datetime
    maintain_every: dt.timedelta | None
    maintained_at: dt.datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeInfo:
    """How a lake is reached from outside, and what it holds; without its secrets."""

    name: str
    catalog_schema: str
    data_path: str
    moved: bool
    encrypted: bool
    remote: bool
    connection: Mapping[str, str]
    is_default: bool
    store: Mapping[str, str]
    problem: str | None
    """Why the engine does not reach its files, if so."""
    snapshot: int
    tables: int
    views: int

    @property
    def statements(self) -> list[str]:
        """What a DuckDB user of this machine pastes: extensions are those of this installation."""
        return self.attach_statements()

    def attach_statements(self, *, install: bool = False) -> list[str]:
        """What a DuckDB user pastes; with `install` DuckDB fetches its extensions from the internet."""
        from runnel.lake.outside import attach_statements

        return attach_statements(
            self.name, self.catalog_schema, self.data_path, self.connection, encrypted=self.encrypted,
            moved=self.moved, store=self.store, install=install,
        )  # fmt: skip

    @property
    def spark_call(self) -> str:
        """How a Spark user reads a table of it."""
        from runnel.lake.outside import spark_call

        return spark_call(self.catalog_schema, self.connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable:
    """A table or view in a lake; rows and files as its catalog counts them."""

    schema: str
    name: str
    kind: str
    rows: int | None
    files: int | None
    bytes: int | None
    columns: Sequence[str]
