"""Two queries compared as multisets of rows, by PostgreSQL, from outside of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows in which an answer differs from what it should be, in PostgreSQL's own text of them."""

    missing: Sequence[str]
    unexpected: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected)

    def __str__(self) -> str:
        return "\n".join([*_listed("missing", self.missing), *_listed("unexpected", self.unexpected)])


def difference(db: psycopg.Connection, actual: str, expected: str) -> Difference:
    """EXCEPT ALL in both directions.

    Rows are compared by their text: json and point have no equality, and 1.0 is not the same answer as 1.00.
    Floats are shown with 12 digits, because PostgreSQL itself adds them up in no fixed order.
    """
    with db.transaction():
        db.execute("SET LOCAL extra_float_digits = -3")
        return Difference(_except_all(db, expected, actual), _except_all(db, actual, expected))


def _except_all(db: psycopg.Connection, left: str, right: str) -> list[str]:
    query = f"""
        WITH left_row AS ({left}\n), right_row AS ({right}\n)
        SELECT left_row::text FROM left_row EXCEPT ALL SELECT right_row::text FROM right_row ORDER BY 1"""
    return [row[0] for row in db.execute(query.encode())]


def _listed(what: str, rows: Sequence[str]) -> list[str]:
    more = [f"  ... and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return [f"  {what}: {row}" for row in rows[:SHOWN]] + more
