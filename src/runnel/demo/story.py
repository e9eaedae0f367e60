"""What a demo tells: its tables, what happens to them, and who asks what where."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, LiteralString

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Question:
    """Something that people ask all the time. The first `keys` columns say which row is which.

    `{now}` and `{then}` in a question to DuckDB stand for the lake's snapshot, and for that of a while ago.
    """

    title: str
    asked_in: Literal["PostgreSQL", "DuckDB"]
    query: LiteralString
    keys: int = 1


@dataclass(frozen=True, slots=True)
class Done:
    """One step of the traffic: the id of what it added, and how many rows it changed beside that."""

    newest: int
    other: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A demo apart from the machinery that runs it."""

    name: str
    unit: str
    """What is added all the time, in the plural: orders, matches."""
    rate: float
    tables: str
    """The script that makes the tables, for psql."""
    fill: Callable[[Connection], str]
    """Gives the tables a past; a sentence about it."""
    stream_tables: str
    """The script that defines the stream tables, for psql."""
    archive: Sequence[LiteralString] = ()
    """What DuckDB writes into the lake before the demo begins."""
    act: Callable[[Connection, random.Random], Done]
    questions: Sequence[Question]
    newest: LiteralString
    """Asked by DuckDB: the id of the newest addition that the lake shows."""
    probed: str
    """The stream table that `newest` reads."""


def script(name: str) -> str:
    """A SQL file of this package."""
    return resources.files("runnel.demo").joinpath(name).read_text(encoding="utf-8")
