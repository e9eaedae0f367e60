"""What the database's locale means for whoever compares its text elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

_ASK = """
SELECT pg_encoding_to_char(encoding) = 'UTF8',
       datlocprovider = 'b' OR (datlocprovider = 'c' AND datcollate IN ('C', 'POSIX'))
FROM pg_database WHERE datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Locale:
    """The default locale of a database."""

    utf8: bool
    bytewise: bool
    """Whether text is sorted by its bytes."""


def read_locale(conn: psycopg.Connection[Any]) -> Locale:
    """Of the database that a connection is in."""
    row = conn.execute(_ASK).fetchone()
    assert row is not None
    return Locale(bool(row[0]), bool(row[1]))
