"""From a snapshot of a lake back to the versions of its sources."""

from __future__ import annotations

import json

import psycopg

import runnel

SINK = """
INSERT INTO pgtrickle.pgt_sinks (pgt_id, sink, lake, lake_schema, view_name)
VALUES (%s, 'ducklake', 'lake', 'main', 'daily')
"""
RECORD = """
INSERT INTO pgtrickle.pgt_ducklake_provenance
    (stream_table_oid, stream_table_name, ducklake_snapshot_id, refresh_id, delta_row_count, lake, frontier)
SELECT s.pgt_relid, s.pgt_schema || '.' || s.pgt_name, %s, h.refresh_id, %s, 'lake', %s
FROM pgtrickle.pgt_stream_tables s JOIN pgtrickle.pgt_refresh_history h USING (pgt_id) WHERE s.pgt_name = %s
ORDER BY h.refresh_id DESC LIMIT 1
"""


def test_a_snapshot_is_traced_through_stream_tables_and_lake_tables(
    client: runnel.Client, db: psycopg.Connection
) -> None:
    db.execute("CREATE TABLE orders (id int, total int)")
    client.create_stream_table("daily", "SELECT id, sum(total) AS s FROM orders GROUP BY id")
    client.create_stream_table("top", "SELECT id FROM daily WHERE s > 10")
    ids = dict(db.execute("SELECT pgt_name, pgt_id FROM pgtrickle.pgt_stream_tables").fetchall())
    db.execute(SINK, (ids["daily"],))
    first = {"postgres": "700:700:"}
    second = {"postgres": "710:710:", "stream_tables": {str(ids["daily"]): 2}, "ducklake:lake.main.daily__rows": 3}
    db.execute(RECORD, (3, 10, json.dumps(first), "daily"))
    db.execute(RECORD, (4, 1, json.dumps(second), "top"))
    db.execute(RECORD, (5, 2, json.dumps({"postgres": "720:720:"}), "daily"))

    newest, older = client.lineage("daily")
    assert (newest.snapshot, newest.rows, older.snapshot) == (5, 2, 3)
    assert newest.action == "INITIAL" and newest.milliseconds is not None
    assert [(each.name, each.version) for each in newest.sources] == [("public.orders", "720:720:")]

    (top,) = client.lineage("public.top", lake="lake")
    through_table, through_lake = top.sources
    assert (through_table.kind, through_table.version) == ("stream table", "2")
    assert (through_lake.name, through_lake.version) == ("lake.main.daily__rows", "3")
    for source in top.sources:
        assert source.made_by is not None and source.made_by.snapshot == 3
        assert source.made_by.sources[0].version == "700:700:"
    assert [each.snapshot for each in client.lineage("daily", snapshot=4)] == [3]
    assert client.lineage("daily", lake="other") == []
    # What was published stays traceable when the stream table itself is gone.
    client.drop_stream_table("top")
    db.execute("DELETE FROM pgtrickle.pgt_sinks")
    (gone,) = client.lineage("top")
    assert (gone.action, gone.snapshot) == (None, 4)
