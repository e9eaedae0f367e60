"""What travels, and how it can fail to."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from runnel.errors import RunnelError, TransientError

_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if code != ord("%"))


class Unavailable(TransientError):
    """The other side does not answer, or asks for patience: the same messages are sent again."""

    taken = 0
    """How many messages of the batch it has taken before that."""


class Refused(RunnelError):
    """The other side will not have this message, now or later."""

    taken: int | None = None
    """How many messages of the batch it has taken before this one; None: nobody knows which of them it was."""


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


def one_by_one(messages: Sequence[Message], send: Callable[[Message], None]) -> None:
    """Send each by itself; an error says how many were taken before it."""
    for taken, message in enumerate(messages):
        try:
            send(message)
        except (Unavailable, Refused) as error:
            error.taken = taken
            raise


def header_text(text: str) -> str:
    """A text as the value of a header: what is not plain ASCII is written with percent signs.

    >>> header_text("order created"), header_text("a\\nb: c"), header_text("100 %")
    ('order created', 'a%0Ab: c', '100 %25')
    """
    return quote(text, safe=_PRINTABLE, errors="replace")
