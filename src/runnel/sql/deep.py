"""Deeply nested and very long queries: what is too much, and a stack on which recursion over the rest has room.

`a || b || c ..` is printed by PostgreSQL with a pair of parentheses per operator, and reading one pair takes the parser
two dozen calls. Python's usual stack ends at forty pairs.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

LEVELS = 100
"""Parentheses and CASEs inside one another: as many as a refresh, which has the usual stack, can print."""
QUERIES = 50
"""Queries inside one another: each may become a stage of its own."""

CONDITIONS = 1_000
"""Parts joined by AND and OR: the time to plan them grows with their square."""
MEMBERS = 500
"""Members of set operations; the same."""

_FRAMES = 60_000
_STACK = 1 << 29
_PIECES = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\( ?SELECT\b|[()]"""
    r"""|\b(?:CASE|END|AND|OR|UNION|INTERSECT|EXCEPT)\b""",
    re.DOTALL,
)

T = TypeVar("T")
_lock = threading.Lock()
_inside = 0
_usual = 0


def is_deep(text: str) -> bool:
    """Whether a query, as PostgreSQL prints it, is nested more deeply or longer than is planned.

    >>> is_deep("SELECT " + "(" * 600 + "1" + ")" * 600), is_deep("SELECT '((('")
    (True, False)
    """
    levels, queries, conditions, members, opened = 0, 0, 0, 0, list[bool]()
    for piece in _PIECES.finditer(text):
        word = piece.group()
        if word[0] == "(" or word == "CASE":
            opened.append(word.endswith("SELECT"))
            queries += opened[-1]
            levels += 1
        elif word in (")", "END") and opened:
            queries -= opened.pop()
            levels -= 1
        conditions += word in ("AND", "OR")
        members += word in ("UNION", "INTERSECT", "EXCEPT")
        if levels > LEVELS or queries > QUERIES or conditions > CONDITIONS or members > MEMBERS:
            return True
    return False


def with_room(work: Callable[[], T]) -> T:
    """Do something on a thread whose stack is deep enough for what `is_deep` lets pass."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    with _room():
        size = threading.stack_size(_STACK)
        try:
            thread = threading.Thread(target=run, name="deep", daemon=True)
            thread.start()
        finally:
            threading.stack_size(size)
        thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def _room() -> Iterator[None]:
    """The limit is the whole interpreter's: raised by the first who needs it, lowered by the last."""
    global _usual, _inside  # noqa: PLW0603
    with _lock:
        _inside += 1
        if _inside == 1:
            _usual = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_usual, _FRAMES))
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                sys.setrecursionlimit(_usual)
