"""Maintenance of large tables: tasks move rows to new files side by side, the driver commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runnel.lake.upkeep.lives import Move, NewFile
from runnel.spark.errands import run_errands

if TYPE_CHECKING:
    from runnel.spark.session import Sessions


@dataclass(frozen=True, slots=True)
class UpkeepTasks:
    """Spark's tasks as maintenance sees them."""

    sessions: Sessions

    @property
    def threshold(self) -> int:
        """They are asked when there are more rows than this to move."""
        return self.sessions.threshold

    @property
    def at_once(self) -> int:
        """Half of what Spark could do: refreshes must not wait for maintenance."""
        return max(1, self.sessions.parallelism // 2)

    def move(self, moves: Sequence[Move]) -> list[list[NewFile]]:
        """One task per move."""
        return run_errands(self.sessions, len(moves), _mover(tuple(moves)))


def _mover(moves: tuple[Move, ...]) -> Callable[[int], list[NewFile]]:
    def move_one(number: int) -> list[NewFile]:
        from runnel.lake.upkeep.lives import move  # noqa: PLC0415  (imported where the task runs)

        return move(moves[number])

    return move_one
