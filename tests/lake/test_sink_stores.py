"""Sinks in other places: an object store, an encrypted lake, a catalog on another server; and stores that fail."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from tests.lake.duck import Duck
from tests.lake.flaky import Flaky
from tests.lake.places import Place
from tests.lake.published import Published
from tests.lake.s3 import S3
from tests.lake.sinks import ROWS, sales, same, steps

__all__ = ["sales"]

Db = psycopg.Connection[Any]
HASTY = (("retry_timeout", "1"), ("max_retries", "1"), ("timeout", "2"), ("connect_timeout", "1"))


@pytest.fixture(autouse=True)
def sealing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of a lake are stored sealed."""
    monkeypatch.setenv("RUNNEL_ENCRYPTION_KEY", base64.b64encode(bytes(range(32))).decode())


@pytest.fixture
def other_dsn(dsn: str) -> Iterator[str]:
    """A database that the engine knows nothing of."""
    name = "far_" + psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}".encode())
        yield make_conninfo(dsn, dbname=name)
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("encrypted", [False, True])
def test_an_object_store(
    encrypted: bool, dsn: str, s3: S3, bucket: str, sealing_key: None, sales: Db, client: runnel.Client
) -> None:
    place = Place(dsn, bucket, s3=s3, encrypted=encrypted)
    place.attach(sales)
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake")
    published = Published("rows", "merge", sales)
    with place.duck() as duck:
        published.observe(duck)
        for _ in itertools.islice(steps(sales), 4):
            client.refresh("rows")
            published.observe(duck)
    keys = sales.execute("SELECT count(*), count(encryption_key) FROM ducklake.ducklake_delete_file").fetchone()
    assert keys is not None and keys[0] > 0 and keys[1] == (keys[0] if encrypted else 0)
    place.check(sales)


@pytest.mark.slow
def test_a_store_that_is_down_for_a_while(
    dsn: str, flaky: Flaky, bucket: str, s3: S3, sealing_key: None, sales: Db, client: runnel.Client
) -> None:
    place = Place(dsn, bucket, s3=s3, through=flaky.s3, options=HASTY)
    place.attach(sales)
    client.create_stream_table("rows", ROWS, schedule="100ms", sink="ducklake")
    before = (_value(sales, "SELECT max(snapshot_id) FROM ducklake.ducklake_snapshot"), _value(sales, FRONTIER))
    rows = _value(sales, "SELECT count(*) FROM rows")
    flaky.be("refuse")
    sales.execute("DELETE FROM sales WHERE id < 10")
    _until(lambda: _value(sales, "SELECT consecutive_errors FROM pgtrickle.pgt_stream_tables") >= 2)
    assert (_value(sales, "SELECT max(snapshot_id) FROM ducklake.ducklake_snapshot"), _value(sales, FRONTIER)) == before
    assert _value(sales, "SELECT count(*) FROM rows") == rows
    status, error = sales.execute("SELECT status, last_error FROM pgtrickle.pgt_stream_tables").fetchone() or ("", "")
    assert status == "ACTIVE"
    assert error.startswith("cannot write s3://") and flaky.s3.options["secret_access_key"] not in error
    assert _value(sales, "SELECT count(*) > 1 FROM pgtrickle.pgt_refresh_history WHERE status = 'FAILED'")
    flaky.be("none")
    _until(lambda: _value(sales, "SELECT count(*) FROM rows") == rows - 9)
    with place.duck() as duck:
        same(sales, duck, "rows")
    assert _value(sales, "SELECT consecutive_errors FROM pgtrickle.pgt_stream_tables") == 0
    place.check(sales)


def test_a_catalog_on_another_server(
    dsn: str, other_dsn: str, data_path: str, sealing_key: None, sales: Db, client: runnel.Client
) -> None:
    sales.execute(
        "SELECT pgtrickle.attach_ducklake('far', 'lake_catalog', dsn => %s, data_path => %s, "
        "create_if_missing => true)",
        (other_dsn, data_path),
    )
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake", ducklake_lake="far")
    with Duck(other_dsn, schema="lake_catalog") as duck, psycopg.connect(other_dsn, autocommit=True) as far:
        for _ in steps(sales):
            client.refresh("rows")
            same(sales, duck, "rows")
        extra = _value(far, "SELECT commit_extra_info FROM lake_catalog.ducklake_snapshot_changes "
                            "ORDER BY snapshot_id DESC LIMIT 1")  # fmt: skip
        assert f'"refresh_id": {_value(sales, "SELECT max(refresh_id) FROM pgtrickle.pgt_refresh_history")}' in extra
        # The engine died between the two commits: the lake has a snapshot that PostgreSQL does not know of.
        sales.execute("UPDATE pgtrickle.pgt_sinks SET next_row_id = next_row_id - 1, snapshot_id = snapshot_id - 1")
        sales.execute("DELETE FROM sales WHERE id = 1")
        client.refresh("rows")
        same(sales, duck, "rows")
        client.drop_stream_table("rows")
        assert duck.rows("SELECT table_name FROM duckdb_tables()") == []


FRONTIER = "SELECT frontier::text FROM pgtrickle.pgt_stream_tables"


def _value(db: Db, text: str) -> Any:
    row = db.execute(text.encode()).fetchone()
    return None if row is None else row[0]


def _until(reached: Any) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
