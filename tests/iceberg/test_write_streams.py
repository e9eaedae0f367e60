"""Commits of Iceberg clients and stream tables: those over the table move exactly; those that publish are read-only."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.exceptions import BadRequestError, ForbiddenError

import runnel
from runnel.catalog.tokens import create_token
from runnel.http.place import HttpPlace
from runnel.http.server import HttpServer
from tests.iceberg.clients import catalog, ducks
from tests.lake.duck import Duck

Check = Callable[..., None]


@pytest.fixture
def lake(duck: Callable[..., Duck], data_path: str, client: runnel.Client, db: psycopg.Connection[Any]) -> Duck:
    """A lake made by DuckDB and attached as `lake`, with an engine."""
    writer = duck(data_path)
    writer.run("CREATE TABLE events (id BIGINT, kind VARCHAR, amount DECIMAL(10,2))")
    writer.run("INSERT INTO events SELECT i, 'k' || (i % 5), i / 4 FROM range(200) r(i)")
    db.execute("SELECT pgtrickle.attach_ducklake('lake', catalog_schema => 'ducklake')")
    return writer


@pytest.fixture
def token(http: HttpServer, tmp_path: Path) -> str:
    return HttpPlace(tmp_path / "http").token()


def rows(first: int, last: int, kind: str) -> pa.Table:
    ids = pa.array(range(first, last), pa.int64())
    amounts = pa.array([Decimal(7)] * len(ids), pa.decimal128(10, 2))
    return pa.table({"id": ids, "kind": [kind] * len(ids), "amount": amounts})


def test_every_commit_moves_a_stream_table(
    lake: Duck, client: runnel.Client, check: Check, db: psycopg.Connection[Any], http: HttpServer, token: str
) -> None:
    client.create_stream_table("by_kind", "SELECT kind, count(*) AS n, sum(amount) AS s FROM lake.events GROUP BY 1")
    client.create_stream_table("few", "SELECT id, kind FROM lake.events WHERE amount > 40")
    older = catalog(http, "lake@v2", token=token)
    older.load_table("main.events").append(rows(200, 260, "new"))
    check("by_kind", "few")
    older.load_table("main.events").delete("kind = 'k1'")
    check("by_kind", "few")
    older.load_table("main.events").overwrite(rows(300, 310, "again"), overwrite_filter="id >= 195")
    check("by_kind", "few")
    for warehouse in ("lake", "lake@v2"):
        with ducks(http, warehouse, token=token) as writer:
            writer.execute("INSERT INTO ice.main.events SELECT i, 'duck', i FROM range(400, 500) r(i)")
            check("by_kind", "few")
            writer.execute("UPDATE ice.main.events SET amount = amount + 1, kind = 'up' WHERE id % 7 = 0")
            check("by_kind", "few")
            writer.execute("DELETE FROM ice.main.events WHERE id % 5 = 2")
            check("by_kind", "few")
        lake.run("UPDATE events SET kind = 'lake' WHERE id % 9 = 0").run("INSERT INTO events VALUES (1000, 'l', 1)")
        check("by_kind", "few")
    found = db.execute("SELECT kind, n, s FROM by_kind").fetchall()
    assert dict.fromkeys(found, 1) == lake.bag(
        "SELECT kind, count(*), sum(amount)::DECIMAL(38,2) FROM events GROUP BY 1"
    )
    assert set(each.action for each in client.history("by_kind", 1000)) == {"INITIAL", "DIFFERENTIAL"}


def test_what_a_stream_table_publishes_is_read_only(
    lake: Duck, client: runnel.Client, http: HttpServer, token: str
) -> None:
    client.create_stream_table("shown", "SELECT kind, count(*) AS n FROM lake.events GROUP BY 1", sink="ducklake")
    ice = catalog(http, "lake@v2", token=token)
    listed = {name for spaces in ice.list_namespaces() for name in ice.list_tables(spaces)}
    (name,) = [each for each in listed if each[1] == "shown"]
    table = ice.load_table(name)
    more = pa.table({"kind": ["x"], "n": pa.array([1], pa.int64())})
    for act in (
        lambda: table.append(more),
        lambda: table.delete("n > 0"),
        lambda: table.transaction().set_properties({"a": "b"}).commit_transaction(),
        lambda: ice.drop_table(name),
        lambda: ice.rename_table(name, (name[0], "other")),
    ):
        with pytest.raises(ForbiddenError, match="belongs to a stream table"):
            act()


def test_a_token_writes_what_its_role_may(
    lake: Duck, client: runnel.Client, db: psycopg.Connection[Any], http: HttpServer
) -> None:
    client.create_stream_table("by_kind", "SELECT kind, count(*) AS n FROM lake.events GROUP BY 1")
    db.execute("DROP ROLE IF EXISTS http_writer; CREATE ROLE http_writer")
    try:
        db.execute("GRANT USAGE ON SCHEMA lake TO http_writer; GRANT SELECT ON lake.events TO http_writer")
        _, token = create_token(db, "http_writer", "a loader")
        ice = catalog(http, "lake@v2", token=token)
        table = ice.load_table("main.events")
        with pytest.raises(ForbiddenError, match="lacks INSERT"):
            table.append(rows(0, 1, "x"))
        db.execute("GRANT INSERT ON lake.events TO http_writer")
        table.append(rows(500, 501, "x"))
        with pytest.raises(ForbiddenError, match="lacks DELETE"):
            table.delete("id = 500")
        db.execute("GRANT DELETE ON lake.events TO http_writer")
        table.delete("id = 500")
        with pytest.raises(ForbiddenError, match="engine's role"):
            table.transaction().set_properties({"a": "b"}).commit_transaction()
        for act in (
            lambda: ice.drop_table("main.events"),
            lambda: ice.create_table("main.more", rows(0, 1, "x").schema),
            lambda: ice.create_namespace("more"),
        ):
            with pytest.raises(ForbiddenError, match="engine's role"):
                act()
        # Nobody reads another table's files by adding them to one's own.
        lake.run("CREATE TABLE secret AS SELECT i AS id, 's' AS kind, 1::DECIMAL(10,2) AS amount FROM range(200) r(i)")
        ((path,),) = lake.rows("SELECT data_file FROM ducklake_list_files('lake', 'secret')")
        with pytest.raises(BadRequestError, match="folders of the table"):
            table.add_files([f"file://{path}"])
        ((own,),) = lake.rows("SELECT data_file FROM ducklake_list_files('lake', 'events') LIMIT 1")
        assert lake.rows("SELECT count(*) FROM events") == [(200,)] and own
    finally:
        db.execute("DROP OWNED BY http_writer; DROP ROLE http_writer")
