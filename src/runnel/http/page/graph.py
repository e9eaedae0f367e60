"""Sources, stream tables and lake tables, with what flows between them in the last minute."""

from __future__ import annotations

import threading
import time
from collections import deque

from runnel.http.page.caller import Connection, Row, rows

SECONDS = 60

CAPTURED = """
SELECT d.source_name AS name, max(u.n_tup_ins) AS rows
FROM pgtrickle.pgt_change_tracking t JOIN pgtrickle.pgt_dependencies d ON d.source_relid = t.source_relid
JOIN pg_stat_user_tables u ON u.schemaname = 'pgtrickle_changes' AND u.relname = t.buffer
GROUP BY 1
"""

EDGES = """
SELECT d.source_name AS source, d.source_type AS kind, format('%I.%I', s.pgt_schema, s.pgt_name) AS target
FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = d.pgt_id
WHERE d.source_type <> 'VIEW'
"""
NODES = """
SELECT format('%I.%I', s.pgt_schema, s.pgt_name) AS name, s.status,
       extract(epoch FROM f.staleness)::float8 AS staleness,
       extract(epoch FROM p.period)::float8 AS period, f.pending, s.consecutive_errors AS errors, s.schedule
FROM pgtrickle.pgt_stream_tables s
JOIN pgtrickle._freshness() f ON f.pgt_id = s.pgt_id JOIN pgtrickle._periods() p ON p.pgt_id = s.pgt_id
"""
SINKS = """
SELECT format('%I.%I', s.pgt_schema, s.pgt_name) AS source,
       format('%s: %I.%I', k.lake, k.lake_schema, k.view_name) AS target,
       k.mode, k.snapshot_id AS snapshot
FROM pgtrickle.pgt_sinks k JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = k.pgt_id WHERE k.sink = 'ducklake'
"""
# The newest refreshes by number, of which the last minute's are taken: the history has no index on time.
FLOW = f"""
SELECT format('%I.%I', s.pgt_schema, s.pgt_name) AS name, sum(h.rows_inserted + h.rows_deleted) AS changed,
       sum(h.changes_read) AS read, count(*) AS refreshes
FROM (SELECT * FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id DESC LIMIT 5000) h
JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id = h.pgt_id
WHERE h.status = 'COMPLETED' AND h.end_time > clock_timestamp() - interval '{SECONDS} seconds'
GROUP BY 1
"""


class Captured:
    """What is written to captured tables: the server counts the rows, two looks make a speed."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, dict[str, int]]] = deque()
        self._lock = threading.Lock()

    def speeds(self, conn: Connection) -> dict[str, float]:
        """Rows per second by table, over the last minute that somebody looked."""
        now, counts = time.monotonic(), {row["name"]: int(row["rows"]) for row in rows(conn, CAPTURED)}
        with self._lock:
            while self._looks and now - self._looks[0][0] > SECONDS:
                self._looks.popleft()
            first, before = self._looks[0] if self._looks else (now, counts)
            self._looks.append((now, counts))
        passed = max(now - first, 1.0)
        return {name: max(0, count - before.get(name, count)) / passed for name, count in counts.items()}


def graph(conn: Connection, captured: Captured) -> Row:
    """Nodes by name, and edges with rows per second."""
    speeds = captured.speeds(conn)
    flow = {row["name"]: row for row in rows(conn, FLOW)}
    nodes = {row["name"]: {**row, "kind": "stream table"} for row in rows(conn, NODES)}
    edges = []
    for edge in rows(conn, EDGES):
        kind = {"TABLE": "table", "STREAM_TABLE": "stream table"}.get(edge["kind"], "lake table")
        nodes.setdefault(edge["source"], {"name": edge["source"], "kind": kind})
        # A stream table sends what it changed, a table what was captured; of a lake table is known what was read.
        read = flow.get(edge["source"], {}).get("changed") if kind == "stream table" else None
        if kind == "lake table":
            read = flow.get(edge["target"], {}).get("read")
        rate = speeds.get(edge["source"], 0.0) if kind == "table" else float(read or 0) / SECONDS
        edges.append({"source": edge["source"], "target": edge["target"], "rate": round(rate, 3)})
    for sink in rows(conn, SINKS):
        nodes[sink["target"]] = {"name": sink["target"], "kind": "lake table", "mode": sink["mode"]}
        changed = float(flow.get(sink["source"], {}).get("changed") or 0)
        edges.append({"source": sink["source"], "target": sink["target"], "rate": round(changed / SECONDS, 3)})
    return {"nodes": list(nodes.values()), "edges": edges}
