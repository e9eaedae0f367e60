"""When files are worth the work of maintenance, and what it says it has done."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """When a table's files are worth the work."""

    small_file: int = 16 * MEGABYTE
    """Files below this size are merged ..."""
    min_files: int = 5
    """... when so many of them can become one ..."""
    target_size: int = 32 * MEGABYTE
    """... of at most about this size."""
    deleted_share: float = 0.3
    """A file is rewritten when at least this part of its rows is deleted."""
    flush_rows: int = 1
    """Inlined rows and deletes are flushed when there are so many of them."""
    grace: dt.timedelta = dt.timedelta(hours=1)
    """How long a file that is no longer needed stays for those who still read it."""
    orphan_grace: dt.timedelta = dt.timedelta(hours=24)
    """How old a file must be that no catalog row knows: others may be about to commit it."""
    generated_grace: dt.timedelta = dt.timedelta(hours=24)
    """How long generated metadata stays that is no longer the newest."""
    compression: str = "zstd"


@dataclass(slots=True)
class Report:
    """What was done."""

    flushed_rows: int = 0
    flushed_deletes: int = 0
    merged_files: int = 0
    new_files: int = 0
    removed_files: int = 0
    removed_orphans: int = 0
    removed_generated: int = 0
    tables: list[str] = field(default_factory=list)
    """Those that changed, as schema.name."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Tables that were left alone, and why."""
