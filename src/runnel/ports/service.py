"""What an engine does beside refreshing, for a kind of place that sources and sinks share: its requests, its upkeep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import psycopg

Connection = psycopg.Connection[Any]
Answer = Callable[[Connection, Mapping[str, Any], str], Any]
"""(connection, arguments, the caller's role) -> the answer."""


class Service(Protocol):
    """A part of the engine with requests of its own."""

    requests: Mapping[str, Answer]
    """What it answers at once, by kind of request."""
    required: Mapping[str, tuple[str, tuple[str, ...]]]
    """By kind of request: the function as users call it, and the arguments it cannot do without."""
    secret: frozenset[str]
    """Requests whose arguments may hold credentials: they are not kept."""
    slow: frozenset[str]
    """Requests that it answers itself when the work is done (`take`)."""

    def connected(self, conn: Connection) -> None:
        """The engine has its database, at the start or again; before the first refresh."""
        return

    def prepare(self, conn: Connection) -> None:
        """At the start of an engine."""

    def restored(self, conn: Connection) -> None:
        """The catalog was loaded from a dump: what it says of relations, files and places is about another database."""

    def take(self, conn: Connection, request_id: int, args: Mapping[str, Any], role: str) -> None:
        """Take over a slow request; refuse it with an error if it may not be made."""

    def look(self, conn: Connection) -> None:
        """See whether something is due."""

    def close(self) -> None:
        """Stop after the step that is under way."""
