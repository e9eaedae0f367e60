"""From a snapshot of a lake back to the versions of its sources."""

from __future__ import annotations

import psycopg
import pytest

import runnel
from runnel.cli.output import print_lineage

OFTEN = "SELECT id, count(*) AS n FROM orders GROUP BY id"


def test_snapshots_are_traced_back_to_the_tables(
    client: runnel.Client, db: psycopg.Connection, data_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client.attach_lake("sea", "salt", data_path=data_path, create=True)
    db.execute("CREATE TABLE orders (id int)")
    client.create_stream_table("often", OFTEN, schedule="@yearly", sink="ducklake")
    client.create_stream_table(
        "twice", "SELECT id FROM often WHERE n > 1", schedule="@yearly", sink="ducklake", ducklake_lake="sea"
    )
    db.execute("INSERT INTO orders VALUES (1), (1), (2)")
    client.refresh()
    db.execute("INSERT INTO orders VALUES (2)")
    client.refresh()

    newest, middle, first = client.lineage("twice")
    assert (newest.lake, newest.stream_table, newest.rows, newest.action) == ("sea", "twice", 1, "DIFFERENTIAL")
    assert (first.action, first.rows) == ("INITIAL", 0) and middle.snapshot > first.snapshot
    (source,) = newest.sources
    assert (source.name, source.kind) == ("public.often", "stream table")
    made_by = source.made_by
    assert made_by is not None and middle.snapshot < made_by.snapshot < newest.snapshot
    (orders,) = made_by.sources
    # The version is a snapshot of PostgreSQL that sees what was committed before, and nothing later.
    assert (orders.name, orders.kind) == ("public.orders", "table")
    seen = db.execute(
        "SELECT count(*) FROM orders WHERE pg_visible_in_snapshot(xmin::text::xid8, %s)", (orders.version,)
    )
    assert seen.fetchone() == (4,)
    (older,) = [each.made_by for each in middle.sources]
    assert older is not None
    seen = db.execute(
        "SELECT count(*) FROM orders WHERE pg_visible_in_snapshot(xmin::text::xid8, %s)", (older.sources[0].version,)
    )
    assert seen.fetchone() == (3,)

    # The refresh is the one in the history.
    known = db.execute(
        "SELECT rows_inserted + rows_deleted FROM pgtrickle.pgt_refresh_history WHERE refresh_id = %s",
        (made_by.refresh_id,),
    ).fetchone()
    assert known == (made_by.rows,)
    print_lineage([newest])
    drawn = capsys.readouterr().out
    assert f"sea snapshot {newest.snapshot}" in drawn and f"public.orders: table at snapshot {orders.version}" in drawn

    assert [each.snapshot for each in client.lineage("twice", snapshot=newest.snapshot - 1)] == [
        middle.snapshot,
        first.snapshot,
    ]
    assert len(client.lineage("often", limit=2)) == 2
    assert client.lineage("often", lake="other") == []
    # Through a lake table that a stream table publishes and another one reads.
    client.create_stream_table("again", "SELECT id FROM sea.often__rows", schedule="@yearly", sink="ducklake")
    (around,) = client.lineage("again")
    (rows,) = around.sources
    assert (rows.name, rows.kind) == ("sea.main.often__rows", "lake table")
    assert rows.made_by is not None and rows.made_by.refresh_id == made_by.refresh_id
    assert rows.made_by.snapshot <= int(rows.version) < around.snapshot
    # What was published stays traceable when the stream table is gone, as far as it was written down.
    client.drop_stream_table("twice")
    gone = client.lineage("twice")
    assert gone[0].action is None and newest.snapshot in [each.snapshot for each in gone]
