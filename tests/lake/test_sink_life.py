"""The life of a sink: options, views, altered queries and modes, other writers in the lake, the end."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

import runnel
from runnel.errors import RunnelError
from runnel.sinks.ducklake.job import Job
from runnel.sinks.ducklake.publication import LakePublication
from tests.lake.duck import Duck
from tests.lake.places import Place
from tests.lake.published import Published
from tests.lake.sinks import PER_KIND, ROWS, lake, place, sales, same, steps

__all__ = ["lake", "place", "sales"]

Db = psycopg.Connection[Any]


def one(db: Db, text: str) -> Any:
    row = db.execute(text.encode()).fetchone()
    return None if row is None else row[0]


def test_small_changes_may_be_inlined(sales: Db, place: Place, lake: Duck, client: runnel.Client) -> None:
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake", inline_small_changes=True)
    published = Published("rows", "merge", sales)
    published.observe(lake)
    files = one(sales, "SELECT count(*) FROM ducklake.ducklake_data_file")
    for _ in steps(sales):
        client.refresh("rows")
        published.observe(lake)
    assert one(sales, "SELECT count(*) FROM ducklake.ducklake_data_file") == files
    assert one(sales, "SELECT count(*) FROM ducklake.ducklake_delete_file") == 0
    published.check_history(lake)
    lake.run("CALL ducklake_flush_inlined_data('lake')")
    sales.execute("DELETE FROM sales WHERE id = 1; UPDATE sales SET note = 'flushed' WHERE id = 2")
    client.refresh("rows")
    same(sales, lake, "rows")
    assert one(sales, "SELECT reason FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id DESC LIMIT 1") is None
    place.check(sales)


def test_the_view_says_where_it_comes_from(sales: Db, place: Place, lake: Duck, client: runnel.Client) -> None:
    sales.execute("CREATE SCHEMA shop")
    client.create_stream_table("shop.per_kind", PER_KIND, schedule="1h", sink="ducklake")
    assert lake.value("SELECT count(*) FROM shop.per_kind") == 5
    (comment,) = lake.rows("SELECT comment FROM duckdb_views() WHERE view_name = 'per_kind' AND schema_name = 'shop'")
    assert comment == (PER_KIND,)
    tags = dict(sales.execute("SELECT key, value FROM ducklake.ducklake_tag WHERE end_snapshot IS NULL").fetchall())
    assert tags["pg_trickle.mode"] == "merge"
    assert json.loads(tags["pg_trickle.sources"]) == [
        {"name": "public.sales", "oid": one(sales, "SELECT 'sales'::regclass::oid::int8")}
    ]
    client.drop_stream_table("shop.per_kind")
    assert lake.rows("SELECT view_name FROM duckdb_views() WHERE schema_name = 'shop' AND NOT internal") == []
    assert lake.rows("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'shop'") == []
    assert one(sales, "SELECT count(*) FROM pgtrickle.pgt_sinks") == 0
    assert one(sales, "SELECT count(*) FROM pg_class WHERE relname LIKE 'lake\\_%'") == 0


@pytest.mark.parametrize("mode", ["merge", "append", "replace"])
def test_an_altered_query_evolves_the_table(
    mode: str, sales: Db, place: Place, lake: Duck, client: runnel.Client
) -> None:
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake", ducklake_sink_mode=mode)
    table = one(sales, "SELECT table_id FROM pgtrickle.pgt_sinks")
    client.alter_stream_table("rows", query="SELECT id, kind, amount, note, id * 2 AS twice FROM sales")
    same(sales, lake, "rows")
    assert lake.rows("SELECT sum(twice) FROM rows") == [(2550,)]
    client.alter_stream_table("rows", query="SELECT id::bigint AS id, kind, now() > '2000-01-01' AS late FROM sales")
    same(sales, lake, "rows")
    client.alter_stream_table("rows", query="SELECT id::bigint AS id, kind, false AS late FROM sales WHERE id < 20")
    same(sales, lake, "rows")
    assert one(sales, "SELECT table_id FROM pgtrickle.pgt_sinks") == table
    assert "id < 20" in lake.value("SELECT comment FROM duckdb_views() WHERE view_name = 'rows'")
    sales.execute("DELETE FROM sales WHERE id < 5")
    client.refresh("rows")
    same(sales, lake, "rows")
    place.check(sales)


def test_modes_and_sinks_can_be_changed(sales: Db, place: Place, lake: Duck, client: runnel.Client) -> None:
    client.create_stream_table("rows", ROWS, schedule="1h")
    client.alter_stream_table("rows", sink="ducklake")
    same(sales, lake, "rows")
    client.alter_stream_table("rows", ducklake_sink_mode="append")
    sales.execute("DELETE FROM sales WHERE id < 10")
    client.refresh("rows")
    same(sales, lake, "rows")
    assert lake.rows("SELECT table_name FROM duckdb_tables()") == [("rows__log",)]
    assert lake.rows("SELECT __action, count(*) FROM rows__log GROUP BY 1 ORDER BY 1") == [
        ("delete", 9),
        ("insert", 50),
    ]
    client.alter_stream_table("rows", query="SELECT id FROM sales", ducklake_sink_mode="replace")
    same(sales, lake, "rows")
    client.alter_stream_table("rows", sink="none")
    assert lake.rows("SELECT table_name FROM duckdb_tables()") == []
    assert lake.rows("SELECT view_name FROM duckdb_views() WHERE NOT internal AND database_name = 'lake'") == []
    client.create_or_replace_stream_table("rows", "SELECT id FROM sales", schedule="1h", sink="ducklake")
    same(sales, lake, "rows")


def test_wrong_options_are_refused(sales: Db, place: Place, lake: Duck, client: runnel.Client) -> None:
    for options, message in (
        ({"sink": "iceberg"}, "invalid sink 'iceberg'"),
        ({"sink": "ducklake", "ducklake_sink_mode": "upsert"}, "invalid ducklake_sink_mode"),
        ({"sink": "ducklake", "ducklake_lake": "sea"}, 'there is no lake "sea"'),
        ({"ducklake_sink_mode": "merge"}, "needs a sink"),
    ):
        with pytest.raises(RunnelError, match=message):
            client.create_stream_table("x", ROWS, **options)
    with pytest.raises(RunnelError, match="cannot be called 'row_id'"):
        client.create_stream_table("x", "SELECT id AS row_id FROM sales", sink="ducklake")
    lake.run("CREATE TABLE taken AS SELECT 1 AS a")
    with pytest.raises(RunnelError, match="already has a table main.taken"):
        client.create_stream_table("taken", ROWS, sink="ducklake")
    assert lake.rows("SELECT * FROM taken") == [(1,)]
    assert one(sales, "SELECT count(*) FROM pgtrickle.pgt_stream_tables") == 0
    assert one(sales, "SELECT count(*) FROM pgtrickle.pgt_lake_uploads") == 0
    place.check(sales)


def test_what_others_did_to_the_table_is_undone(sales: Db, place: Place, lake: Duck, client: runnel.Client) -> None:
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake")
    for number, deed in enumerate(
        (
            "DELETE FROM rows__rows WHERE id = 3",
            "INSERT INTO rows__rows VALUES (1, 'foreign', 1, 'x')",
            "UPDATE rows__rows SET note = 'foreign' WHERE id = 4",
            "ALTER TABLE rows__rows ADD COLUMN extra INTEGER",
            "DROP TABLE rows__rows",
            "DROP VIEW rows",
        )
    ):
        lake.run(deed)
        sales.execute("UPDATE sales SET note = %s WHERE id = 10", (f"step {number}",))
        client.refresh("rows")
        same(sales, lake, "rows")
    reason = one(sales, "SELECT string_agg(reason, ';' ORDER BY refresh_id) FROM pgtrickle.pgt_refresh_history")
    assert reason.count("another writer") == 4 and "is gone" in reason
    # Compaction by others changes nothing that matters.
    for deed in (
        "CALL ducklake_merge_adjacent_files('lake')",
        "CALL ducklake_rewrite_data_files('lake', 'rows__rows')",
    ):
        sales.execute("UPDATE sales SET amount = amount + 1 WHERE id < 20")
        client.refresh("rows")
        lake.run(deed)
        sales.execute("DELETE FROM sales WHERE id IN (SELECT min(id) FROM sales)")
        client.refresh("rows")
        same(sales, lake, "rows")
    assert one(sales, "SELECT reason FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id DESC LIMIT 1") is None


def test_a_rebuilt_table_is_compared_with_what_was_published(
    sales: Db, place: Place, lake: Duck, client: runnel.Client
) -> None:
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake")
    sales.execute("SET pgtrickle.allow_direct_writes = on")
    sales.execute("DELETE FROM rows WHERE id < 4; INSERT INTO rows VALUES (999, 'forged', 1, NULL)")
    sales.execute("UPDATE pgtrickle.pgt_stream_tables SET needs_reinit = true")
    sales.execute("DELETE FROM sales WHERE id = 5")
    client.refresh("rows")
    same(sales, lake, "rows")
    assert one(sales, "SELECT count(*) FROM rows") == 49
    assert lake.value("SELECT count(*) FROM rows__rows") == 49


def test_a_renamed_stream_table_keeps_its_name_in_the_lake(sales: Db, lake: Duck, client: runnel.Client) -> None:
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake")
    sales.execute("ALTER TABLE rows RENAME TO lines")
    sales.execute("DELETE FROM sales WHERE id = 5")
    client.refresh("lines")
    assert lake.value("SELECT count(*) FROM rows") == one(sales, "SELECT count(*) FROM lines") == 49
    sales.execute("ALTER TABLE sales RENAME TO sold")
    sales.execute("DELETE FROM sold WHERE id = 6")
    client.refresh("lines")
    assert lake.value("SELECT count(*) FROM rows") == one(sales, "SELECT count(*) FROM lines") == 48


def test_a_plain_drop_table_reaches_the_lake(sales: Db, place: Place, lake: Duck, client: runnel.Client) -> None:
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake")
    sales.execute("DROP TABLE rows")
    for _ in range(100):
        if not lake.rows("SELECT table_name FROM duckdb_tables()"):
            break
        sales.execute("SELECT pg_sleep(0.2)")
    assert lake.rows("SELECT view_name FROM duckdb_views() WHERE NOT internal AND database_name = 'lake'") == []
    assert one(sales, "SELECT count(*) FROM pgtrickle.pgt_sinks") == 0


def test_a_snapshot_number_that_somebody_else_took(
    sales: Db, place: Place, lake: Duck, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delete files name the snapshot that deletes: a wrong guess is made good before anybody sees it."""
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake")
    guess = LakePublication._job

    def wrong(self: LakePublication, *args: Any) -> Job:
        job = guess(self, *args)
        job.next_snapshot += 3
        return job

    published = Published("rows", "merge", sales)
    published.observe(lake)
    monkeypatch.setattr(LakePublication, "_job", wrong)
    for _ in itertools.islice(steps(sales), 4):
        client.refresh("rows")
        published.observe(lake)
    published.check_history(lake)
    place.check(sales)


def test_maintenance_goes_unnoticed(sales: Db, place: Place, lake: Duck, client: runnel.Client) -> None:
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake")
    for _ in steps(sales):
        client.refresh("rows")
    sales.execute("SELECT pgtrickle.maintain_ducklake('lake')")
    assert one(sales, "SELECT count(*) FROM ducklake.ducklake_data_file WHERE end_snapshot IS NULL") == 1
    sales.execute("DELETE FROM sales WHERE id IN (1, 6); UPDATE sales SET note = 'kept' WHERE id = 2")
    client.refresh("rows")
    same(sales, lake, "rows")
    assert one(sales, "SELECT reason FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id DESC LIMIT 1") is None
    place.check(sales)


def test_deltas_are_exported(sales: Db, place: Place, client: runnel.Client, tmp_path: Path) -> None:
    folder = tmp_path / "deltas"
    client.create_stream_table(
        "rows", ROWS, schedule="1h", delta_export_path=str(folder), delta_export_compression="gzip"
    )
    sales.execute("DELETE FROM sales WHERE id = 1; UPDATE sales SET note = 'b' WHERE id = 2")
    client.refresh("rows")
    first, second = sorted(folder.iterdir())
    assert first.name.endswith("_1.parquet") and second.name.endswith("_2.parquet")
    rows = pq.read_table(second)
    changes = sorted(zip(rows["id"].to_pylist(), rows["__action"].to_pylist(), strict=True))
    assert changes == [(1, "delete"), (2, "delete"), (2, "insert")]
    assert set(rows["__refresh_id"].to_pylist()) == {2}
    assert pq.ParquetFile(second).metadata.row_group(0).column(0).compression == "GZIP"
    client.alter_stream_table("rows", delta_export_path="")
    sales.execute("DELETE FROM sales WHERE id = 3")
    client.refresh("rows")
    assert len(list(folder.iterdir())) == 2
    assert one(sales, "SELECT count(*) FROM pgtrickle.pgt_sinks") == 0


def test_a_stream_table_cannot_read_what_it_publishes(
    sales: Db, place: Place, lake: Duck, client: runnel.Client
) -> None:
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake")
    client.create_stream_table("other", ROWS, schedule="1h", sink="ducklake")
    with pytest.raises(RunnelError, match="depend on itself"):
        client.alter_stream_table("rows", query="SELECT id FROM lake.main.rows__rows")
    client.alter_stream_table("rows", query="SELECT id FROM lake.main.other__rows")
    same(sales, lake, "rows")
    place.check(sales)
