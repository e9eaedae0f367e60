"""Temporary tables of a session: dropped when what they belong to is gone.

Each holds locks and cache entries for as long as its session lives, and an engine's session lives for months.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg

from runnel.model.names import quote

FOUND = "SELECT relname::text FROM pg_class WHERE relnamespace = pg_my_temp_schema() AND relkind = 'r'"


def drop_temporary(conn: psycopg.Connection[Any], names: re.Pattern[str], keep: Callable[[int], bool]) -> list[str]:
    """Drop the session's temporary tables whose name holds a number that is not to be kept; their names."""
    found = [str(row[0]) for row in conn.execute(FOUND).fetchall()]
    gone = [n for n in found if (match := names.match(n)) is not None and not keep(int(match[1]))]
    if gone:
        conn.execute(f"DROP TABLE {', '.join(f'pg_temp.{quote(name)}' for name in gone)}".encode())
    return gone
