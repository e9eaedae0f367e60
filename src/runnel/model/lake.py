"""A lake: where its catalog and its files are."""

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
