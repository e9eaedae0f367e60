"""What is new for a stream table: one cheap look at its sources, before any Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

from runnel.model.frontier import Frontier
from runnel.refresh.maintained import Maintained


@dataclass(frozen=True, slots=True)
class Pending:
    """Changes waiting for a stream table."""

    rows: Mapping[int, int]
    """Captured rows per table."""
    markers: tuple[int, ...] = ()
    """Tables whose change cannot be told in rows: a TRUNCATE, a partition attached or detached."""
    upstream: frozenset[int] = frozenset()
    """Stream tables that have moved."""
    lake_rows: int = 0
    """At most how many changes of lake tables."""
    lakes: bool = False
    """Whether some lake table has changes."""

    @property
    def total(self) -> int:
        """Changed rows in all."""
        return sum(self.rows.values()) + self.lake_rows

    @property
    def any(self) -> bool:
        """Whether anything waits."""
        return bool(self.total or self.markers or self.upstream or self.lakes)


def pending_changes(
    conn: psycopg.Connection, table: Maintained, frontier: Frontier, versions: Mapping[int, int]
) -> Pending:
    """Ask each source of a stream table for what its frontier has not seen."""
    rows: dict[int, int] = {}
    markers: list[int] = []
    if table.sources and frontier.snapshot is not None:
        parts = [
            f"SELECT {oid}, count(*) FILTER (WHERE pgt_w <> 0), coalesce(bool_or(pgt_w = 0), false) "
            f"FROM pgtrickle_changes.changes_{oid} WHERE NOT pg_visible_in_snapshot(pgt_xid, %(f)s::pg_snapshot)"
            for oid in table.sources
        ]
        found = conn.execute(" UNION ALL ".join(parts).encode(), {"f": frontier.snapshot}).fetchall()
        for oid, count, marked in found:
            rows[oid] = count
            if marked:
                markers.append(oid)
    moved = frozenset(up for up in table.upstream if versions.get(up, 0) != frontier.stream_tables.get(up, -1))
    return Pending(rows, tuple(markers), moved)
