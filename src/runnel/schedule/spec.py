"""Schedules: durations, cron expressions, and `calculated`."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

from croniter import CroniterError, croniter

from runnel.errors import UserError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(?:\d{1,9}(?:ms|w|d|h|m|s))+")
_PART = re.compile(r"(\d+)(ms|w|d|h|m|s)")
_CRON_FIELDS = (5, 6)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a stream table may be refreshed."""

    kind: Literal["duration", "cron", "calculated"]
    text: str
    seconds: float = 0.0
    """For a duration: the least time between two refreshes."""

    def next_fire(self, after: float) -> float:
        """For cron: the next time it fires, as seconds since the epoch."""
        return _next_fire(self.text, after)


@lru_cache(maxsize=4096)
def _next_fire(text: str, after: float) -> float:
    """Remembered, because the scheduler asks at every turn and it takes a millisecond to find out."""
    start = datetime.fromtimestamp(after, UTC)
    return float(croniter(text, start, second_at_beginning=len(text.split()) == _CRON_FIELDS[1]).get_next(float))


def parse_schedule(text: str) -> Schedule:
    """Read a schedule, or say what would be one.

    >>> parse_schedule("1h30m").seconds
    5400.0
    >>> parse_schedule("200ms").seconds
    0.2
    >>> parse_schedule("calculated").kind
    'calculated'
    """
    stripped = text.strip()
    if stripped.lower() == "calculated":
        return Schedule("calculated", "calculated")
    if _DURATION.fullmatch(stripped):
        seconds = sum(int(n) * _UNITS[u] for n, u in _PART.findall(stripped))
        if seconds > 0:
            return Schedule("duration", stripped, seconds)
    elif stripped.startswith("@") or len(stripped.split()) in _CRON_FIELDS:
        fields = stripped.split()
        if croniter.is_valid(stripped, second_at_beginning=len(fields) == _CRON_FIELDS[1]):
            return _firing(Schedule("cron", stripped))
    raise UserError(
        f"invalid schedule {text!r}",
        hint="Use a duration ('5s', '1m', '1h30m'), a cron expression ('*/5 * * * *', '@hourly'), or 'calculated'.",
        sqlstate="22023",
    )


def _firing(schedule: Schedule) -> Schedule:
    try:
        schedule.next_fire(time.time())
    except CroniterError:
        raise UserError(
            f"schedule {schedule.text!r} never fires",
            hint="No date fits it: look at the day of the month and the month, such as 30 for February.",
            sqlstate="22023",
        ) from None
    return schedule
