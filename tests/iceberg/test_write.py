"""Writing through the protocol: PyIceberg and DuckDB's iceberg extension write, DuckDB on DuckLake reads, and back."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, MonthTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

from runnel.http.place import HttpPlace
from runnel.http.server import HttpServer
from runnel.iceberg import write
from runnel.iceberg.commit import Plan
from runnel.lake.write.commit import Draft
from tests.iceberg.clients import catalog, ducks
from tests.iceberg.comparing import assert_same
from tests.iceberg.handmade import Hand
from tests.lake.duck import Duck

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None], "x": [0.5, None, 2.5]})
COLUMNS = "id BIGINT, name VARCHAR, x DOUBLE"


@pytest.fixture
def token(http: HttpServer, tmp_path: Path) -> str:
    """The server's own."""
    return HttpPlace(tmp_path / "http").token()


@pytest.fixture
def client(duck: Callable[..., Duck], lake: str) -> Iterator[Duck]:
    started = duck(lake)
    started.run("SET python_enable_replacements = false")
    yield started


@pytest.fixture
def ice(client: Duck, http: HttpServer, token: str) -> RestCatalog:
    """PyIceberg, which writes version 2."""
    return catalog(http, "lake@v2", token=token)


def test_pyiceberg_appends_to_a_table_of_ducklake(client: Duck, ice: RestCatalog, http: HttpServer) -> None:
    client.run(f"CREATE TABLE t({COLUMNS})").run("INSERT INTO t VALUES (0, 'z', 1)")
    ice.load_table("main.t").append(ROWS)
    assert client.rows("SELECT * FROM t ORDER BY id") == [
        (0, "z", 1.0), (1, "a", 0.5), (2, "b", None), (3, None, 2.5)
    ]  # fmt: skip
    assert client.rows("SELECT min(id), max(id), count(*), min(x), max(x) FROM t") == [(0, 3, 4, 0.5, 2.5)]
    # The client's file is the lake's, where DuckDB's are: by a name that stays when the client's goes.
    files = [Path(name) for (name,) in client.rows("SELECT data_file FROM ducklake_list_files('lake', 't')")]
    (mine,) = [path for path in files[0].parent.glob("*.parquet") if "ducklake-" not in path.name]
    assert any(path.samefile(mine) for path in files)
    mine.unlink()
    client.run("INSERT INTO t VALUES (4, 'd', 4)")
    assert ice.load_table("main.t").scan().to_arrow().num_rows == 5
    assert [row[0] for row in client.rows("SELECT rowid FROM t ORDER BY rowid")] == [0, 1, 2, 3, 4]
    same(client, http, "t")


def same(client: Duck, http: HttpServer, name: str) -> None:
    """All snapshots, in both versions of the format, by both readers, and the statistics."""
    for warehouse in ("lake", "lake@v2"):
        table = catalog(http, warehouse).load_table(f"main.{name}")
        with ducks(http, warehouse) as reader:
            listed = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
            assert assert_same(client, table, reader, name, listed, lambda where=warehouse: where) == len(listed) > 0
    counted = client.rows(f"SELECT count(*) FROM {name}")
    assert counted == client.rows(f"SELECT count(*) FROM (SELECT * FROM {name} WHERE rowid >= 0 OR rowid IS NULL)")
    ids = [row[0] for row in client.rows(f"SELECT rowid FROM {name}")]
    assert None not in ids and len(set(ids)) == len(ids)


def test_pyiceberg_deletes_overwrites_and_upserts(client: Duck, ice: RestCatalog, http: HttpServer) -> None:
    client.run(f"CREATE TABLE t({COLUMNS})").run("CALL lake.set_option('data_inlining_row_limit', 0)")
    client.run("INSERT INTO t SELECT i, 'n' || i, i / 2 FROM range(100) r(i)")
    client.run("DELETE FROM t WHERE id % 10 = 0")
    ice.load_table("main.t").delete("id < 50")
    assert client.rows("SELECT count(*), min(id) FROM t") == [(45, 51)]
    ice.load_table("main.t").overwrite(ROWS, overwrite_filter="id >= 90")
    assert client.rows("SELECT count(*), sum(id) FROM t") == [(39, sum(i for i in range(51, 90) if i % 10) + 6)]
    ice.load_table("main.t").upsert(ROWS.set_column(1, "name", pa.array(["A", "B", "C"])), ["id"])
    assert client.rows("SELECT name FROM t WHERE id < 10 ORDER BY id") == [("A",), ("B",), ("C",)]
    ice.load_table("main.t").overwrite(ROWS)
    assert client.rows("SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,)]
    same(client, http, "t")


def test_rows_that_are_in_no_file_yet_can_be_deleted(
    client: Duck, ice: RestCatalog, http: HttpServer, token: str
) -> None:
    client.run("CALL lake.set_option('data_inlining_row_limit', 100)")
    client.run(f"CREATE TABLE t({COLUMNS})").run("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    client.run("INSERT INTO t VALUES (4, 'd', 4), (5, 'e', 5)")
    with ducks(http, token=token) as writer:
        writer.execute("DELETE FROM ice.main.t WHERE id IN (2, 4)")
    assert client.rows("SELECT id FROM t ORDER BY id") == [(1,), (3,), (5,)]
    ice.load_table("main.t").delete("id >= 3")
    assert client.rows("SELECT id FROM t ORDER BY id") == [(1,)]
    same(client, http, "t")


@pytest.mark.parametrize("warehouse", ["lake", "lake@v2"])
def test_duckdb_writes_as_iceberg(warehouse: str, client: Duck, http: HttpServer, token: str) -> None:
    client.run(f"CREATE TABLE t({COLUMNS})").run("CALL lake.set_option('data_inlining_row_limit', 0)")
    client.run("INSERT INTO t SELECT i, 'n' || i, i / 2 FROM range(20) r(i)")
    with ducks(http, warehouse, token=token) as writer:
        writer.execute("INSERT INTO ice.main.t SELECT i, 'm' || i, NULL FROM range(20, 40) r(i)")
        assert client.rows("SELECT count(*), max(id) FROM t") == [(40, 39)]
        writer.execute("DELETE FROM ice.main.t WHERE id % 4 = 0")
        assert client.rows("SELECT count(*) FROM t") == [(30,)]
        client.run("DELETE FROM t WHERE id = 1").run("INSERT INTO t VALUES (100, 'duck', 1)")
        writer.execute("UPDATE ice.main.t SET name = upper(name) WHERE id IN (2, 22, 100)")
        writer.execute("DELETE FROM ice.main.t WHERE id = 3")
        writer.execute("BEGIN")
        writer.execute("INSERT INTO ice.main.t VALUES (200, 'x', 1), (201, 'y', 2)")
        writer.execute("DELETE FROM ice.main.t WHERE id IN (200, 5)")
        writer.execute("COMMIT")
    assert client.rows("SELECT name FROM t WHERE id IN (2, 22, 100, 201) ORDER BY id") == [
        ("N2",), ("M22",), ("DUCK",), ("y",)
    ]  # fmt: skip
    assert client.rows("SELECT count(*) FROM t WHERE id IN (1, 3, 5, 200)") == [(0,)]
    same(client, http, "t")


def test_a_table_is_created_and_altered(client: Duck, ice: RestCatalog, http: HttpServer, token: str) -> None:
    made = ice.create_table("main.made", ROWS.schema, properties={"owner": "me", "comment": "what it is"})
    assert made.properties["owner"] == "me" and made.properties["comment"] == "what it is"
    made.append(ROWS)
    assert client.rows("SELECT * FROM made ORDER BY id") == [(1, "a", 0.5), (2, "b", None), (3, None, 2.5)]
    with pytest.raises(TableAlreadyExistsError):
        ice.create_table("main.made", ROWS.schema)
    with made.update_schema() as update:
        update.add_column("more", StringType(), doc="new")
        update.rename_column("name", "label")
        update.delete_column("x")
    with made.transaction() as change:
        change.set_properties({"owner": "you"})
        change.remove_properties("comment")
    assert client.rows("SELECT * FROM made ORDER BY id") == [(1, "a", None), (2, "b", None), (3, None, None)]
    client.run("ALTER TABLE made ADD COLUMN late INTEGER").run("INSERT INTO made VALUES (4, 'd', 'm', 7)")
    table = catalog(http).load_table("main.made")
    assert table.properties["owner"] == "you" and "comment" not in table.properties
    assert table.schema().find_field("more").doc == "new"
    with ice.load_table("main.made").update_schema() as update:
        update.update_column("late", LongType())
        update.move_first("late")
    assert client.rows("SELECT typeof(late) FROM made LIMIT 1") == [("BIGINT",)]
    assert client.rows("SELECT * FROM made WHERE id = 4") == [(7, 4, "d", "m")]
    same(client, http, "made")


def test_a_table_is_created_with_its_rows(client: Duck, ice: RestCatalog, http: HttpServer) -> None:
    with ice.create_table_transaction("main.made", ROWS.schema) as staged:
        assert ice.list_tables("main") == []
        staged.append(ROWS)
    assert client.rows("SELECT count(*), max(x) FROM made") == [(3, 2.5)]
    with pytest.raises(CommitFailedException), ice.create_table_transaction("main.other", ROWS.schema) as staged:
        client.run(f"CREATE TABLE other({COLUMNS})")
        staged.append(ROWS)
    assert client.rows("SELECT count(*) FROM other") == [(0,)]
    same(client, http, "made")


def test_partitions_go_both_ways(client: Duck, ice: RestCatalog, http: HttpServer) -> None:
    schema = Schema(
        NestedField(1, "k", LongType()),
        NestedField(2, "city", StringType()),
        NestedField(3, "moment", TimestampType()),
        NestedField(4, "b", LongType()),
    )
    spec = PartitionSpec(
        PartitionField(4, 1000, IdentityTransform(), "b"), PartitionField(2, 1001, IdentityTransform(), "city")
    )
    table = ice.create_table("main.p", schema, partition_spec=spec)
    rows = pa.table(
        {
            "k": pa.array(range(20), pa.int64()),
            "city": ["Aix", "Bonn / B=1", None, "Köln"] * 5,
            "moment": pa.array([dt.datetime(2020 + i % 3, 1, 1) for i in range(20)], pa.timestamp("us")),
            "b": pa.array([i % 2 for i in range(20)], pa.int64()),
        }
    )
    table.append(rows)
    client.run("INSERT INTO p SELECT k + 20, city, moment, b FROM p")
    assert client.rows("SELECT count(*) FROM p WHERE city = 'Köln'") == [(10,)]
    stored = client.rows(
        "SELECT DISTINCT partition_value FROM __ducklake_metadata_lake.ducklake.ducklake_file_partition_value"
        " WHERE partition_key_index = 1 ORDER BY 1"
    )
    assert [row[0] for row in stored] == ["Aix", "Bonn / B=1", "Köln", None]
    ice.load_table("main.p").delete("city = 'Aix'")
    assert client.rows("SELECT count(*) FROM p") == [(30,)]
    with ice.load_table("main.p").update_spec() as update:
        update.remove_field("p1001")
    client.run("INSERT INTO p VALUES (99, 'Ulm', NULL, 3)")
    with pytest.raises(BadRequestError, match="both formats"), ice.load_table("main.p").update_spec() as update:
        update.add_field("moment", MonthTransform(), "month")
    same(client, http, "p")


def post(http: HttpServer, token: str, path: str, body: Any) -> requests.Response:
    """A request as it is sent."""
    url = f"{http.url}/iceberg/v1/lake/namespaces/main/{path}"
    return requests.post(url, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=30)


def test_a_commit_on_an_old_head_is_a_conflict(
    client: Duck, ice: RestCatalog, http: HttpServer, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.run(f"CREATE TABLE t({COLUMNS})").run("CREATE TABLE other(i INTEGER)")
    table = ice.load_table("main.t")
    # Another table's commit is a snapshot of this one, too, and no conflict.
    client.run("INSERT INTO other VALUES (1)")
    table.append(ROWS)
    stale = ice.load_table("main.t")
    client.run("INSERT INTO t VALUES (7, 'duck', 0)")
    # More rows are more rows, whatever rows others have added or removed.
    stale.append(ROWS)
    assert client.rows("SELECT count(*) FROM t") == [(7,)]
    assert "concurrent update, retrying" not in caplog.text
    # For everything else PyIceberg is told 409, loads the table again, and tries again.
    stale = ice.load_table("main.t")
    client.run("INSERT INTO t VALUES (8, 'duck', 0)")
    stale.delete("id = 7")
    assert client.rows("SELECT count(*) FROM t") == [(7,)]
    assert "concurrent update, retrying" in caplog.text
    stale = ice.load_table("main.t")
    client.run("ALTER TABLE t DROP COLUMN x")
    caplog.clear()
    stale.append(ROWS)
    assert client.rows("SELECT count(*) FROM t") == [(10,)]
    assert "concurrent update, retrying" in caplog.text
    for requirement in (
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 10**6},
        {"type": "assert-table-uuid", "uuid": "0"},
        {"type": "assert-create"},
    ):
        answer = post(http, token, "tables/t", {"requirements": [requirement], "updates": []})
        assert (answer.status_code, answer.json()["error"]["type"]) == (409, "CommitFailedException")


def test_a_request_that_comes_twice_is_taken_once(
    client: Duck, ice: RestCatalog, http: HttpServer, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As proxies send it whose connection broke: both are looked at before either is written."""
    client.run(f"CREATE TABLE t({COLUMNS})").run("CALL lake.set_option('data_inlining_row_limit', 0)")
    hand = Hand(http, token, "t")
    updates = hand.snapshot([*hand.listed(), hand.manifest(hand.data_file(ROWS))])
    at = hand.metadata()["current-snapshot-id"]
    must = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": at}]
    both, take_files = threading.Barrier(2, timeout=60), Plan.take_files

    def wait(plan: Plan, guess: int) -> None:
        take_files(plan, guess)
        both.wait()

    monkeypatch.setattr(Plan, "take_files", wait)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: hand.commit(*updates, requirements=must), range(2)))
    assert sorted(each.status_code for each in answers) == [200, 400]
    assert "cannot be added again" in next(each.text for each in answers if each.status_code == 400)
    assert client.rows("SELECT count(*) FROM t") == [(3,)]
    monkeypatch.undo()
    # Nor later, when the rows are gone.
    client.run("DELETE FROM t")
    assert hand.commit(*updates, requirements=must).status_code == 400
    assert client.rows("SELECT count(*) FROM t") == [(0,)]


def test_a_database_that_is_lost_while_it_commits_is_no_failure(
    client: Duck,
    ice: RestCatalog,
    http: HttpServer,
    token: str,
    lake: str,
    db: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody knows whether the commit is there: clients and server remove nothing."""
    client.run(f"CREATE TABLE t({COLUMNS})").run("CALL lake.set_option('data_inlining_row_limit', 0)")
    hand = Hand(http, token, "t")
    finish = write.finish

    def lost(draft: Draft, **said: Any) -> None:
        finish(draft, **said)
        db.execute("SELECT pg_terminate_backend(%s, 10000)", (draft.conn.info.backend_pid,))

    monkeypatch.setattr(write, "finish", lost)
    answer = hand.append(hand.data_file(ROWS))
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "CommitStateUnknownException")
    monkeypatch.undo()
    assert client.rows("SELECT count(*) FROM t") == [(0,)]
    assert [path for path in Path(lake).rglob("ducklake-*.parquet")]
    ice.load_table("main.t").append(ROWS)
    assert client.rows("SELECT count(*) FROM t") == [(3,)]


def test_several_tables_in_one_commit(client: Duck, http: HttpServer, token: str) -> None:
    client.run("CREATE TABLE a(i INTEGER)").run("CREATE TABLE b(i INTEGER)")
    before = max(client.snapshots())
    with ducks(http, token=token) as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO ice.main.a VALUES (1)")
        writer.execute("INSERT INTO ice.main.b VALUES (2)")
        writer.execute("COMMIT")
    assert client.rows("SELECT * FROM a, b") == [(1, 2)]
    assert max(client.snapshots()) == before + 1


def test_a_commit_of_several_tables_is_taken_whole_or_not_at_all(client: Duck, http: HttpServer, token: str) -> None:
    client.run("CREATE TABLE a(i INTEGER)").run("CREATE TABLE b(i INTEGER)")
    hands = [Hand(http, token, name) for name in ("a", "b")]
    changes = [
        {
            "identifier": {"namespace": ["main"], "name": hand.name},
            "requirements": [{"type": "assert-table-uuid", "uuid": hand.metadata()["table-uuid"]}],
            "updates": hand.snapshot([hand.manifest(hand.data_file(pa.table({"i": pa.array([7], pa.int32())})))]),
        }
        for hand in hands
    ]
    before = max(client.snapshots())
    for damage in (
        {"requirements": [{"type": "assert-table-uuid", "uuid": "another"}]},
        {"updates": [{"action": "x"}]},
    ):
        refused = hands[0].post("transactions/commit", {"table-changes": [changes[0], {**changes[1], **damage}]})
        assert refused.status_code == (409 if "requirements" in damage else 400), refused.text
        assert max(client.snapshots()) == before and client.rows("SELECT i FROM a UNION ALL FROM b") == []
    assert hands[0].post("transactions/commit", {"table-changes": changes}).status_code == 204
    assert max(client.snapshots()) == before + 1 and client.rows("SELECT * FROM a, b") == [(7, 7)]


def test_tables_are_dropped_and_renamed(client: Duck, ice: RestCatalog) -> None:
    client.run(f"CREATE TABLE t({COLUMNS})").run("INSERT INTO t VALUES (1, 'a', 1)").run("CREATE TABLE u(i INTEGER)")
    ice.rename_table("main.t", "main.renamed")
    assert client.rows("SELECT id FROM renamed") == [(1,)]
    with pytest.raises(TableAlreadyExistsError):
        ice.rename_table("main.renamed", "main.u")
    ice.load_table("main.renamed").append(ROWS)
    ice.drop_table("main.renamed")
    with pytest.raises(NoSuchTableError):
        ice.load_table("main.renamed")
    with pytest.raises(duckdb.CatalogException):
        client.rows("SELECT * FROM renamed")
    ice.create_table("main.renamed", ROWS.schema).append(ROWS)
    assert client.rows("SELECT count(*) FROM renamed") == [(3,)]


def test_namespaces(client: Duck, ice: RestCatalog) -> None:
    ice.create_namespace("sales", {"owner": "me"})
    with pytest.raises(NamespaceAlreadyExistsError):
        ice.create_namespace("sales")
    assert ice.load_namespace_properties("sales") == {"owner": "me"}
    ice.update_namespace_properties("sales", removals={"owner"}, updates={"comment": "x"})
    assert ice.load_namespace_properties("sales") == {"comment": "x"}
    ice.create_table("sales.t", ROWS.schema).append(ROWS)
    assert client.rows("SELECT count(*) FROM lake.sales.t") == [(3,)]
    with pytest.raises(NamespaceNotEmptyError):
        ice.drop_namespace("sales")
    ice.drop_table("sales.t")
    ice.drop_namespace("sales")
    assert ("sales",) not in ice.list_namespaces()
    assert client.rows(
        "SELECT count(*) FROM duckdb_schemas() WHERE database_name = 'lake' AND schema_name = 'sales'"
    ) == [(0,)]


def test_what_cannot_be_taken_is_refused_in_a_sentence(client: Duck, ice: RestCatalog, http: HttpServer) -> None:
    client.run("CREATE TABLE t(i INTEGER, s SMALLINT, hidden UBIGINT)")
    with pytest.raises(BadRequestError, match="read-only"):
        ice.load_table("main.t").append(pa.table({"i": pa.array([1], pa.int32()), "s": pa.array([1], pa.int32())}))
    client.run("CREATE TABLE n(i INTEGER, s SMALLINT)")
    table = ice.load_table("main.n")
    with pytest.raises(BadRequestError, match="does not fit"):
        table.append(pa.table({"i": pa.array([1], pa.int32()), "s": pa.array([70000], pa.int32())}))
    table.append(pa.table({"i": pa.array([1], pa.int32()), "s": pa.array([7], pa.int32())}))
    assert client.rows("SELECT s, typeof(s) FROM n") == [(7, "SMALLINT")]
    with pytest.raises(BadRequestError, match="branches"):
        table.refresh().manage_snapshots().create_tag(table.metadata.current_snapshot_id, "mark").commit()
    without = catalog(http, "lake@v2")
    with pytest.raises(Exception, match="token is needed"):
        without.load_table("main.n").append(pa.table({"i": pa.array([1], pa.int32()), "s": pa.array([1], pa.int32())}))
    same(client, http, "n")
