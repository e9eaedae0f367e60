"""What the workers of one engine share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runnel.engine.defining import Defining
from runnel.engine.job import Job
from runnel.engine.plans import Plans
from runnel.engine.reservations import Reservations
from runnel.model.looks import Looks
from runnel.sources.registry import Kinds, all_kinds


def _nothing(_: int | None) -> None:
    return


@dataclass
class Around:
    """Locks, plans, and word to the others."""

    reservations: Reservations = field(default_factory=Reservations)
    defining: Defining = field(default_factory=Defining)
    plans: Plans = field(default_factory=Plans)
    looks: Looks = field(default_factory=Looks)
    tidy_others: Callable[[int | None], None] = _nothing
    """Let other workers drop the temporary tables of stream tables that are gone, or of one that was redefined."""
    stop_work_on: Callable[[int, str], None] = lambda *_: None
    """Stop whatever is at work on a stream table, and say why."""
    stir: Callable[[], None] = lambda: None
    """Let the engine's loop come round: a job was asked to stop."""
    kinds: Callable[[], Kinds] = all_kinds
    """The kinds of sources, for one worker."""
    recapture: Callable[[], None] = lambda: None
    """How sources are to be captured may have changed."""
    jobs: Callable[[], Sequence[Job]] = lambda: ()
    """What is going on."""
