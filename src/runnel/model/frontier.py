"""The frontier of a stream table: the version of every source that it has consumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LAKE = "ducklake:"
_SNAPSHOT = re.compile(r"\d+:\d+:[\d,]*")


@dataclass(frozen=True, slots=True)
class Frontier:
    """Versions per kind of source: an MVCC snapshot, the clock, refresh counters of stream tables, lake snapshots.

    >>> Frontier.from_json({"postgres": "7:9:8", "ducklake:lake.main.events": 42}).lakes
    {'ducklake:lake.main.events': 42}
    """

    snapshot: str | None = None
    clock: str | None = None
    stream_tables: Mapping[int, int] = field(default_factory=dict)
    plan: str | None = None
    """The fingerprint of the plan whose state was brought here; another plan cannot go on from it."""
    lakes: Mapping[str, int] = field(default_factory=dict)
    """Snapshots of lake tables by their key, `ducklake:<lake>.<schema>.<table>`."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Frontier:
        """Read the catalog's form; one that makes no sense is a ValueError, a TypeError or an AttributeError."""
        value = value or {}
        snapshot = value.get("postgres")
        if snapshot is not None and not _SNAPSHOT.fullmatch(snapshot):
            raise ValueError(f"{snapshot!r} is no snapshot")
        return cls(
            snapshot=snapshot,
            clock=value.get("clock"),
            plan=value.get("plan"),
            stream_tables={int(k): int(v) for k, v in (value.get("stream_tables") or {}).items()},
            lakes={k: int(v) for k, v in value.items() if k.startswith(LAKE)},
        )

    def as_json(self) -> dict[str, Any]:
        """The catalog's form, readable by a person."""
        return {
            "postgres": self.snapshot,
            "clock": self.clock,
            "plan": self.plan,
            "stream_tables": {str(k): v for k, v in sorted(self.stream_tables.items())},
            **dict(sorted(self.lakes.items())),
        }
