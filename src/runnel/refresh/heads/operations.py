"""The operations that every head has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runnel.plan.stage import Stage
from runnel.refresh.stagework import StageWork


@dataclass(frozen=True, slots=True)
class HeadOperations:
    """What a head does in a refresh."""

    merge: Callable[[StageWork, Stage], bool]
    """From the changes of what the stage reads to its own delta, in its `delta` table; whether there is any."""
    build: Callable[[StageWork, Stage], str]
    """From nothing: fill its state, which is there and empty, and give a SELECT of all its rows, columns `o<i>`."""
    before: Callable[[StageWork, Stage, Stage], None]
    """Called before the rows of an earlier stage, the second one, are replaced: the last look at what was."""


def look_away(work: StageWork, stage: Stage, below: Stage) -> None:  # noqa: ARG001
    """The `before` of heads that need not know what the stages below held."""
