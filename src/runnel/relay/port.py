"""What a sink and a source are to the relay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import psycopg

from runnel.relay.message import Message

Connection = psycopg.Connection[Any]


class Sink(Protocol):
    """The other end of a pipeline from an outbox. Messages come in order, and again if nobody knows that they came."""

    def send(self, messages: Sequence[Message]) -> None:
        """Deliver all of them, or raise `Unavailable` (try again) or `Refused` (one that will never be taken).

        A sink that sends one by one says how many it has delivered (`message.one_by_one`): these are not sent again.
        After a refusal by one that does not, the messages of the batch are sent alone, so that only the refused one is
        put aside.
        """

    def close(self) -> None:
        """Let go of the connection."""


@runtime_checkable
class TransactionalSink(Protocol):
    """A sink in the same database: what it writes and how far it has come are committed together."""

    def write(self, conn: Connection, messages: Sequence[Message], state: Any) -> tuple[int, Any]:
        """Write a beginning of the messages in the transaction that is open; how many, and what to remember."""

    def committed(self) -> None:
        """The transaction has committed."""

    def undo(self, error: BaseException) -> None:
        """It has failed: nothing of it may remain."""

    def close(self) -> None:
        """Let go of everything."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message from elsewhere, with the key by which it is known when it comes again."""

    event_id: str
    payload: str
    """JSON that PostgreSQL takes."""
    headers: Mapping[str, Any]


class Source(Protocol):
    """The other end of a pipeline to an inbox."""

    def receive(self, limit: int, seconds: float) -> Sequence[Arrival]:
        """What has arrived, after waiting for it; the same again until it is acknowledged."""

    def acknowledge(self) -> None:
        """What was received last is safe in the inbox."""

    def close(self) -> None:
        """Let go of the connection."""
