"""The frontier of a stream table: the version of every source that it has consumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Version = str | int
"""A point in a source's history; only the source that gave it knows what it means."""

POSTGRES = "postgres"
_STREAM_TABLES = "stream_tables"
_OWN_KEYS = frozenset({"clock", "plan", _STREAM_TABLES})
_SNAPSHOT = re.compile(r"\d+:\d+:[\d,]*")


def stream_table_name(pgt_id: int) -> str:
    """The name of a stream table as a source."""
    return f"{_STREAM_TABLES}:{pgt_id}"


@dataclass(frozen=True, slots=True)
class Frontier:
    """Versions by the names of sources, the clock, and the plan.

    >>> Frontier.from_json({"postgres": "7:9:8", "stream_tables": {"3": 12}}).versions
    {'postgres': '7:9:8', 'stream_tables:3': 12}
    """

    versions: Mapping[str, Version] = field(default_factory=dict)
    clock: str | None = None
    plan: str | None = None
    """The fingerprint of the plan whose state was brought here; another plan cannot go on from it."""

    @property
    def snapshot(self) -> str | None:
        """The transactions of PostgreSQL that are in it."""
        found = self.versions.get(POSTGRES)
        return None if found is None else str(found)

    @property
    def elsewhere(self) -> dict[str, Version]:
        """The versions of sources that do not move with PostgreSQL's transactions."""
        return {name: version for name, version in self.versions.items() if name != POSTGRES}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Frontier:
        """Read the catalog's form; one that makes no sense is a ValueError, a TypeError or an AttributeError."""
        value = value or {}
        versions: dict[str, Version] = {}
        for name, version in value.items():
            if name in _OWN_KEYS or version is None:
                continue
            if name == POSTGRES:
                if not _SNAPSHOT.fullmatch(version):
                    raise ValueError(f"{version!r} is no snapshot")
                versions[name] = version
            else:
                versions[name] = int(version)
        for pgt_id, version in (value.get(_STREAM_TABLES) or {}).items():
            versions[stream_table_name(int(pgt_id))] = int(version)
        return cls(versions, value.get("clock"), value.get("plan"))

    def as_json(self) -> dict[str, Any]:
        """The catalog's form, readable by a person."""
        prefix = f"{_STREAM_TABLES}:"
        tables = {int(n.removeprefix(prefix)): v for n, v in self.versions.items() if n.startswith(prefix)}
        others = {n: v for n, v in self.elsewhere.items() if not n.startswith(prefix)}
        return {
            POSTGRES: self.snapshot,
            "clock": self.clock,
            "plan": self.plan,
            _STREAM_TABLES: {str(k): v for k, v in sorted(tables.items())},
            **dict(sorted(others.items())),
        }
