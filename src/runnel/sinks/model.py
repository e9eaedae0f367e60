"""What a publication is about: a stream table as its sink sees it, the refresh, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runnel.model.names import Name
from runnel.model.types import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A stream table whose delta has been applied and still lies in its temporary table."""

    id: int
    name: Name
    relid: int
    owner: str
    """The role with whose rights its rows are read."""
    columns: tuple[Column, ...]
    delta: str
    """The temporary table of changes: columns o<i> and weight w."""
    query: str
    """The defining query as its author wrote it."""
    definition_version: int
    scales: Mapping[str, int] = field(default_factory=dict)
    """Digits after the point, of numeric columns whose type does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The refresh whose outcome is published."""

    id: int
    action: str
    changed: bool
    inserted: int
    deleted: int
    frontier: Mapping[str, Any]
    at: str
    """The moment that the rows reflect."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a publication did."""

    snapshot: int
    inserted: int
    deleted: int
    whole: str | None = None
    """Why everything was published, if so."""
    timings: dict[str, float] = field(default_factory=dict)
