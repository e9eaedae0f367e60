"""What the hostile tests share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.e2e.helpers import eventually, value

SAME = """
SELECT NOT EXISTS (
    (SELECT grp, sum(x), count(*) FROM good GROUP BY grp EXCEPT ALL SELECT grp, total, n FROM fresh)
    UNION ALL
    (SELECT grp, total, n FROM fresh EXCEPT ALL SELECT grp, sum(x), count(*) FROM good GROUP BY grp))
"""


@dataclass
class Watched:
    """The stream table `fresh` over the table `good`."""

    db: psycopg.Connection
    written: int = 0

    def write(self) -> None:
        """Change the source."""
        self.written += 1
        self.db.execute("UPDATE good SET x = x + 1, grp = (grp + 1) %% 4 WHERE id %% 2 = %s", (self.written % 2,))

    def follows(self, seconds: float = 10.0) -> float:
        """Write, and wait until the stream table has followed; how long that took."""
        self.write()
        began = time.monotonic()
        eventually(lambda: value(self.db, SAME), seconds, what="the stream table did not follow")
        return time.monotonic() - began


def row_of(db: psycopg.Connection, name: str) -> dict[str, Any]:
    """The catalog's row of a stream table, and its last error as its owner sees it."""
    cursor = db.execute(
        "SELECT t.*, s.last_error AS whole_error FROM pgtrickle.pgt_stream_tables t "
        "JOIN pgtrickle.pgt_status() s ON s.name = format('%%I.%%I', t.pgt_schema, t.pgt_name) WHERE t.pgt_name = %s",
        (name,),
    )
    found = cursor.fetchone()
    assert found is not None and cursor.description is not None
    return dict(zip([column.name for column in cursor.description], found, strict=True))


def backend(db: psycopg.Connection, name: str) -> int:
    """The process of a session of the engine, by its name."""
    found = value(
        db, f"SELECT pid FROM pg_stat_activity WHERE application_name = '{name}' AND datname = current_database()"
    )
    return int(found)
