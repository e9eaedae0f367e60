"""From a lake snapshot back to its refresh, the versions of its sources, and the transactions behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from runnel.http.page.caller import Connection, Row, only, rows
from runnel.lineage import trace

MOST_TRANSACTIONS = 200

SNAPSHOT = """
SELECT p.stream_table_oid::int8 AS oid, p.stream_table_name AS name, p.frontier ->> 'postgres' AS frontier,
       (SELECT e.frontier ->> 'postgres' FROM pgtrickle.pgt_ducklake_provenance e
        WHERE e.stream_table_oid = p.stream_table_oid AND e.lake = p.lake
          AND e.ducklake_snapshot_id < p.ducklake_snapshot_id ORDER BY e.ducklake_snapshot_id DESC LIMIT 1) AS before
FROM pgtrickle.pgt_ducklake_provenance p WHERE p.lake = %(lake)s AND p.ducklake_snapshot_id = %(snapshot)s
"""
# Numbers that one snapshot sees and the one before did not, as far as they were committed.
TRANSACTIONS = """
SELECT x::text AS xid
FROM (SELECT %(before)s::pg_snapshot AS before, %(after)s::pg_snapshot AS after) s,
     generate_series(pg_snapshot_xmin(s.before)::text::numeric, pg_snapshot_xmax(s.after)::text::numeric - 1) AS g (n),
     LATERAL (SELECT g.n::text::xid8) AS t (x)
WHERE pg_visible_in_snapshot(x, s.after) AND NOT pg_visible_in_snapshot(x, s.before) AND pg_xact_status(x) = 'committed'
ORDER BY g.n DESC LIMIT %(most)s
"""
NEWEST = """
SELECT p.lake, p.ducklake_snapshot_id AS snapshot, p.stream_table_name AS name, p.refresh_id, p.delta_row_count AS rows,
       extract(epoch FROM p.written_at)::float8 AS at
FROM pgtrickle.pgt_ducklake_provenance p ORDER BY p.written_at DESC LIMIT 50
"""


def newest(conn: Connection) -> list[Row]:
    """The snapshots that refreshes made last, of all lakes."""
    return rows(conn, NEWEST)


def lineage(conn: Connection, lake: str, snapshot: int) -> Row | None:
    """One snapshot, whose sources are followed as far as they are known."""
    found = only(conn, SNAPSHOT, {"lake": lake, "snapshot": snapshot})
    if found is None:
        return None

    def ask(query: Any, values: Mapping[str, Any]) -> list[Row]:
        return rows(conn, query, values)

    (made,) = trace(ask, found["oid"], [found["name"]], lake=lake, snapshot=snapshot, limit=1)
    transactions: list[str] = []
    if found["frontier"] and found["before"]:
        values = {"before": found["before"], "after": found["frontier"], "most": MOST_TRANSACTIONS}
        transactions = [row["xid"] for row in rows(conn, TRANSACTIONS, values)]
    return {**asdict(made), "before": found["before"], "transactions": transactions}
