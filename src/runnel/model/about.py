"""What a line of the log is about: a stream table, a refresh. Whoever writes the log for machines adds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_about: ContextVar[Mapping[str, str | int]] = ContextVar("about", default={})  # noqa: B039  (never changed)


@contextmanager
def about(stream_table: str, refresh_id: int | None = None) -> Iterator[None]:
    """What this thread says from here on is about a stream table, and one refresh of it.

    >>> with about("public.totals", 7):
    ...     dict(known())
    {'stream_table': 'public.totals', 'refresh_id': 7}
    """
    token = _about.set({"stream_table": stream_table, **({} if refresh_id is None else {"refresh_id": refresh_id})})
    try:
        yield
    finally:
        _about.reset(token)


def known() -> Mapping[str, str | int]:
    """What this thread's words are about."""
    return _about.get()
