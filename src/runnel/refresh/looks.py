"""The rows of a change, for people who look at the stream table just now."""

from __future__ import annotations

import psycopg

from runnel.apply.output import output_columns
from runnel.model.looks import MOST_ROWS, Seen
from runnel.model.shown import as_text
from runnel.refresh.maintained import Maintained


def changed_rows(conn: psycopg.Connection, table: Maintained, version: int) -> Seen:
    """What this transaction has changed, or the beginning of it; an updated row's old and new values side by side."""
    last = table.stages[-1]
    values = ", ".join(as_text(name) for name, _ in output_columns(last))
    delta = table.tables(last).delta
    found = conn.execute(f"SELECT w, {values} FROM {delta} LIMIT {MOST_ROWS}".encode()).fetchall()
    rows = sorted(found, key=lambda row: ([value or "" for value in row[1:2]], row[0]))
    return Seen(version, tuple(column.name for column in last.columns), tuple(rows))
