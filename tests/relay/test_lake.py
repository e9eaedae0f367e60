"""A stream table into a lake by way of its outbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import runnel
from runnel.relay.relay import Relay
from tests.e2e.helpers import eventually

TO_LAKE = "SELECT tide.relay_set_outbox('revenue', 'ducklake')"


def rows(db: psycopg.Connection, query: str) -> Counter[Any]:
    return Counter(db.execute(query.encode()).fetchall())


@pytest.mark.usefixtures("orders")
def test_each_refresh_is_in_the_outbox(db: psycopg.Connection, client: runnel.Client) -> None:
    db.execute("SELECT pgtrickle.attach_outbox('revenue')")
    db.execute("INSERT INTO orders (region, amount) VALUES ('eu', 5)")
    client.refresh("revenue")
    found = db.execute("SELECT payload, headers FROM tide.tide_outbox_messages ORDER BY id").fetchall()
    assert [h["event_type"] for _, h in found] == ["stream_table.reset"] * 2 + ["stream_table.changed"]
    reset, first, second = (payload for payload, _ in found)
    assert reset["reset"] and not reset["inserted"]
    assert {r["region"]: r["total"] for r in first["inserted"]} == {"eu": 10, "us": 20}
    assert second["inserted"] == [{"region": "eu", "total": 15.00, "n": 2}]
    assert second["deleted"] == [{"region": "eu", "total": 10.00, "n": 1}]


def test_every_worker_knows_of_an_outbox(db: psycopg.Connection, client: runnel.Client, dsn: str) -> None:
    """Whichever of the engine's workers refreshes, the outbox that another has attached gets the changes."""
    tables = [f"side_{n}" for n in range(4)]
    db.execute("CREATE TABLE base (id int)")
    db.execute(
        "CREATE FUNCTION slow(id int) RETURNS int LANGUAGE plpgsql IMMUTABLE"
        " AS $$ BEGIN PERFORM pg_sleep(0.2); RETURN id; END $$"
    )
    for table in tables:
        client.create_stream_table(table, "SELECT slow(id) AS id FROM base", schedule="1h")

    def refresh_all() -> None:
        def refresh(table: str) -> None:
            with runnel.Client(dsn) as own:
                own.refresh(table)

        with ThreadPoolExecutor(len(tables)) as side_by_side:
            list(side_by_side.map(refresh, tables))

    db.execute("INSERT INTO base VALUES (1)")
    refresh_all()  # by now there are several workers
    for table in tables:
        db.execute("SELECT pgtrickle.attach_outbox(%s)", (table,))
    for value in (2, 3):
        db.execute("INSERT INTO base VALUES (%s)", (value,))
        refresh_all()
    told = "SELECT outbox_name, jsonb_array_elements(payload -> 'inserted') ->> 'id' FROM tide.tide_outbox_messages"
    assert rows(db, told) == Counter((table, str(id)) for table in tables for id in (1, 2, 3))


@pytest.mark.usefixtures("orders")
def test_data_flows_into_the_lake(
    db: psycopg.Connection, client: runnel.Client, relay: Callable[[], Relay], duck: Callable[..., Any]
) -> None:
    db.execute("SELECT pgtrickle.attach_outbox('revenue')")
    db.execute(TO_LAKE)
    relay()
    query = "SELECT region, total, n FROM revenue"
    for amount in range(1, 6):
        db.execute("INSERT INTO orders (region, amount) VALUES (%s, %s)", (f"r{amount % 3}", amount))
        client.refresh("revenue")
    eventually(lambda: db.execute("SELECT pending_count = 0 FROM tide.outboxes").fetchone()[0])  # type: ignore[index]
    lake = duck()
    assert lake.bag(query) == rows(db, query)
    (delivered,) = db.execute("SELECT delivered_count FROM tide.outboxes").fetchone() or ()
    assert delivered == 7
    assert lake.value("SELECT count(*) FROM revenue__log WHERE __action = 'insert'") == 7
    (known,) = db.execute(
        "SELECT count(*) FROM pgtrickle.pgt_ducklake_provenance WHERE stream_table_name = 'revenue'"
    ).fetchone() or (0,)
    assert known >= 1
