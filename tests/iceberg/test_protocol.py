"""The protocol itself: what is listed, what is refused and how, and what a load answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import requests

from runnel.http.server import HttpServer
from tests.iceberg.clients import catalog
from tests.lake.duck import Duck

HEADERS: dict[str, str] = {}


@pytest.fixture
def client(duck: Callable[..., Duck], lake: str) -> Iterator[Duck]:
    started = duck(lake)
    started.run("SET python_enable_replacements = false")
    yield started


def url(http: HttpServer, path: str) -> str:
    return f"{http.url}/iceberg/v1/{path}"


def get(http: HttpServer, path: str, **headers: str) -> requests.Response:
    return requests.get(url(http, path), headers=headers, timeout=30)


def test_config_names_prefix_and_endpoints(client: Duck, http: HttpServer) -> None:
    for warehouse, prefix in (("lake", "lake"), ("lake@v2", "lake@v2"), (None, "lake")):
        said = requests.get(url(http, "config"), params={"warehouse": warehouse}, timeout=10).json()
        assert said["defaults"] == {"prefix": prefix} and said["overrides"] == {}
        assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in said["endpoints"]
        assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}" in said["endpoints"]
    unknown = get(http, "config?warehouse=sea")
    assert unknown.status_code == 404 and "no lake sea" in unknown.json()["error"]["message"]
    # A client that asks for version 2 by its prefix gets it.
    assert catalog(http, prefix="lake@v2").properties["prefix"] == "lake@v2"


def test_namespaces_and_tables_are_listed_in_pages(client: Duck, http: HttpServer) -> None:
    client.run("CREATE SCHEMA other")
    for number in range(5):
        client.run(f"CREATE TABLE other.t{number}(i INTEGER)")
    client.run('CREATE TABLE "We ird/x"(i INTEGER)')
    ice = catalog(http)
    assert ice.list_namespaces() == [("main",), ("other",)]
    assert ice.namespace_exists("other") and not ice.namespace_exists("nothing")
    assert ice.load_namespace_properties("other") == {}
    assert ice.list_tables("other") == [("other", f"t{number}") for number in range(5)]
    assert ice.load_table(("main", "We ird/x")).scan().to_arrow().num_rows == 0
    first = get(http, "lake/namespaces/other/tables?pageSize=2").json()
    assert len(first["identifiers"]) == 2
    rest = get(http, f"lake/namespaces/other/tables?pageSize=9&pageToken={first['next-page-token']}").json()
    assert len(rest["identifiers"]) == 3 and rest["next-page-token"] is None
    assert get(http, "lake/namespaces/other/tables?pageToken=x").status_code == 400
    assert get(http, "lake/namespaces?parent=other").json()["namespaces"] == []
    assert get(http, "lake/namespaces?parent=nothing").status_code == 404
    assert get(http, "lake/namespaces/other/views").json()["identifiers"] == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("lake/namespaces/nothing", "NoSuchNamespaceException"),
        ("lake/namespaces/nothing/tables", "NoSuchNamespaceException"),
        # Spark looks for metadata tables in namespaces that are tables: it must hear that there is no table.
        ("lake/namespaces/nothing/tables/t", "NoSuchTableException"),
        ("lake/namespaces/main/tables/nothing", "NoSuchTableException"),
        ("lake/namespaces/main/views/nothing", "NoSuchViewException"),
        ("sea/namespaces", "NotFoundException"),
    ],
)
def test_what_is_missing_is_told_in_the_protocols_words(path: str, kind: str, client: Duck, http: HttpServer) -> None:
    answer = get(http, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (404, 404, kind)
    assert error["message"]
    assert requests.head(url(http, path), timeout=10).status_code in (404, 405)


NOT_SUPPORTED = (406, "UnsupportedOperationException", "not supported")


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("POST", "lake/namespaces", (400, "BadRequestException", "one part")),
        ("DELETE", "lake/namespaces/main", (409, "NamespaceNotEmptyException", "not empty")),
        ("DELETE", "lake/namespaces/none", (404, "NoSuchNamespaceException", "none")),
        ("POST", "lake/namespaces/none/properties", (404, "NoSuchNamespaceException", "none")),
        ("POST", "lake/namespaces/main/tables", (400, "BadRequestException", "name is missing")),
        ("POST", "lake/namespaces/main/tables/none", (404, "NoSuchTableException", "none")),
        ("DELETE", "lake/namespaces/main/tables/none", (404, "NoSuchTableException", "none")),
        ("POST", "lake/tables/rename", (400, "BadRequestException", "does not name a table")),
        ("POST", "lake/namespaces/main/register", NOT_SUPPORTED),
        ("POST", "lake/namespaces/main/views", NOT_SUPPORTED),
        ("DELETE", "lake/namespaces/main/views/v", NOT_SUPPORTED),
    ],
)
def test_writes_that_cannot_be_are_refused_in_a_sentence(
    method: str, path: str, answer: tuple[int, str, str], client: Duck, http: HttpServer, tmp_path: Any
) -> None:
    client.run("CREATE TABLE t(i INTEGER)")
    token = (tmp_path / "http" / "token").read_text().strip()
    got = requests.request(method, url(http, path), json={}, headers={"Authorization": f"Bearer {token}"}, timeout=10)
    error = got.json()["error"]
    assert (got.status_code, error["type"]) == answer[:2] and answer[2] in error["message"]
    # Without a token nobody writes, not even from this machine.
    assert requests.request(method, url(http, path), json={}, timeout=10).status_code == 401
    assert client.value("SELECT count(*) FROM t") == 0


@pytest.mark.parametrize(
    ("updates", "said"),
    [
        ([{"action": "remove-snapshots", "snapshot-ids": [1]}], "maintenance"),
        ([{"action": "set-location", "location": "file:///tmp"}], "location"),
        ([{"action": "set-snapshot-ref", "ref-name": "b", "type": "branch", "snapshot-id": 1}], "branches"),
        ([{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1}], "older snapshot"),
        ([{"action": "set-properties", "updates": {"gc.enabled": "true"}}], "gc.enabled"),
        ([{"action": "upgrade-format-version", "format-version": 4}], "version 3"),
        ([{"action": "make-coffee"}], "make-coffee"),
        ([{"action": "add-snapshot"}], "cannot be read"),
        (
            [
                {"action": "add-snapshot", "snapshot": {"snapshot-id": 9, "manifest-list": "file:///etc/passwd"}},
                {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 9},
            ],
            "folders of the table",
        ),
    ],
)
def test_updates_that_cannot_be_are_refused(
    updates: Any, said: str, client: Duck, http: HttpServer, tmp_path: Any
) -> None:
    client.run("CREATE TABLE t(i INTEGER)").run("INSERT INTO t VALUES (1)")
    headers = {"Authorization": f"Bearer {(tmp_path / 'http' / 'token').read_text().strip()}"}
    where = url(http, "lake/namespaces/main/tables/t")
    answer = requests.post(where, json={"requirements": [], "updates": updates}, headers=headers, timeout=10)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]
    # What Trino sends after an insert is taken, and changes nothing.
    before = max(client.snapshots())
    harmless = {"updates": [{"action": "set-statistics", "statistics": {}}]}
    assert requests.post(where, json=harmless, headers=headers, timeout=10).status_code == 200
    assert max(client.snapshots()) == before


def test_a_load_can_be_of_the_head_alone_and_is_not_repeated(client: Duck, http: HttpServer) -> None:
    client.run("CREATE TABLE t AS SELECT range AS i FROM range(10)").run("INSERT INTO t VALUES (10)")
    table = "lake/namespaces/main/tables/t"
    whole = get(http, table)
    assert len(whole.json()["metadata"]["snapshots"]) == 2
    metadata = get(http, f"{table}?snapshots=refs").json()["metadata"]
    assert [each["snapshot-id"] for each in metadata["snapshots"]] == [2] == [metadata["refs"]["main"]["snapshot-id"]]
    assert get(http, f"{table}?snapshots=some").status_code == 400
    assert get(http, table, **{"If-None-Match": whole.headers["ETag"]}).status_code == 304
    assert requests.head(url(http, table), timeout=10).status_code == 204
    client.run("INSERT INTO t VALUES (11)")
    assert get(http, table, **{"If-None-Match": whole.headers["ETag"]}).status_code == 200
    sent = requests.post(url(http, f"{table}/metrics"), json={"report-type": "scan-report"}, timeout=10)
    assert sent.status_code == 204


def test_time_travel_by_time_gives_what_duckdb_gives(
    client: Duck, http: HttpServer, db: psycopg.Connection[Any]
) -> None:
    client.run("CREATE TABLE t(i INTEGER)")
    for number in range(4):
        client.run(f"INSERT INTO t SELECT range FROM range({number + 1})")
        time.sleep(0.005)
    # A transaction that began before others and committed after them.
    db.execute(
        "UPDATE ducklake.ducklake_snapshot s SET snapshot_time = p.snapshot_time - interval '1 microsecond' "
        "FROM ducklake.ducklake_snapshot p WHERE s.snapshot_id = 4 AND p.snapshot_id = 3"
    )
    fresh = client
    table = catalog(http).load_table("main.t")
    moments = [
        row[0] for row in db.execute("SELECT snapshot_time FROM ducklake.ducklake_snapshot WHERE snapshot_id > 0")
    ]
    for moment in moments:
        for shift in (-1, 0, 1, 2):
            millis = int(moment.timestamp() * 1000) + shift
            found = table.snapshot_as_of_timestamp(millis)
            expected = db.execute(
                "SELECT max(snapshot_id) FROM ducklake.ducklake_snapshot "
                "WHERE snapshot_time <= to_timestamp(%s::numeric / 1000) AND snapshot_id > 0",
                (millis,),
            ).fetchone()
            assert expected is not None
            assert (found.snapshot_id if found else None) == expected[0], millis
    assert fresh.value("SELECT count(*) FROM t") == 10


def test_an_encrypted_lake_is_refused(duck: Callable[..., Duck], lake: str, http: HttpServer, db: Any) -> None:
    duck(lake, encrypted=True).run("CREATE TABLE t AS SELECT 1 AS i")
    db.execute("UPDATE pgtrickle.pgt_lakes SET encrypted = true")
    answer = get(http, "lake/namespaces/main/tables/t")
    assert answer.status_code == 400 and "encrypted" in answer.json()["error"]["message"]


def test_a_lake_whose_catalog_is_away_is_unavailable(client: Duck, http: HttpServer, db: Any, dsn: str) -> None:
    db.execute("UPDATE pgtrickle.pgt_lakes SET dsn = 'host=127.0.0.1 port=1 dbname=x connect_timeout=2'")
    answer = get(http, "lake/namespaces")
    assert answer.status_code == 503 and "cannot be reached" in answer.json()["error"]["message"]
    assert json.loads(answer.text)["error"]["type"] == "ServiceUnavailableException"
    db.execute("UPDATE pgtrickle.pgt_lakes SET dsn = %s", (dsn,))
    client.run("CREATE TABLE t AS SELECT range AS i FROM range(1000)")
    assert catalog(http).load_table("main.t").scan().to_arrow().num_rows == 1000
