"""What cannot be taken: refused with a sentence, and nothing is left of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
import requests

from runnel.http.place import HttpPlace
from runnel.http.server import HttpServer
from runnel.iceberg.puffin import write_puffin
from tests.iceberg.handmade import EQUALITY, Hand, local
from tests.lake.duck import Duck
from tests.lake.health import known_files, stored_files

Attempt = Callable[[Hand], requests.Response]

MAIN = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}


@pytest.fixture
def hand(client: Duck, http: HttpServer, tmp_path: Path) -> Hand:
    return Hand(http, HttpPlace(tmp_path / "http").token(), "t")


@pytest.fixture
def client(duck: Callable[..., Duck], lake: str) -> Duck:
    made = duck(lake)
    made.run("SET python_enable_replacements = false").run("CALL lake.set_option('data_inlining_row_limit', 0)")
    made.run("CREATE TABLE t (id BIGINT NOT NULL, name VARCHAR)")
    made.run("INSERT INTO t SELECT i, 'n' || i FROM range(10) r(i)").run("DELETE FROM t WHERE id = 3")
    made.run("CREATE TABLE other (id BIGINT, name VARCHAR)").run("INSERT INTO other VALUES (1, 'secret')")
    return made


def rows(*ids: int | None) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"m{id}" for id in ids]})


def update(**given: Any) -> Attempt:
    """One update alone. Underscores stand for dashes."""
    return lambda hand: hand.commit({key.replace("_", "-"): value for key, value in given.items()})


def vector(hand: Hand, **said: Any) -> requests.Response:
    """A deletion vector."""
    (of,) = hand.files()
    data, where = write_puffin(of, np.array([1], dtype=np.int64))
    address = hand.metadata()["location"] + "/data/own.puffin"
    local(address).write_bytes(data)
    made = {
        "content": 1, "file_path": address, "file_format": "PUFFIN", "record_count": 1, "file_size_in_bytes": len(data),
        "content_offset": where.offset, "content_size_in_bytes": where.length, "referenced_data_file": of,
    }  # fmt: skip
    return hand.delete({**made, **said})


def twice(hand: Hand) -> requests.Response:
    file = hand.data_file(rows(20))
    return hand.append(file, file)


def elsewhere(hand: Hand) -> requests.Response:
    (of,) = Hand(hand.http, hand.token, "other").files()
    return hand.append({"content": 0, "file_path": of, "file_format": "PARQUET", "record_count": 1,
                        "file_size_in_bytes": 1})  # fmt: skip


def upwards(hand: Hand) -> requests.Response:
    (of,) = Hand(hand.http, hand.token, "other").files()
    mine = hand.metadata()["properties"]["write.data.path"]
    path = f"{mine}/../other/{of.rpartition('/')[2]}"
    assert local(path).exists()
    return hand.append({"content": 0, "file_path": path, "file_format": "PARQUET", "record_count": 1,
                        "file_size_in_bytes": 1})  # fmt: skip


def garbled(hand: Hand) -> requests.Response:
    made = hand.manifest(hand.data_file(rows(20)))
    local(made["manifest_path"]).write_bytes(b"no manifest")
    return hand.commit(*hand.snapshot([*hand.listed(), made]))


def older(hand: Hand) -> requests.Response:
    return hand.commit({**MAIN, "snapshot-id": hand.metadata()["snapshots"][0]["snapshot-id"]})


def off_main(hand: Hand) -> requests.Response:
    return hand.commit(hand.snapshot([*hand.listed(), hand.manifest(hand.data_file(rows(20)))])[0])


def without_list(hand: Hand) -> requests.Response:
    made = hand.snapshot([])
    del made[0]["snapshot"]["manifest-list"]
    return hand.commit(*made)


def undeleted(hand: Hand) -> requests.Response:
    """The same data file without its list of deleted positions."""
    return hand.commit(*hand.snapshot([each for each in hand.listed() if not each["content"]], "overwrite"))


def altered(change: Callable[[dict[str, Any]], None]) -> Attempt:
    def attempt(hand: Hand) -> requests.Response:
        schema = hand.schema()
        change(schema)
        return hand.commit(
            {"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}
        )

    return attempt


def with_column(type_: str, **said: Any) -> Attempt:
    column = {"id": 77, "name": "more", "type": type_, "required": False, **said}
    return altered(lambda schema: schema["fields"].append(column))


REFUSED: dict[str, dict[str, tuple[Attempt, str]]] = {
    "deletes": {
        "equality deletes": (
            lambda hand: hand.delete(
                hand.data_file(rows(4).select(["id"]), content=EQUALITY, equality_ids=[1]), content=1
            ),
            "Equality deletes are not supported: delete by positions, or rewrite files (copy-on-write).",
        ),
        "a position that is not there": (
            lambda hand: hand.delete(hand.positions(hand.files()[0], 10)),
            "is not in the",
        ),
        "a position below zero": (lambda hand: hand.delete(hand.positions(hand.files()[0], -1)), "is not in the file"),
        "deletes come back": (undeleted, "Rows that were deleted cannot come back: write them anew."),
        "deletes in Avro": (
            lambda hand: hand.delete(hand.positions(hand.files()[0], 1, file_format="AVRO")),
            "Deleted positions in AVRO are not supported.",
        ),
        "a vector of nothing": (lambda hand: vector(hand, referenced_data_file=None), "must say where it is and what"),
        "a vector cut short": (lambda hand: vector(hand, content_size_in_bytes=7), "cannot be read: ValueError."),
    },
    "data files": {
        "data in ORC": (
            lambda hand: hand.append(hand.data_file(rows(20), file_format="ORC")),
            "Data files are Parquet",
        ),
        "another number of rows": (
            lambda hand: hand.append(hand.data_file(rows(20, 21), record_count=3)),
            "has 2 rows, not 3.",
        ),
        "a required column without a value": (
            lambda hand: hand.append(hand.data_file(rows(20, None))),
            "Column id is required, but some rows",
        ),
        "another type": (
            lambda hand: hand.append(hand.data_file(pa.table({"id": ["a", "b"], "name": ["c", "d"]}))),
            "does not fit the",
        ),
        "the same file twice": (twice, "A file is added twice."),
        "a file of another table": (elsewhere, "is not in the folders of the table"),
        "a file of another table by a detour": (upwards, "is not in the folders of the table"),
        "a file that is not there": (
            lambda hand: hand.append({**(file := hand.data_file(rows(20))), "file_path": file["file_path"] + ".gone"}),
            "is not there.",
        ),
        "no manifest": (garbled, "cannot be read"),
    },
    "snapshots": {
        "going back": (older, "Going back to an older snapshot is not supported: read it, and write its rows."),
        "a snapshot that is not on main": (off_main, "A snapshot that is not to be on branch main cannot be kept."),
        "a snapshot without a list": (without_list, "A snapshot must name a manifest list."),
        "a branch": (
            update(action="set-snapshot-ref", ref_name="mine", type="branch", snapshot_id=1),
            "no branches and tags here",
        ),
        "a tag": (
            update(action="set-snapshot-ref", ref_name="main", type="tag", snapshot_id=1),
            "no branches and tags",
        ),
        "no branch": (update(action="remove-snapshot-ref", ref_name="mine"), "no branches and tags here"),
        "expiring": (
            update(action="remove-snapshots", snapshot_ids=[1]),
            "Snapshots expire by the lake's maintenance, for all of its tables at once.",
        ),
    },
    "definitions": {
        "a sort order": (
            update(action="add-sort-order", sort_order={"order-id": 1, "fields": [{"source-id": 1}]}),
            "Sort orders are not kept: sort the rows where they are written.",
        ),
        "another place": (update(action="set-location", location="file:///tmp/x"), "location cannot be changed."),
        "another place for files": (
            update(action="set-properties", updates={"write.data.path": "file:///tmp"}),
            "write.data.path cannot be",
        ),
        "a newer version": (update(action="upgrade-format-version", format_version=4), "Here tables are of version 2"),
        "an unknown update": (update(action="encrypt", key=1), "The update encrypt is not supported."),
        "an update without its parts": (update(action="add-schema"), "The updates cannot be read."),
        "an unknown requirement": (
            lambda hand: hand.commit(requirements=[{"type": "assert-luck"}]),
            "The requirement assert-luck is not known.",
        ),
        "a type without an equal": (with_column("fixed[16]"), "Type fixed[16] has no equivalent in DuckLake."),
        "a new required column": (with_column("long", required=True), "is new and required, but older rows"),
        "a narrower type": (
            altered(lambda schema: schema["fields"][0].update(type="int")),
            "Column id: int64 cannot become int32.",
        ),
        "a column becomes required": (
            altered(lambda schema: schema["fields"][1].update(required=True)),
            "cannot become required",
        ),
        "two columns of one id": (
            altered(lambda schema: schema["fields"][1].update(id=1)),
            "Two columns have the same id.",
        ),
        "a partition of one format": (
            lambda hand: hand.commit(
                {
                    "action": "add-spec",
                    "spec": {
                        "spec-id": 1,
                        "fields": [{"source-id": 2, "field-id": 1000, "transform": "truncate[4]", "name": "n"}],
                    },
                },
                {"action": "set-default-spec", "spec-id": -1},
            ),
            "is not one that both formats share",
        ),
    },
    "requests": {
        "no object": (lambda hand: hand.post("namespaces/main/tables/t", [1]), "The body is not an object."),
        "updates that are none": (
            lambda hand: hand.post("namespaces/main/tables/t", {"updates": ["drop"]}),
            "updates is not a list of objects.",
        ),
        "a table twice": (
            lambda hand: hand.post(
                "transactions/commit",
                {"table-changes": [{"identifier": {"namespace": ["main"], "name": "t"}, "updates": []}] * 2},
            ),
            "A table is named twice.",
        ),
        "another namespace": (
            lambda hand: hand.post(
                "tables/rename",
                {"source": {"namespace": ["main"], "name": "t"}, "destination": {"namespace": ["sales"], "name": "t"}},
            ),
            "A table cannot move to another namespace: create it there with its rows.",
        ),
        "a namespace below another": (
            lambda hand: hand.post("namespaces", {"namespace": ["a", "b"]}),
            "A namespace has one part here",
        ),
    },
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_taken_is_refused_and_leaves_nothing(
    kind: str, hand: Hand, client: Duck, db: psycopg.Connection[Any], lake: str
) -> None:
    hand.metadata()
    before, head = stored(db, lake), client.head()
    wanted = Counter(client.rows("SELECT * FROM t"))
    for name, (attempt, sentence) in REFUSED[kind].items():
        answer = attempt(hand)
        assert answer.status_code == 400, f"{name}: {answer.text}"
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("BadRequestException", 400), name
        assert sentence in error["message"], name
        assert client.head() == head and Counter(client.rows("SELECT * FROM t")) == wanted, name
        # What Runnel wrote for it is gone; the client's own files are the client's.
        assert stored(db, lake) == before, name
    # And the table takes what is in order.
    assert hand.append(hand.data_file(rows(30))).status_code == 200
    assert client.rows("SELECT count(*) FROM t") == [(len(wanted) + 1,)]


def stored(db: psycopg.Connection[Any], lake: str) -> set[str]:
    """The files that the catalog knows, and all that are named as Runnel and DuckDB name theirs."""
    return known_files(db) | {path for path in stored_files(lake) if "ducklake-" in path}
