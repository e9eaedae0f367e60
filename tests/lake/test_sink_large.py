"""Large tables: published by Spark's tasks, then kept in step like small ones."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

import runnel
from tests.e2e.helpers import eventually
from tests.lake.duck import Duck
from tests.lake.places import Place
from tests.lake.sinks import lake, place, same

__all__ = ["lake", "place"]

BIG = "CREATE TABLE big AS SELECT i AS id, -i AS back FROM generate_series(1, 3000) i"
ENDED = "SELECT count(*) FROM ducklake.ducklake_data_file WHERE end_snapshot IS NOT NULL"


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_a_large_table_is_published_by_tasks(
    mode: str,
    db: psycopg.Connection[Any],
    place: Place,
    lake: Duck,
    client: runnel.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 2000)
    monkeypatch.setattr("runnel.sinks.ducklake.large._LEAST_PAGES", 20)
    db.execute("CREATE TABLE big (id int, name text, price numeric(12,2), moment timestamptz)")
    db.execute(
        "INSERT INTO big SELECT i, 'name ' || i % 1000, i * 0.01, timestamptz '2024-01-01' + i * interval '1 second' "
        "FROM generate_series(1, 9000) i"
    )
    client.create_stream_table("b", "SELECT * FROM big", schedule="1h", sink="ducklake", ducklake_sink_mode=mode)
    assert (
        lake.rows("SELECT count(*), sum(id), min(moment), max(price) FROM b")
        == db.execute("SELECT count(*), sum(id), min(moment), max(price) FROM b").fetchall()
    )
    assert db.execute("SELECT count(*) > 2 FROM ducklake.ducklake_data_file").fetchone() == (True,)
    row = db.execute("SELECT timings ? 'publish' FROM pgtrickle.pgt_refresh_history").fetchone()
    assert row == (True,)
    db.execute("DELETE FROM big WHERE id % 1000 = 7; UPDATE big SET name = 'changed' WHERE id BETWEEN 7000 AND 7100")
    client.refresh("b")
    assert db.execute("SELECT reason FROM pgtrickle.pgt_refresh_history ORDER BY 1 LIMIT 1").fetchone() == (None,)
    same(db, lake, "b")
    place.check(db)


def test_the_row_map_of_a_large_table_is_built_when_there_is_time(
    db: psycopg.Connection[Any], place: Place, lake: Duck, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 2000)
    db.execute(BIG)
    client.create_stream_table("b", "SELECT * FROM big", schedule="1h", sink="ducklake")
    eventually(lambda: db.execute("SELECT map_start IS NULL FROM pgtrickle.pgt_sinks").fetchone() == (True,))
    assert db.execute("SELECT count(DISTINCT row_id) FROM pgtrickle_state.lake_1").fetchone() == (3000,)
    db.execute("DELETE FROM big WHERE id % 1000 = 7")
    client.refresh("b")
    assert db.execute(ENDED).fetchone() == (0,)
    same(db, lake, "b")
    place.check(db)


def test_a_large_table_whose_rows_have_moved_is_published_anew(
    db: psycopg.Connection[Any], place: Place, lake: Duck, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 2000)
    db.execute(BIG)
    with monkeypatch.context() as meanwhile:
        # Nobody builds the map before the rows have changed their places.
        meanwhile.setattr("runnel.sinks.ducklake.publication.LakePublication.prepare", lambda *_: None)
        client.create_stream_table("b", "SELECT * FROM big", schedule="1h", sink="ducklake")
        db.execute("CREATE INDEX backwards ON b (back)")
        db.execute("CLUSTER b USING backwards")
    db.execute("DELETE FROM big WHERE id % 1000 = 7")
    client.refresh("b")
    assert db.execute(ENDED).fetchone() == (1,)
    same(db, lake, "b")
    place.check(db)


def test_the_history_says_why_a_large_table_is_published_anew(
    db: psycopg.Connection[Any], place: Place, lake: Duck, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 2000)
    db.execute(BIG)
    client.create_stream_table("b", "SELECT * FROM big", schedule="1h", sink="ducklake")
    lake.run("DELETE FROM b__rows WHERE id = 5")
    db.execute("DELETE FROM big WHERE id = 7")
    client.refresh("b")
    found = db.execute(
        "SELECT reason, timings ?& ARRAY['publish', 'upload'] FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id"
    ).fetchall()
    assert found == [(None, True), ("published whole: another writer changed its rows in the lake", True)]
    assert db.execute("SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE reason = ''").fetchone() == (0,)
    same(db, lake, "b")
    place.check(db)
