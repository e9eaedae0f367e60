"""How far a piece of work has come, told by whoever does it and read by others while it goes on.

Work is done by one thread from its beginning to its end, so what is told belongs to the work of the calling thread.
Where nobody listens it costs a look at a variable.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class Listener(Protocol):
    """Hears how far the work of a thread has come."""

    def phase(self, name: str) -> None:
        """What is done from now on; raises if the work is to stop."""

    def expect(self, rows: int) -> None:
        """About so many rows are still to come in this phase."""

    def advance(self, rows: int) -> None:
        """So many rows more are done; raises if the work is to stop."""


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def listen(listener: Listener | None) -> None:
    """From now on the work of this thread is told to this listener."""
    _listener.set(listener)


def phase(name: str) -> None:
    """Say what is done from now on; a good moment to stop."""
    listener = _listener.get()
    if listener is not None:
        listener.phase(name)


def expect(rows: int) -> None:
    """Say that about so many rows are to come."""
    listener = _listener.get()
    if listener is not None:
        listener.expect(rows)


def advance(rows: int) -> None:
    """Say that so many rows more are done; a good moment to stop."""
    listener = _listener.get()
    if listener is not None:
        listener.advance(rows)
