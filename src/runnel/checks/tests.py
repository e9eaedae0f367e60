"""What a test says.

People write entries, each with one or several tests in it:

    {"unique": ["region"], "not_null": ["region", "total"], "on_violation": "hold"}
    {"accepted_values": {"region": ["eu", "us"]}}
    {"relationships": {"column": "region", "to": "public.regions", "field": "code"}}
    {"empty": "SELECT 1 FROM marts.revenue WHERE total < 0"}

Each becomes a `Test` for itself: with a name, a count of what violates it, and a state of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from runnel.errors import UserError
from runnel.model.names import Name

Kind = Literal["unique", "not_null", "accepted_values", "relationships", "empty"]
Reaction = Literal["warn", "hold"]

KINDS = ("unique", "not_null", "accepted_values", "relationships", "empty")
REACTIONS = ("warn", "hold")
ON_VIOLATION = "on_violation"


@dataclass(frozen=True, slots=True)
class Test:
    """One thing that must be true."""

    __test__ = False  # pytest is not meant

    kind: Kind
    columns: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    """That a column may have, as PostgreSQL prints them."""
    to: Name | None = None
    field: str = ""
    """The column over there."""
    select: str = ""
    """What must be empty."""
    on_violation: Reaction = "warn"
    number: int = 1
    """Which one it is of those that would have the same name."""

    @property
    def name(self) -> str:
        """How people call it."""
        named = ", ".join(self.columns)
        match self.kind:
            case "unique" | "not_null" | "accepted_values":
                text = f"{self.kind.replace('_', ' ')} {named}"
            case "relationships":
                text = f"relationship {named} -> {self.to}.{self.field}"
            case "empty":
                text = "empty"
        return text if self.number == 1 else f"{text} {self.number}"

    @property
    def looks_elsewhere(self) -> bool:
        """Whether its answer may change although its stream table does not."""
        return self.kind in ("relationships", "empty")

    def as_json(self) -> dict[str, Any]:
        """As an entry; without what is done on a violation."""
        match self.kind:
            case "unique" | "not_null":
                return {self.kind: list(self.columns)}
            case "accepted_values":
                return {self.kind: {self.columns[0]: list(self.values)}}
            case "relationships":
                return {self.kind: {"column": self.columns[0], "to": _written(self.to), "field": self.field}}
            case "empty":
                return {self.kind: self.select}


def read_tests(entries: object, schema: str, on_violation: object = "warn") -> tuple[Test, ...]:
    """The tests of entries; `schema` is where names without one are."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise _wrong("tests must be a list of objects")
    seen: dict[str, int] = {}
    found = []
    # What is said twice is meant once.
    for test in dict.fromkeys(test for entry in entries for test in _tests(entry, schema, on_violation)):
        seen[test.name] = seen.get(test.name, 0) + 1
        found.append(replace(test, number=seen[test.name]))
    return tuple(found)


def as_set(tests: Iterable[Test]) -> frozenset[tuple[str, str]]:
    """For comparing: in which order tests stand means nothing."""
    return frozenset((repr(test.as_json()), test.on_violation) for test in tests)


def parse_name(text: str) -> Name:
    """A name with or without a schema, whose absence is an empty one.

    >>> parse_name("marts.revenue"), parse_name('"Odd"')
    (Name(schema='marts', name='revenue'), Name(schema='', name='Odd'))
    """
    parts = [p[1:-1] if p.startswith('"') else p.lower() for p in re.findall(r'"[^"]+"|[^."]+', text)]
    if not parts:
        raise _wrong(f"{text!r} is no name")
    return Name("", parts[0]) if len(parts) == 1 else Name(parts[0], parts[1])


def _tests(entry: object, schema: str, on_violation: object) -> Iterator[Test]:
    if not isinstance(entry, Mapping):
        raise _wrong("each test must be an object")
    reaction = entry.get(ON_VIOLATION, on_violation)
    if reaction not in REACTIONS:
        raise UserError(f"invalid on_violation {reaction!r}", hint="Use 'warn' or 'hold'.", sqlstate="22023")
    unknown = set(entry) - {*KINDS, ON_VIOLATION}
    if unknown or not set(entry) & set(KINDS):
        raise UserError(
            f"there is no test {', '.join(sorted(map(str, unknown))) or 'in an entry'}",
            hint=f"Known are: {', '.join(KINDS)}; and {ON_VIOLATION} beside them.",
            sqlstate="22023",
        )
    for kind, said in entry.items():
        for test in _of_kind(kind, said, schema):
            yield replace(test, on_violation=reaction)


def _of_kind(kind: str, said: object, schema: str) -> Iterator[Test]:
    match kind:
        case "unique":
            yield Test("unique", _columns(said, kind))
        case "not_null":
            yield from (Test("not_null", (column,)) for column in _columns(said, kind))
        case "accepted_values":
            if not isinstance(said, Mapping) or not all(isinstance(v, list) and v for v in said.values()) or not said:
                raise _wrong('accepted_values must be like {"column": ["a", "b"]}')
            for column, values in said.items():
                yield Test("accepted_values", (str(column),), tuple(_printed(value) for value in values))
        case "relationships":
            wanted = ("column", "to", "field")
            if not isinstance(said, Mapping) or set(said) != set(wanted) or not all(map(_is_text, said.values())):
                raise _wrong("relationships must have column, to and field")
            other = parse_name(said["to"])
            to = Name(other.schema or schema, other.name)
            yield Test("relationships", (said["column"],), to=to, field=said["field"])
        case "empty":
            if not _is_text(said):
                raise _wrong("empty must be a SELECT")
            yield Test("empty", select=str(said).strip().rstrip("; \n"))


def _columns(said: object, kind: str) -> tuple[str, ...]:
    if not isinstance(said, list) or not said or not all(map(_is_text, said)):
        raise _wrong(f"{kind} must be a list of columns")
    return tuple(said)


def _printed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _written(name: Name | None) -> str:
    """A name that `parse_name` reads back."""
    assert name is not None
    parts = (name.schema, name.name)
    return ".".join(part if re.fullmatch("[a-z_][a-z0-9_]*", part) else f'"{part}"' for part in parts)


def _wrong(message: str) -> UserError:
    return UserError(message, hint='Like: [{"unique": ["id"]}, {"not_null": ["total"]}]', sqlstate="22023")
