"""NATS for threads: its client lives in an event loop, which has a thread of its own here."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from runnel.relay.message import Refused, Unavailable

SECONDS = 10.0
_OF_THE_MESSAGE = ("BadSubjectError", "MaxPayloadError", "BadHeaderError")


class Nats:
    """A connection to NATS with JetStream, used from one thread."""

    def __init__(self, client: Any, url: str) -> None:
        self._client, self._url = client, url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay nats", daemon=True)
        self._thread.start()
        self._connection: Any = None

    def publish(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Publish, and wait until the stream has it."""
        self._run(self._jetstream().publish(subject, body, headers=dict(headers), timeout=SECONDS))

    def ensure_stream(self, name: str, subjects: Sequence[str]) -> None:
        """Make a stream if there is none of that name."""
        js = self._jetstream()
        try:
            self._run(js.stream_info(name), missing=True)
        except LookupError:
            self._run(js.add_stream(name=name, subjects=list(subjects)))

    def subscribe(self, subject: str, durable: str, stream: str | None) -> Any:
        """A durable consumer that is asked for messages."""
        return self._run(self._jetstream().pull_subscribe(subject, durable, stream=stream))

    def fetch(self, subscription: Any, limit: int, seconds: float) -> list[Any]:
        """Messages that wait, or none."""
        try:
            return list(self._run(subscription.fetch(limit, timeout=seconds), missing=True))
        except LookupError:
            return []

    def acknowledge(self, messages: Sequence[Any]) -> None:
        """Tell the server that they need not come again, and wait until it knows."""
        for message in messages:
            self._run(message.ack_sync(timeout=SECONDS))

    def close(self) -> None:
        """Close the connection, and end the loop."""
        if self._connection is not None:
            # A connection that is lost cannot be closed well.
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._connection.close(), self._loop).result(SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def _jetstream(self) -> Any:
        if self._connection is None or self._connection.is_closed:

            async def quiet(_: Exception) -> None:
                """The errors that count are raised."""

            self._connection = self._run(
                self._client.connect(
                    self._url, connect_timeout=5, allow_reconnect=False, max_reconnect_attempts=1, error_cb=quiet
                )
            )
        return self._connection.jetstream()

    def _run(self, work: Coroutine[Any, Any, Any], *, missing: bool = False) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(3 * SECONDS)
        except Exception as error:
            name = type(error).__name__
            if missing and name in ("NotFoundError", "TimeoutError", "FetchTimeoutError"):
                raise LookupError from error
            if name in _OF_THE_MESSAGE:
                raise Refused(f"NATS refused: {name}") from error
            raise Unavailable(f"NATS does not answer: {name}") from error
