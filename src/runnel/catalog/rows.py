"""Rows of the catalog as frozen dataclasses; field names are the column names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTable:
    """One row of pgt_stream_tables."""

    pgt_id: int
    pgt_relid: int
    pgt_schema: str
    pgt_name: str
    owner: int
    original_query: str
    defining_query: str
    schedule: str
    refresh_mode: str
    effective_mode: str
    mode_reason: str | None
    status: str
    is_populated: bool
    needs_reinit: bool
    settings: Json
    frontier: Json
    version: int
    definition_version: int
    uses_clock: bool
    data_timestamp: datetime | None
    last_refresh_at: datetime | None
    consecutive_errors: int
    last_error: str | None
    retry_at: datetime | None
    created_at: datetime
    updated_at: datetime
    forgotten: str = "fallback"
    """What to do when a source no longer knows what changed since the frontier: 'fallback' or 'error'."""
    drift: str | None = None
    """What changed under the query; it is compiled anew before the next refresh."""
    tested: bool = False
    """Whether it has tests."""
    cdc_mode: str | None = None
    """How its owner wants sources to be captured: 'trigger', 'wal', 'auto', or as the default says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """One source of one stream table, with the columns its query uses as they were at creation."""

    pgt_id: int
    source_relid: int
    source_type: str
    source_name: str
    columns_used: tuple[str, ...]
    column_types: tuple[str, ...]
    source_pgt_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a user declares and the planner derives: the part of a stream table that ALTER can replace."""

    original_query: str
    defining_query: str
    schedule: str
    refresh_mode: str
    effective_mode: str
    mode_reason: str | None = None
    settings: Json
    uses_clock: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """What one finished refresh did; becomes one row of pgt_refresh_history."""

    action: str
    initiated_by: str
    start_time: datetime
    data_timestamp: datetime | None = None
    changes_read: int = 0
    rows_inserted: int = 0
    rows_deleted: int = 0
    reason: str | None = None
    timings: Json | None = None
    spark_jobs: int = 0
    rows_read: Json | None = None
    effort: Json | None = None
    """What was read of sources outside of PostgreSQL."""
    work: Json | None = None
    """By whom it was evaluated (`runnel.model.work.WorkDone`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of a SQL function, waiting for the engine's answer."""

    request_id: int
    kind: str
    args: Json
    role: str
    caller_pid: int
    settings: Json
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedColumn:
    """A column of a source; its buffer column is `c<attnum>`, of the base type if the column has a domain."""

    name: str
    attnum: int
    type: str

    @property
    def buffer_column(self) -> str:
        """Name of the column in the change buffer."""
        return f"c{self.attnum}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """How the changes of one source are captured."""

    source_relid: int
    buffer: str
    columns: tuple[CapturedColumn, ...]
    relations: tuple[int, ...]
    ancestors: tuple[int, ...]
