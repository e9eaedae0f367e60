"""The words of a lake: its catalog's rows as frozen dataclasses, with paths already made absolute.

A row of the catalog is *live at* snapshot s when `begin <= s` and (`end` is None or `end > s`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Lake:
    """Where a lake's catalog and its files are."""

    name: str
    schema: str
    """The PostgreSQL schema that holds the `ducklake_*` tables."""
    data_path: str
    """Folder or URL below which the files lie; ends with a slash."""
    encrypted: bool = False
    dsn: str | None = field(default=None, repr=False)
    """The catalog's server, when it is not the engine's own database."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of the object store, credentials included: never printed."""


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column as it is at one snapshot; its id is the Parquet field id and never changes."""

    id: int
    name: str
    type: str
    """DuckLake's name of the type: int32, decimal(10,2), varchar, list, struct, map, ..."""
    nulls_allowed: bool = True
    initial_default: str | None = None
    """The value of rows in files that are older than the column."""
    children: tuple[LakeColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table as it is at one snapshot."""

    id: int
    uuid: str
    schema: str
    name: str
    path: str
    """Absolute folder or URL of its files; ends with a slash."""
    columns: tuple[LakeColumn, ...]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of rows."""

    id: int
    path: str
    begin: int
    end: int | None
    record_count: int
    size: int
    footer_size: int | None
    row_id_start: int | None
    """Row ids are row_id_start + position, unless the file carries them in a column of its own."""
    encryption_key: str | None = field(default=None, repr=False)
    partial_max: int | None = None
    """Set when rows carry the snapshot that made them: the file was merged or flushed from several."""
    mapping_id: int | None = None
    partition_id: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A Parquet file of positions that are deleted in one data file."""

    id: int
    data_file_id: int
    path: str
    begin: int
    end: int | None
    count: int
    size: int
    footer_size: int | None
    encryption_key: str | None = field(default=None, repr=False)
    partial_max: int | None = None


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """What a file's catalog rows say about one leaf column; texts as DuckLake writes them."""

    value_count: int
    """Values that are not NULL."""
    null_count: int
    min: str | None
    max: str | None
    contains_nan: bool | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was uploaded and is not yet known to any catalog."""

    path: str
    """Relative to the table's folder."""
    record_count: int
    size: int
    footer_size: int
    stats: Mapping[int, ColumnStats] = field(default_factory=dict)
    """By column id; leaf columns only."""
    encryption_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class MappedName:
    """A column of a file that was added as it was: found by name, not by field id."""

    source: str
    column_id: int
    is_partition: bool
    """Whether the value is in the names of the file's folders (`year=2024/`) and not in the file."""
    children: tuple[MappedName, ...] = ()
