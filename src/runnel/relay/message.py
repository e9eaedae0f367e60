"""What travels, and how it can fail to."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runnel.errors import RunnelError, TransientError


class Unavailable(TransientError):
    """The other side does not answer, or asks for patience: the same messages are sent again."""


class Refused(RunnelError):
    """The other side will not have this message, now or later."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an outbox."""

    outbox: str
    offset: int
    payload: str
    """JSON as PostgreSQL prints it: numbers keep all their digits on the way."""
    headers: Mapping[str, Any]
    created_at: dt.datetime

    @property
    def dedup_key(self) -> str:
        """By which a reader knows a message that it has seen: the same whenever it is sent."""
        return f"{self.outbox}:{self.offset}"

    @property
    def key(self) -> str:
        """Messages of one key stay in order: what the publisher says, else all of an outbox."""
        return str(self.headers.get("key") or self.outbox)

    @property
    def event_type(self) -> str:
        return str(self.headers.get("event_type") or "message")

    def envelope(self) -> str:
        """The payload with all that is known of it, as JSON."""
        known = {
            "dedup_key": self.dedup_key,
            "outbox_name": self.outbox,
            "offset": self.offset,
            "created_at": self.created_at.isoformat(),
            "headers": dict(self.headers),
        }
        return f'{json.dumps(known, ensure_ascii=False)[:-1]}, "payload": {self.payload}}}'

    def filled(self, template: str) -> str:
        """A subject, topic or key with its placeholders filled in.

        >>> Message("o", 1, "{}", {"event_type": "made"}, dt.datetime.min).filled("shop.{outbox}.{event_type}")
        'shop.o.made'
        """
        words = {"outbox": self.outbox, "event_type": self.event_type, "key": self.key, "stream_table": self.outbox}
        return re.sub(r"\{(\w+)\}", lambda found: words.get(found[1], found[0]), template)
