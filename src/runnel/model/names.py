"""Names and texts as PostgreSQL reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def quote(identifier: str) -> str:
    """Quote one identifier for PostgreSQL.

    >>> quote('a"b')
    '"a""b"'
    """
    return '"' + identifier.replace('"', '""') + '"'


def array_literal(texts: Sequence[str]) -> str:
    r"""Texts as PostgreSQL reads an array of them; a value, yet to be quoted as one.

    >>> print(array_literal(["a", "b c"]), array_literal(['a "b"', "c"]), array_literal([]))
    {"a","b c"} {"a \"b\"","c"} {}
    """
    if not texts:
        return "{}"
    joined = '","'.join(texts)
    if "\\" in joined or joined.count('"') > 2 * (len(texts) - 1):
        # Thousands of keys seldom need it, and looking at each of them takes longer than all the rest.
        joined = '","'.join(t.replace("\\", "\\\\").replace('"', '\\"') for t in texts)
    return '{"' + joined + '"}'


UNDESCRIBED = "stream table, maintained by Runnel; do not write to it"
"""What PostgreSQL says of a stream table that nobody has described."""


@dataclass(frozen=True, slots=True)
class Name:
    """A schema-qualified relation name."""

    schema: str
    name: str

    def sql(self) -> str:
        """The quoted form, safe to put into a statement."""
        return f"{quote(self.schema)}.{quote(self.name)}"

    def __str__(self) -> str:
        """The form a person reads."""
        return f"{self.schema}.{self.name}"
