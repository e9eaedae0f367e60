"""A rehearsal: messages pass as if they were delivered, and the log says which."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from runnel.relay.config import Pipeline
from runnel.relay.message import Message

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrySink:
    """Sends nothing. What has passed here is not sent later."""

    pipeline: Pipeline

    def send(self, messages: Sequence[Message]) -> None:
        """Say of each what it is, without what is in it."""
        for m in messages:
            log.info(
                "relay %s, dry run: would send %s to %s, key %r, %d bytes",
                self.pipeline.name, m.dedup_key, self.pipeline.kind, m.key, len(m.payload.encode()),
            )  # fmt: skip

    def close(self) -> None:
        """Nothing is held."""
