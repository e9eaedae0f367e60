"""Who evaluates what, in words: PostgreSQL alone, the driver, or tasks.

The facts come from whoever makes the decisions of a refresh (`runnel.refresh.forecast`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from runnel.explain.render import WIDTH
from runnel.model.quantities import amount

Evaluator = Literal["PostgreSQL", "the driver", "slices", "files", "tasks"]


@dataclass(frozen=True, slots=True)
class LeafForecast:
    """How one leaf would be read."""

    alias: str
    waiting: float | None
    """About how many changed rows wait; None: that is not known before the stage below is done."""
    changes_by: Evaluator
    rows: float | None
    """About how many rows it has; None: nobody knows."""
    whole_by: Evaluator
    """Who reads all of it, where a change or a rebuild needs that."""


@dataclass(frozen=True, slots=True)
class StageForecast:
    """How one stage would be evaluated."""

    changes_by: Evaluator
    rebuild_by: Evaluator
    leaves: Sequence[LeafForecast] = ()


def render_evaluators(stages: Sequence[StageForecast], threshold: int, *, recomputed: bool = False) -> Iterator[str]:
    """The line between small and large, and on which side of it each stage and leaf is now.

    `recomputed`: every refresh is a rebuild, so nobody reads changes.
    """
    yield "Who evaluates"
    yield f"  tasks do the work above {threshold:,} rows, the driver does it below (--tasks-above)"
    for number, stage in enumerate(stages):
        name = f"stage {number}" if len(stages) > 1 else "the stream table"
        changes = "" if recomputed else f"changes by {_who(stage.changes_by)}, "
        yield from _wrapped(f"{name}: {changes}a rebuild by {_who(stage.rebuild_by)}", "  ")
        for leaf in stage.leaves:
            changes = "" if recomputed else f"{_changes(leaf)}; "
            yield from _wrapped(f"{leaf.alias}: {changes}{_whole(leaf)}", "    ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _who(evaluator: Evaluator) -> str:
    return {
        "PostgreSQL": "PostgreSQL alone",
        "the driver": "the driver",
        "slices": "tasks in slices",
        "files": "tasks with DuckDB",
        "tasks": "tasks",
    }[evaluator]


def _changes(leaf: LeafForecast) -> str:
    if leaf.waiting is None:
        return f"changes read by {_reader(leaf.changes_by)}"
    if not leaf.waiting:
        return "no changes known"
    return f"about {_rows(leaf.waiting)} changed, read by {_reader(leaf.changes_by)}"


def _reader(evaluator: Evaluator) -> str:
    return "tasks" if evaluator in ("slices", "files") else evaluator


def _whole(leaf: LeafForecast) -> str:
    size = "" if leaf.rows is None else f", about {_rows(leaf.rows)},"
    return f"all of it{size} by {leaf.whole_by}"


def _rows(number: float) -> str:
    return f"{amount(round(number))} row{'' if round(number) == 1 else 's'}"
