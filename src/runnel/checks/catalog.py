"""Tests in the catalog: what they say, and what was found last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import psycopg
from psycopg.types.json import Jsonb

from runnel.checks.tests import Test, read_tests

Connection = psycopg.Connection[Any]
Status = Literal["pending", "ok", "violated", "error"]

LOAD = """
SELECT definition, on_violation, status, violations, problem, name FROM pgtrickle.pgt_tests
WHERE pgt_id = %s ORDER BY position
"""
INSERT = """
INSERT INTO pgtrickle.pgt_tests (pgt_id, position, name, definition, on_violation, repeat_at)
VALUES (%s, %s, %s, %s, %s, clock_timestamp())
"""
MARK = "UPDATE pgtrickle.pgt_stream_tables SET tested = %s WHERE pgt_id = %s"
SAVE = """
UPDATE pgtrickle.pgt_tests t SET status = f.status, violations = f.violations, problem = f.problem,
    since = CASE WHEN t.status = f.status THEN t.since ELSE clock_timestamp() END, checked_at = clock_timestamp(),
    repeat_at = CASE WHEN f.repeat_after IS NOT NULL THEN clock_timestamp() + make_interval(secs => f.repeat_after)
                     WHEN f.keeps THEN t.repeat_at END
FROM unnest(%s::text[], %s::text[], %s::int8[], %s::text[], %s::float8[], %s::bool[])
  AS f (name, status, violations, problem, repeat_after, keeps)
WHERE t.pgt_id = %s AND t.name = f.name
"""
NEXT = """
SELECT extract(epoch FROM t.repeat_at - clock_timestamp())::float8, t.pgt_id
FROM pgtrickle.pgt_tests t JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = t.pgt_id
WHERE t.repeat_at IS NOT NULL AND s.status = 'ACTIVE' AND s.is_populated AND NOT s.needs_reinit
ORDER BY t.repeat_at LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """A test, and what was found last."""

    test: Test
    status: Status = "pending"
    violations: int = 0
    problem: str | None = None

    @property
    def holds_back(self) -> bool:
        """Whether nothing is published because of it. What could not be tested is not known to be good."""
        return self.test.on_violation == "hold" and self.status in ("violated", "error")


@dataclass(frozen=True, slots=True)
class Found:
    """What was found now."""

    test: Test
    status: Status
    violations: int = 0
    problem: str | None = None
    repeat_after: float | None = None
    """Seconds until it is worth counting anew, whatever happens to the stream table."""
    keeps: bool = False
    """What was settled about that before still holds."""

    @property
    def kept(self) -> Kept:
        """As it will be in the catalog."""
        return Kept(self.test, self.status, self.violations, self.problem)


def load_tests(conn: Connection, pgt_id: int) -> list[Kept]:
    """The tests of a stream table."""
    rows = conn.execute(LOAD, (pgt_id,)).fetchall()
    entries = [{**definition, "on_violation": reaction} for definition, reaction, *_ in rows]
    tests = read_tests(entries, "public")
    return [
        Kept(test, status, violations, problem)
        for test, (_, _, status, violations, problem, _) in zip(tests, rows, strict=True)
    ]


def replace_tests(conn: Connection, pgt_id: int, tests: Sequence[Test]) -> None:
    """Let these be the tests of a stream table; what was found before is forgotten."""
    conn.execute("DELETE FROM pgtrickle.pgt_tests WHERE pgt_id = %s", (pgt_id,))
    for position, test in enumerate(tests, 1):
        conn.execute(INSERT, (pgt_id, position, test.name, Jsonb(test.as_json()), test.on_violation))
    conn.execute(MARK, (bool(tests), pgt_id))


def save_found(conn: Connection, pgt_id: int, found: Sequence[Found]) -> None:
    """Remember what was found."""
    columns = zip(
        *((f.test.name, f.status, f.violations, f.problem, f.repeat_after, f.keeps) for f in found), strict=True
    )
    if found:
        conn.execute(SAVE, (*(list(column) for column in columns), pgt_id))


def next_repeat(conn: Connection) -> tuple[float, int | None]:
    """In how many seconds which stream table has a test that is worth repeating."""
    row = conn.execute(NEXT).fetchone()
    return (float("inf"), None) if row is None else (float(row[0]), int(row[1]))


def held_since(conn: Connection, pgt_id: int) -> datetime | None:
    """Since when nothing of a stream table is published."""
    row = conn.execute("SELECT held_since FROM pgtrickle.pgt_sinks WHERE pgt_id = %s", (pgt_id,)).fetchone()
    return None if row is None else row[0]
