"""Qualified names of relations."""

from __future__ import annotations

from dataclasses import dataclass


def quote(identifier: str) -> str:
    """Quote one identifier for PostgreSQL.

    >>> quote('a"b')
    '"a""b"'
    """
    return '"' + identifier.replace('"', '""') + '"'


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
