"""About how long it takes to build a stream table that is not there yet: by the builds that this database has seen."""

from __future__ import annotations

from typing import Any

import psycopg

ROWS_A_SECOND = 200_000.0
"""Of a database that has built nothing large so far; a join with an aggregate on two cores does a little more."""
LEAST_SECONDS = 0.2
"""What reads next to nothing takes, too."""

# How many rows of its sources a build took in a second, in the median. What is small says only what a build costs at
# least. Rows are as many as the sources have now.
SEEN = """
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY rows / seconds) FROM (
    SELECT extract(epoch FROM h.end_time - h.start_time)::float8 AS seconds,
           (SELECT sum(greatest(c.reltuples, 0))::float8 FROM pgtrickle.pgt_dependencies d
            JOIN pg_class c ON c.oid = d.source_relid WHERE d.pgt_id = h.pgt_id) AS rows
    FROM pgtrickle.pgt_refresh_history h WHERE h.action = 'INITIAL' AND h.status = 'COMPLETED') AS build
WHERE rows >= 10000 AND seconds > 0
"""


def build_speed(conn: psycopg.Connection[Any]) -> float:
    """Rows of its sources that a build takes in a second."""
    row = conn.execute(SEEN).fetchone()
    return ROWS_A_SECOND if row is None or row[0] is None else float(row[0])


def expected_seconds(rows: int | None, speed: float) -> float | None:
    """For a build that reads so many rows, if that is known.

    >>> expected_seconds(1_000_000, 200_000.0), expected_seconds(3, 200_000.0), expected_seconds(None, 1.0)
    (5.0, 0.2, None)
    """
    return None if rows is None else max(LEAST_SECONDS, rows / speed)
