"""Reading tests/sql/*.sql: plain SQL, cut into setups, cases and changes by comments (see its README).

>>> topic = parse("demo", '''-- Sums
... -- setup
... CREATE TABLE t (v int);
... -- case: the sum
... -- One row, always.
... SELECT sum(v) AS s FROM t;
... -- change: a first row
... INSERT INTO t VALUES (1);
... ''')
>>> topic.cases[0].table, topic.cases[0].query, topic.changes[0].title
('answers.the_sum', 'SELECT sum(v) AS s FROM t', 'a first row')
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "sql"
SCHEMA = "answers"

_DIRECTIVE = re.compile(r"-- (setup|case|mode|error|change)(?::\s*(.+))?\s*")
_MODE = re.compile(r"FULL\s+because\s+(.+)")


class Malformed(ValueError):
    """A corpus file that does not follow the format."""


@dataclass(frozen=True, slots=True)
class Step:
    """A setup or a change: SQL that runs in one transaction."""

    title: str
    sql: str
    line: int


@dataclass(frozen=True, slots=True)
class Case:
    """A query that becomes a stream table."""

    name: str
    shows: str
    query: str
    line: int
    full_because: str | None = None  # words of the reason for FULL; None means maintained by deltas
    error: str | None = None  # words of the message that refuses it

    @property
    def table(self) -> str:
        """The stream table's name: the case's, as an identifier."""
        return f"{SCHEMA}.{re.sub(r'[^a-z0-9]+', '_', self.name.lower()).strip('_')}"


@dataclass(frozen=True, slots=True)
class Topic:
    """One file: what is there first, the queries, and what happens then."""

    name: str
    setups: Sequence[Step]
    cases: Sequence[Case]
    changes: Sequence[Step]

    @property
    def maintained(self) -> list[Case]:
        """The cases that become stream tables."""
        return [case for case in self.cases if case.error is None]


def topics() -> list[Path]:
    """All files of the corpus."""
    return sorted(FOLDER.glob("*.sql"))


def load(path: Path) -> Topic:
    return parse(path.stem, path.read_text(encoding="utf-8"))


def parse(name: str, text: str) -> Topic:
    """The parts of a file; Malformed says where it does not follow the format."""
    setups: list[Step] = []
    changes: list[Step] = []
    cases: list[Case] = []
    for kind, title, line, body in _blocks(name, text):
        where = f"{name}.sql:{line}"
        if kind == "case":
            cases.append(_case(title, line, body, where))
        elif not _without_comments(body):
            raise Malformed(f"{where}: a {kind} without SQL")
        else:
            (setups if kind == "setup" else changes).append(Step(title or kind, "\n".join(body), line))
    if not setups or not cases:
        raise Malformed(f"{name}.sql: needs at least one setup and one case")
    if not changes and any(case.error is None for case in cases):
        raise Malformed(f"{name}.sql: nothing ever changes")
    tables = [case.table for case in cases]
    for case in cases:
        if tables.count(case.table) > 1:
            raise Malformed(f"{name}.sql:{case.line}: another case has the name {case.name!r}")
    return Topic(name, setups, cases, changes)


def _blocks(name: str, text: str) -> list[tuple[str, str, int, list[str]]]:
    """(kind, title, line number, lines) of each setup, case and change."""
    blocks: list[tuple[str, str, int, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        found = _DIRECTIVE.fullmatch(line)
        kind = found[1] if found else ""
        if found and kind in ("setup", "case", "change"):
            blocks.append((kind, (found[2] or "").strip(), number, []))
        elif blocks:
            blocks[-1][3].append(line)
        elif line.strip() and not line.startswith("--"):
            raise Malformed(f"{name}.sql:{number}: SQL before the first setup")
    return blocks


def _case(title: str, line: int, body: Sequence[str], where: str) -> Case:
    prose: list[str] = []
    said: dict[str, str] = {}
    rest = list(body)
    while rest and (rest[0].startswith("--") or not rest[0].strip()):
        head = rest.pop(0)
        found = _DIRECTIVE.fullmatch(head)
        if found:
            said[found[1]] = (found[2] or "").strip()
        elif head.strip():
            prose.append(head.removeprefix("--").strip())
    query = "\n".join(rest).strip().removesuffix(";")
    if not title or not prose:
        raise Malformed(f"{where}: a case needs a name and a sentence that says what it shows")
    if not _without_comments(rest):
        raise Malformed(f"{where}: a case without a query")
    mode = _MODE.fullmatch(said["mode"]) if "mode" in said else None
    if "mode" in said and mode is None:
        raise Malformed(f"{where}: write `-- mode: FULL because <words of the reason>`")
    if said.get("error") == "":
        raise Malformed(f"{where}: write `-- error: <words of the message>`")
    return Case(title, " ".join(prose), query, line, mode[1] if mode else None, said.get("error"))


def _without_comments(lines: Sequence[str]) -> str:
    return "".join(line for line in lines if not line.lstrip().startswith("--")).strip().strip(";")
