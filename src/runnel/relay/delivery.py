"""One step of a pipeline from an outbox: the next messages, delivered, and how far that is.

The offset moves when the sink has the messages: in the same transaction where the sink is in this database, else
right after it. So nothing is lost, and what is sent twice has the same key. A message that the sink refuses is tried
again `max_retries` times, alone, then put aside; a sink that does not answer is asked again for as long as it takes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.errors import RunnelError
from runnel.ports.sink import Conflict
from runnel.relay import catalog
from runnel.relay.config import Options, Pipeline
from runnel.relay.message import Message, Refused, Unavailable
from runnel.relay.port import Sink, TransactionalSink

Connection = psycopg.Connection[Any]

MAX_RETRIES = 3
BACKOFF, LONGEST_BACKOFF = 500.0, 30_000.0
"""Milliseconds."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step came to."""

    sent: int = 0
    wait: float | None = None
    """Seconds until the next attempt; None: until there is something new."""
    error: str | None = None
    over: bool = False
    """The pipeline was told otherwise: another worker takes its place."""


@dataclass
class Delivery:
    """A pipeline at work, on a connection of its own."""

    conn: Connection
    pipeline: Pipeline
    sink: Sink | TransactionalSink
    _alone: int = 0
    """After a refusal of a batch, nobody knows of which message: so many are sent one by one."""
    _budget: float = 0.0
    _refilled: float = field(default_factory=time.monotonic)

    def step(self) -> Step:
        """Deliver the next batch."""
        standing = catalog.standing(self.conn, self.pipeline)
        if standing is None:
            return Step(over=True)
        offset, attempts, state = standing
        limit = self._allowed()
        if limit <= 0:
            return Step(wait=1.0 / self._rate)
        messages = catalog.next_messages(self.conn, self.pipeline, offset, 1 if self._alone else limit)
        if not messages:
            return Step(sent=self._replay(limit))
        try:
            sent = self._deliver(messages, state)
        except Conflict:
            return Step(wait=0.0)
        except Refused as error:
            self._passed(messages[: error.taken or 0])
            return self._refused(messages[error.taken or 0 :], error)
        except (RunnelError, psycopg.Error) as error:
            if self.conn.closed or self.conn.broken:
                raise
            taken = error.taken if isinstance(error, Unavailable) else 0
            self._passed(messages[:taken])
            return self._unavailable(0 if taken else attempts, error)
        self._alone = max(self._alone - sent, 0)
        self._budget -= sent
        return Step(sent=sent)

    def _passed(self, messages: Sequence[Message]) -> None:
        """The sink has these, although it failed then: they are not sent again."""
        if messages:
            catalog.delivered(self.conn, self.pipeline, messages[-1].offset, len(messages))
            self._budget -= len(messages)

    def _deliver(self, messages: Sequence[Message], state: Any) -> int:
        sink = self.sink
        if isinstance(sink, TransactionalSink):
            try:
                with self.conn.transaction():
                    count, remembered = sink.write(self.conn, messages, state)
                    catalog.delivered(self.conn, self.pipeline, messages[count - 1].offset, count, remembered)
            except BaseException as error:
                sink.undo(error)
                raise
            sink.committed()
            return int(count)
        sink.send(messages)
        catalog.delivered(self.conn, self.pipeline, messages[-1].offset, len(messages))
        return len(messages)

    def _refused(self, messages: Sequence[Message], error: Refused) -> Step:
        """Where nobody knows which of several it was, they are sent one at a time."""
        if error.taken is None and len(messages) > 1:
            self._alone = len(messages)
            return Step(wait=0.0, error=str(error))
        attempts = catalog.failed(self.conn, self.pipeline, str(error))
        if attempts <= self._option("max_retries", MAX_RETRIES):
            return Step(wait=self._pause(attempts), error=str(error))
        with self.conn.transaction():
            catalog.bury(self.conn, self.pipeline, messages[0], str(error))
            catalog.delivered(self.conn, self.pipeline, messages[0].offset, 0)
        self._alone = max(self._alone - 1, 0)
        return Step(wait=0.0, error=str(error))

    def _unavailable(self, attempts: int, error: Exception) -> Step:
        # The text of psycopg's errors may quote data; its first line is what the server said.
        text = str(error).partition("\n")[0]
        catalog.failed(self.conn, self.pipeline, text)
        return Step(wait=self._pause(attempts + 1), error=text)

    def _replay(self, limit: int) -> int:
        """Dead letters that somebody asked for again: what is refused once more stays where it is."""
        if isinstance(self.sink, TransactionalSink):
            return 0  # it refuses nothing, so it has no dead letters
        letters = catalog.replays(self.conn, self.pipeline, limit)
        for letter, message in letters:
            try:
                self.sink.send([message])
            except RunnelError as error:
                catalog.rebury(self.conn, letter, str(error))
            else:
                catalog.unbury(self.conn, letter)
        return len(letters)

    def _pause(self, attempts: int) -> float:
        first = self._option("retry_backoff_ms", BACKOFF)
        longest = self._option("retry_backoff_max_ms", LONGEST_BACKOFF)
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 - relays that failed together should not come back together
        return float(min(first * 2.0 ** min(attempts - 1, 20), longest) * jitter / 1000)

    def _allowed(self) -> int:
        """How many messages may be sent now: all of a batch, unless there is a rate."""
        if not self._rate:
            return self.pipeline.batch_size
        now = time.monotonic()
        self._budget = min(self._budget + (now - self._refilled) * self._rate, max(self._rate, 1.0))
        self._refilled = now
        return min(self.pipeline.batch_size, int(self._budget))

    @property
    def _rate(self) -> float:
        """Messages per second; 0: as many as the sink takes."""
        return self._option("rate_limit", 0)

    def _option(self, name: str, default: float) -> float:
        return Options(self.pipeline).number(name, default)
