"""Files written by Runnel, read by DuckDB: values, statistics, row ids, deletes, history."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runnel.errors import UserError
from runnel.lake.format.catalog import data_files
from runnel.lake.format.model import LakeColumn, LakeTable
from runnel.lake.store.storage import open_store
from runnel.lake.write.commit import LakeConflict, snapshot
from runnel.lake.write.files import add_data_files, end_data_file
from runnel.lake.write.parquet import Form, file_name, write_file, write_files
from runnel.lake.write.tables import column, create_table
from tests.lake.duck import Duck
from tests.lake.writing import Writer, append, delete, new_lake
from tests.sampling import sampled

Clients = Callable[..., Duck]


@pytest.fixture
def lake(dsn: str, data_path: str) -> Iterator[Writer]:
    with new_lake(dsn, data_path) as opened:
        yield opened


def make(lake: Writer, name: str, columns: list[LakeColumn]) -> LakeTable:
    with lake.commit() as draft:
        return create_table(draft, "main", name, columns)


NUMBERS = [column("id", "int64"), column("name", "varchar")]


def numbers(first: int, last: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, last), pa.int64()), "name": [f"n{i}" for i in range(first, last)]})


ELEMENT = column("element", "varchar")
NAN, INF = math.nan, math.inf
UTC = dt.UTC
VALUES: dict[str, tuple[LakeColumn, list[Any]]] = {
    "boolean": (column("c", "boolean"), [True, False, None]),
    "int8": (column("c", "int8"), [-128, 127, 9, None]),
    "int16": (column("c", "int16"), [-32768, 10, 9]),
    "int32": (column("c", "int32"), [2**31 - 1, -(2**31), 0]),
    "int64": (column("c", "int64"), [2**63 - 1, -(2**63), None]),
    "uint8": (column("c", "uint8"), [255, 0]),
    "uint16": (column("c", "uint16"), [65535, 9, 10]),
    "uint32": (column("c", "uint32"), [2**32 - 1, 0]),
    "uint64": (column("c", "uint64"), [2**64 - 1, 1]),
    "float32": (column("c", "float32"), [1.5, -0.25, None]),
    "float64": (column("c", "float64"), [1e300, -1e-300, NAN, 0.1]),
    "infinite": (column("c", "float64"), [INF, -INF, 1.0]),
    "nan": (column("c", "float64"), [NAN, NAN]),
    "decimal4": (column("c", "decimal(4,1)"), [Decimal("999.9"), Decimal("-0.1")]),
    "decimal18": (column("c", "decimal(18,3)"), [Decimal("999999999999999.999"), Decimal("0.000"), None]),
    "decimal38": (
        column("c", "decimal(38,10)"),
        [Decimal("1234567890123456789012345678.0123456789"), Decimal("-1.0000000000")],
    ),
    "date": (column("c", "date"), [dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "time": (column("c", "time"), [dt.time(1, 2, 3, 500000), dt.time(23, 59, 59, 999999), dt.time()]),
    "timestamp": (column("c", "timestamp"), [dt.datetime(2020, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 1)]),
    "timestamp_s": (column("c", "timestamp_s"), [dt.datetime(2020, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59)]),
    "timestamp_ms": (column("c", "timestamp_ms"), [dt.datetime(2020, 1, 1, 1, 1, 1, 120000), None]),
    "timestamp_ns": (column("c", "timestamp_ns"), [dt.datetime(2020, 1, 1, 1, 1, 1, 123456), None]),
    "timestamptz": (column("c", "timestamptz"), [dt.datetime(2020, 1, 1, 12, tzinfo=UTC), None]),
    "varchar": (column("c", "varchar"), ["b", "", "ü", "a\tb'", None]),
    "long": (column("c", "varchar"), ["x" * 300, "y" * 300, "m"]),
    "json": (column("c", "json"), ['{"a": [1, null]}', "1", None]),
    "blob": (column("c", "blob"), [b"\x00\xff", b"a", None]),
    "uuid": (column("c", "uuid"), [str(uuid.UUID(int=5)), None, "f0000000-0000-4000-8000-00000000000a"]),
    "all null": (column("c", "int32"), [None, None]),
    "list": (column("c", "list", column("element", "int32")), [[3, None, 1], [], None, [7]]),
    "struct": (
        column("c", "struct", column("x", "int64"), column("y", "varchar")),
        [{"x": 1, "y": "p"}, None, {"x": None, "y": "a"}],
    ),
    "map": (
        column("c", "map", column("key", "varchar"), column("value", "float64")),
        [[("k", 1.5), ("j", None)], None],
    ),
    "deep": (
        column("c", "list", column("element", "struct", column("t", "date"), column("l", "list", ELEMENT))),
        [[{"t": dt.date(2020, 1, 1), "l": ["a", None]}, None, {"t": None, "l": []}], [], None],
    ),
}  # fmt: skip


@pytest.mark.parametrize("encrypted", sampled([False, True], every=2), ids=["plain", "encrypted"])
def test_every_type_has_duckdbs_values_and_statistics(dsn: str, data_path: str, duck: Clients, encrypted: bool) -> None:
    """The same rows written by us and by DuckDB: equal values, equal rows of statistics, in files and tables."""
    with new_lake(dsn, data_path, encrypted=encrypted) as lake:
        client = duck()
        client.run("CALL lake.set_option('data_inlining_row_limit', 0)")
        client.run("SET threads = 1")
        for label, (described, values) in VALUES.items():
            ours = make(lake, f"ours {label}", [described])
            theirs = make(lake, f"theirs {label}", [described])
            rows = pa.table({"c": pa.array(values, _given(ours.columns[0]))})
            append(lake, ours, rows)
            client.run(f'INSERT INTO "theirs {label}" SELECT * FROM "ours {label}"')
            got = client.rows(f'SELECT c FROM "ours {label}"')
            assert repr(got).replace("<UTC>", repr(UTC)) == repr([(_python(described, value),) for value in values]), (
                label
            )
            assert repr(client.rows(f'SELECT c FROM "theirs {label}"')) == repr(got), label
            # DuckDB miscounts NULLs that lie below two lists.
            counted = "0, 0" if label == "deep" else "value_count, null_count"
            for kind, shown in (("file", f"{counted}, contains_nan"), ("table", "contains_null, contains_nan")):
                stats = [
                    client.rows(
                        f"SELECT column_id, min_value, max_value, extra_stats, {shown} "
                        f"FROM __ducklake_metadata_lake.ducklake.ducklake_{kind}_column_stats "
                        "WHERE table_id = ? ORDER BY column_id",
                        [table.id],
                    )
                    for table in (ours, theirs)
                ]
                assert stats[0] == stats[1], (label, kind)
            if described.type not in {"list", "struct", "map"}:
                least = client.rows(f'SELECT min(c), max(c), count(c), count(*) FROM "ours {label}"')
                scanned = client.rows(f'SELECT min(c), max(c), count(c), count(*) FROM (FROM "ours {label}" LIMIT 99)')
                assert repr(least) == repr(scanned), label


def _given(described: LakeColumn) -> pa.DataType:
    from runnel.lake.format.types import arrow_type

    return arrow_type(described)


def _python(described: LakeColumn, value: Any) -> Any:
    if value is None:
        return None
    if described.type == "uuid":
        return uuid.UUID(value)
    if described.type == "map":
        return dict(value)
    return value


def test_a_table_grows_in_files_and_duckdb_goes_on_with_it(lake: Writer, duck: Clients) -> None:
    client = duck()
    table = make(lake, "t", NUMBERS)
    first = append(lake, table, numbers(0, 100))
    assert client.rows("SELECT count(*), min(id), max(id) FROM t") == [(100, 0, 99)]
    second = append(lake, table, numbers(1000, 1500), compression="snappy")
    # The client is open: its cached statistics must have been given up.
    assert client.rows("SELECT count(*), min(id), max(id) FROM t") == [(600, 0, 1499)]
    assert client.rows("SELECT name FROM t WHERE id = 1234") == [("n1234",)]
    assert [row[0] for row in client.rows("SELECT rowid FROM t ORDER BY id")] == list(range(600))
    assert len(client.at("t", first)) == 100
    assert client.changes("t", second, second, "count(*), min(rowid), max(id), min(change_type)") == [
        (500, 100, 1499, "insert")
    ]
    client.run("UPDATE t SET name = 'new' WHERE id % 100 = 7")
    client.run("DELETE FROM t WHERE id < 50")
    client.run("INSERT INTO t VALUES (9999, 'theirs')")
    append(lake, table, numbers(5000, 5010))
    assert client.rows("SELECT count(*), max(id), count(DISTINCT rowid) FROM t") == [(561, 9999, 561)]
    assert client.value("SELECT count(*) FROM t WHERE name = 'new'") == 5
    for call in ("ducklake_flush_inlined_data", "ducklake_rewrite_data_files", "ducklake_merge_adjacent_files"):
        client.run(f"CALL {call}('lake')")
        assert client.rows("SELECT count(*), max(id), count(DISTINCT rowid) FROM t") == [(561, 9999, 561)]
    assert len(client.at("t", first)) == 100


def test_deletes_replace_each_other_and_history_stays(lake: Writer, duck: Clients) -> None:
    client = duck()
    table = make(lake, "t", NUMBERS)
    start = append(lake, table, numbers(0, 20))
    (file,) = data_files(lake.observer, lake.lake, table, start)
    one = delete(lake, table, file, [3, 5])
    two = delete(lake, table, file, [4, 19])
    with lake.commit() as draft:
        end_data_file(draft, table, file.id)
    three = draft.id
    ids = [sorted(row[0] for row in client.at("t", at)) for at in (start, one, two, three)]
    everything = set(range(20))
    assert ids == [sorted(everything), sorted(everything - {3, 5}), sorted(everything - {3, 4, 5, 19}), []]
    for first, last, gone in (
        (one, one, {3, 5}),
        (two, two, {4, 19}),
        (one, two, {3, 4, 5, 19}),
        (three, three, everything - {3, 4, 5, 19}),
        (one, three, everything),
    ):
        changes = client.changes("t", first, last, "id, change_type, rowid")
        assert sorted(changes) == [(id, "delete", id) for id in sorted(gone)]
    assert client.value("SELECT count(*) FROM t") == 0
    append(lake, table, numbers(50, 60))
    assert client.rows("SELECT count(*), min(id), min(rowid) FROM t") == [(10, 50, 20)]
    client.run("DELETE FROM t WHERE id = 55")
    assert client.rows("SELECT count(*), min(id) FROM t") == [(9, 50)]


def test_an_old_transaction_cannot_overwrite_what_it_does_not_see(lake: Writer, duck: Clients) -> None:
    client = duck()
    table = make(lake, "t", NUMBERS)
    append(lake, table, numbers(0, 10))
    file = write_file(open_store("/"), table.path, Form(table.columns), numbers(10, 20).to_batches())
    with pytest.raises(LakeConflict, match="concurrent update"), lake.conn.transaction():
        lake.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        lake.conn.execute("SELECT 1 FROM ducklake.ducklake_snapshot")
        client.run("INSERT INTO t VALUES (100, 'theirs')")
        with snapshot(lake.conn, lake.observer, lake.lake) as draft:
            add_data_files(draft, table, [file])
    with lake.commit() as draft:
        assert add_data_files(draft, table, [file]) == [11]
    assert client.rows("SELECT count(*), max(id), count(DISTINCT rowid) FROM t") == [(21, 100, 21)]


def test_the_first_rows_of_another_are_not_forgotten(lake: Writer, duck: Clients) -> None:
    client = duck()
    table = make(lake, "t", NUMBERS)
    file = write_file(open_store("/"), table.path, Form(table.columns), numbers(10, 20).to_batches())
    with pytest.raises(LakeConflict, match="first rows"), lake.conn.transaction():
        lake.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        lake.conn.execute("SELECT 1 FROM ducklake.ducklake_snapshot")
        client.run("INSERT INTO t VALUES (100, 'theirs')")
        with snapshot(lake.conn, lake.observer, lake.lake) as draft:
            add_data_files(draft, table, [file])
    assert client.rows("SELECT count(*), max(id) FROM t") == [(1, 100)]


def test_large_results_become_several_files(lake: Writer, duck: Clients) -> None:
    table = make(lake, "t", NUMBERS)
    rows = numbers(0, 400_000)
    store = open_store(table.path)
    form = Form(table.columns, compression="none")
    files = write_files(store, table.path, form, rows.to_batches(1000), target_size=300_000)
    assert len(files) > 2
    with lake.commit() as draft:
        starts = add_data_files(draft, table, files)
    assert starts[1] == files[0].record_count
    assert duck().rows("SELECT count(*), count(DISTINCT id), sum(id) FROM t WHERE rowid = id") == [
        (400_000, 400_000, sum(range(400_000)))
    ]
    assert write_files(store, table.path, form, []) == []


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "none"])
@pytest.mark.parametrize("encrypt", [False, True])
def test_compressions(tmp_path: Any, compression: str, encrypt: bool) -> None:
    from runnel.lake.format.encrypted import connection

    columns = [LakeColumn(1, "id", "int64"), LakeColumn(2, "name", "varchar")]
    folder = f"{tmp_path}/"
    form = Form(columns, compression, encrypt)
    file = write_file(open_store(folder), folder, form, numbers(0, 10).to_batches())
    assert (tmp_path / file.path).stat().st_size == file.size
    if not encrypt:
        metadata = pq.read_metadata(tmp_path / file.path)
        assert metadata.row_group(0).column(0).compression == {"none": "UNCOMPRESSED"}.get(
            compression, compression.upper()
        )
        assert metadata.serialized_size == file.footer_size
        return
    assert (tmp_path / file.path).read_bytes()[:4] == b"PARE"
    with pytest.raises(duckdb.Error):
        connection().execute(f"SELECT * FROM '{tmp_path / file.path}'")
    assert file.encryption_key is not None
    assert file.encryption_key not in repr(file)
    with pytest.raises(UserError, match="lzo"):
        write_file(open_store(folder), folder, Form(columns, "lzo"), [])


def test_names_sort_by_time_and_are_versioned() -> None:
    import re

    names = [file_name() for _ in range(3)] + [file_name("positions")]
    assert all(
        re.fullmatch(
            r"ducklake-[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}(-positions)?.parquet", name
        )
        for name in names
    )
