"""How many rows a key leads to, from PostgreSQL's statistics: which of several keys should narrow a read.

An estimate never decides what is right, only what is read first, so it may be old.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psycopg

_KEPT_SECONDS = 60.0
_MOST_KEPT = 10_000
_UNKNOWN_FANOUT = 10.0
"""Rows per key of a table that was never analysed."""


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Rows of a table, and the number of different values per column."""

    rows: float
    distinct: Mapping[str, float]

    def fanout(self, column: str) -> float:
        """The average number of rows with the same value.

        >>> TableStatistics(600.0, {"order": -0.25, "supplier": 10.0}).fanout("order")
        4.0
        """
        known = self.distinct.get(column)
        if not known or self.rows < 1:
            return _UNKNOWN_FANOUT
        # PostgreSQL writes a number that grows with the table as a negative share of its rows.
        return self.rows / (known if known > 0 else -known * self.rows)


@dataclass
class Statistics:
    """Statistics by relation, read once and kept for a while."""

    _kept: dict[str, tuple[float, TableStatistics]] = field(default_factory=dict)

    def of(self, conn: psycopg.Connection, relation: str) -> TableStatistics:
        """What PostgreSQL knows about a relation, given by its qualified name."""
        known = self._kept.get(relation)
        if known is not None and time.monotonic() - known[0] < _KEPT_SECONDS:
            return known[1]
        rows = conn.execute(
            "SELECT c.reltuples::float8, s.attname::text, s.n_distinct::float8 FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_stats s "
            "ON s.schemaname = n.nspname AND s.tablename = c.relname WHERE c.oid = to_regclass(%s)",
            (relation,),
        ).fetchall()
        found = TableStatistics(rows[0][0] if rows else 0.0, {name: distinct for _, name, distinct in rows if name})
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[relation] = time.monotonic(), found
        return found
