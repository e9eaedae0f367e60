"""What was measured, kept on disk after every step so that a run that was cut short can go on."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One refresh: the time its caller saw, and what the engine recorded about it."""

    ms: float
    action: str
    changes: int = 0
    jobs: int = 0
    inserted: int = 0
    deleted: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    rows_read: dict[str, int | None] = field(default_factory=dict)
    """Per source; None is a scan by Spark's tasks, whose rows nobody counts."""


@dataclass
class QueryResult:
    """One stream table's figures, as far as they are known."""

    name: str
    create_ms: float | None = None
    postgres_ms: float | None = None
    full: Sample | None = None
    rounds: dict[str, list[Sample]] = field(default_factory=dict)
    rows: int | None = None
    state_bytes: int | None = None
    verified: int = 0
    """How many times it was compared with its query and equal."""
    error: str | None = None
    """Why it takes no further part."""

    def ms(self, round_: str) -> float | None:
        """The median of a round's repetitions."""
        taken = self.rounds.get(round_)
        return statistics.median(s.ms for s in taken) if taken else None

    def ratio(self, round_: str) -> float | None:
        """How many times faster than FULL the refreshes of a round were; None where nothing had changed."""
        taken = self.rounds.get(round_)
        ms = self.ms(round_)
        if self.full is None or ms is None or not taken or not any(s.changes for s in taken):
            return None
        return self.full.ms / ms


@dataclass
class Results:
    """All figures of a run."""

    title: str
    setup: str
    machine: list[tuple[str, str]] = field(default_factory=list)
    queries: dict[str, QueryResult] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    """Rounds that are over, as `name/repetition`."""
    running: tuple[str, str] | None = None
    """The query and the step under way."""

    @property
    def failed(self) -> dict[str, str]:
        """What went wrong, by query."""
        return {name: each.error for name, each in self.queries.items() if each.error}

    def geometric_mean(self, round_: str) -> float | None:
        """Of the ratios of all queries that the round changed."""
        return geometric_mean(q.ratio(round_) for q in self.queries.values())


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    known = [v for v in values if v]
    return statistics.geometric_mean(known) if known else None


def save(results: Results, path: Path) -> None:
    """Beside, then renamed: a file that exists is whole."""
    fresh = path.with_suffix(path.suffix + ".new")
    fresh.write_text(json.dumps(asdict(results), indent=1), encoding="utf-8")
    fresh.replace(path)


def resume(path: Path, setup: str) -> Results | None:
    """The results of an earlier run of the same setup.

    A step that was under way when that run ended is counted as a failure of its query, so that a query which takes the
    whole process down does so once. Repetitions of a round that is not finished are forgotten: the round starts again.
    """
    if not path.exists():
        return None
    raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if raw["setup"] != setup:
        return None
    results = Results(raw["title"], raw["setup"], finished=raw["finished"])
    for name, each in raw["queries"].items():
        full = each.pop("full")
        rounds = each.pop("rounds")
        result = QueryResult(**each, full=Sample(**full) if full else None)
        for round_, taken in rounds.items():
            done = sum(f.rpartition("/")[0] == round_ for f in results.finished)
            result.rounds[round_] = [Sample(**s) for s in taken[:done]]
        results.queries[name] = result
    if raw["running"]:
        name, step = raw["running"]
        results.queries[name].error = f"{step}: the process ended"
    return results
