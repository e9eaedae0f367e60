"""A scenario is SQL text and nothing else, so that a shrunk failure can be pasted as a regression test."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent

LATE = "late: "
"""Prefix of statements that run on a second connection, whose transaction may stay open across steps."""


@dataclass(frozen=True)
class Scenario:
    """Tables, stream tables over them, and a history in steps; after each step everything is verified."""

    tables: Sequence[str]
    streams: Mapping[str, str]
    steps: Sequence[Sequence[str]]
    time_zone: str = "UTC"
    tied: Sequence[str] = ()
    """Stream tables whose order leaves ties: there only the query as Runnel completed it says which rows are right."""
    twins: bool = False
    """Whether each stream table has a twin in FULL mode, which must never differ from it."""

    def __str__(self) -> str:
        lines = ["replay(", "    Scenario(", "        tables=["]
        lines += [f"            {_literal(t)}," for t in self.tables]
        lines += ["        ],", "        streams={"]
        lines += [f'            "{name}": {_literal(query)},' for name, query in self.streams.items()]
        lines += ["        },", "        steps=["]
        for step in self.steps:
            lines += ["            ["] + [f"                {_literal(s)}," for s in step] + ["            ],"]
        lines.append("        ],")
        if self.time_zone != "UTC":
            lines.append(f'        time_zone="{self.time_zone}",')
        if self.tied:
            lines.append(f"        tied={tuple(self.tied)!r},".replace("'", '"'))
        if self.twins:
            lines.append("        twins=True,")
        lines += ["    )", ")"]
        return "\n".join(lines)

    __repr__ = __str__


def _literal(text: str) -> str:
    """A Python literal that stays readable: double quotes unless the SQL needs them."""
    if '"' not in text and "\\" not in text and text.isprintable():
        return f'"{text}"'
    return repr(text)


@dataclass
class Mismatch(AssertionError):
    """What went wrong, with the scenario as code."""

    scenario: Scenario
    stream: str
    step: int
    problem: str

    def __str__(self) -> str:
        where = f"at creation of {self.stream}" if self.step < 0 else f"{self.stream} after step {self.step}"
        return f"{where}: {self.problem}\n\n{indent(str(self.scenario), '    ')}\n"


def truncated_table(statement: str) -> str | None:
    """The table a statement truncates, if it does.

    >>> truncated_table("TRUNCATE t1")
    't1'
    """
    found = re.match(r"TRUNCATE\s+(?:ONLY\s+)?(\w+)", statement)
    return found.group(1) if found else None


def mentions(query: str, name: str) -> bool:
    """Whether a query reads a table."""
    return re.search(rf"\b{re.escape(name)}\b", query) is not None
