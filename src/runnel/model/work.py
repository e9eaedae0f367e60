"""What one refresh had others do: Spark's jobs and tasks, what tasks read and wrote, what passed the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from runnel.model.quantities import amount, counted, size


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """All zero: PostgreSQL evaluated everything by itself."""

    plans: int = 0
    """Prepared plans that the driver ran by itself, without a job."""
    jobs: int = 0
    """Spark jobs."""
    tasks: int = 0
    """Tasks of these jobs, whatever they did."""
    read_rows: int = 0
    """Rows that tasks read: slices of tables, files of lakes."""
    read_bytes: int = 0
    """The same as Arrow in memory; of files that Spark scans itself, the bytes read."""
    written_rows: int = 0
    """Rows that tasks printed as COPY reads them, or wrote to a lake's files."""
    written_bytes: int = 0
    driver_rows: int = 0
    """Rows that passed the driver: read by it, collected from Spark, or passed on from tasks to PostgreSQL."""

    def __str__(self) -> str:
        """In words, without what is zero.

        >>> print(WorkDone(jobs=3, tasks=12, read_rows=4_200_000, read_bytes=310_000_000, driver_rows=1204))
        3 jobs, 12 tasks, 4.2 M rows / 310.0 MB read by tasks, 1,204 rows through the driver
        >>> print(WorkDone(plans=1, driver_rows=64))
        1 prepared plan, 64 rows through the driver
        >>> print(WorkDone())
        PostgreSQL alone
        """
        parts = [counted(self.plans, "prepared plan")] if self.plans else []
        parts += [counted(self.jobs, "job"), counted(self.tasks, "task")] if self.jobs else []
        for verb, rows, volume in (
            ("read", self.read_rows, self.read_bytes),
            ("written", self.written_rows, self.written_bytes),
        ):
            if rows:
                parts.append(f"{_rows(rows)}{f' / {size(volume)}' if volume else ''} {verb} by tasks")
        if self.driver_rows:
            parts.append(f"{_rows(self.driver_rows)} through the driver")
        return ", ".join(parts) or "PostgreSQL alone"

    @property
    def evaluator(self) -> str:
        """Who evaluated, as briefly as can be.

        >>> WorkDone(jobs=3, tasks=12, read_rows=4_200_000).evaluator
        'tasks: 4.2 M rows'
        >>> WorkDone(plans=1, driver_rows=64).evaluator, WorkDone().evaluator
        ('driver: 64 rows', 'PostgreSQL')
        """
        if self.read_rows:
            return f"tasks: {_rows(self.read_rows)}"
        if self.driver_rows:
            return f"driver: {_rows(self.driver_rows)}"
        return "PostgreSQL"

    def as_json(self) -> dict[str, int]:
        """For the catalog."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> WorkDone | None:
        """From the catalog; what a later release counts besides is left out."""
        if value is None:
            return None
        return cls(**{f.name: int(value.get(f.name) or 0) for f in fields(cls)})


def _rows(number: int) -> str:
    return f"{amount(number)} row{'' if number == 1 else 's'}"
