"""Work as spans of a trace, for whoever listens. Where nobody does it costs a look at a variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Fact = str | int | float | bool
Facts = Mapping[str, Fact]


class Span(Protocol):
    """A piece of work while it is done."""

    def tell(self, facts: Facts) -> None:
        """What became known of it."""


Opener = Callable[[str, Facts], AbstractContextManager[Span]]


class _Unheard:
    def tell(self, facts: Facts) -> None:
        pass


_UNHEARD = _Unheard()
_opener: Opener | None = None


def listen(opener: Opener | None) -> None:
    """From now on spans are opened by this."""
    global _opener  # noqa: PLW0603  (one listener per process, like a log)
    _opener = opener


@contextmanager
def span(name: str, **facts: Fact) -> Iterator[Span]:
    """A piece of work, inside the one that this thread is at.

    >>> with span("refresh", stream_table="public.totals") as work:
    ...     work.tell({"rows": 3})
    """
    if _opener is None:
        yield _UNHEARD
        return
    with _opener(name, facts) as opened:
        yield opened
