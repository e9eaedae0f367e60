"""Rows and deletes kept in the catalog itself, beside DuckDB doing the same."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal

import pyarrow as pa
import pytest

from runnel.lake.format.catalog import data_files
from runnel.lake.format.model import LakeTable
from runnel.lake.format.types import arrow_type
from runnel.lake.upkeep.maintain import maintain
from runnel.lake.write.commit import LakeConflict, snapshot
from runnel.lake.write.inline import can_inline, end_inlined_rows, inline_deletes, inline_rows
from runnel.lake.write.measure import statistics
from runnel.lake.write.tables import add_column, column, create_table
from tests.lake.duck import Duck
from tests.lake.writing import Writer, append, new_lake

Clients = Callable[..., Duck]

COLUMNS = [
    column("b", "boolean"), column("i8", "int8"), column("i", "int32"), column("u", "uint64"), column("f", "float64"),
    column("d", "decimal(20,3)"), column("day", "date"), column("t", "time"), column("ts", "timestamp"),
    column("tz", "timestamptz"), column("v", "varchar"), column("j", "json"), column("x", "blob"), column("id", "uuid"),
    column("we\"ird %s", "varchar"),
]  # fmt: skip
ROW = (
    True, -1, 5, 2**64 - 1, 0.25, Decimal("12345678901234567.125"), dt.date(2024, 2, 29), dt.time(1, 2, 3, 4),
    dt.datetime(2020, 1, 1, 1, 1, 1, 500000), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "ü'\\", '{"a": 1}', b"\x00\xff",
    str(uuid.UUID(int=7)), "%s",
)  # fmt: skip
NULLS = (None,) * len(ROW)


@pytest.fixture
def lake(dsn: str, data_path: str) -> Iterator[Writer]:
    with new_lake(dsn, data_path) as opened:
        yield opened


def insert(lake: Writer, table: LakeTable, *rows: tuple[object, ...]) -> tuple[int, int]:
    """Inline rows; returns (snapshot, first row id)."""
    fields = [pa.field(each.name, arrow_type(each)) for each in table.columns]
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), fields, strict=True)]
    batch = pa.table(arrays, schema=pa.schema(fields))
    with lake.commit() as draft:
        start = inline_rows(draft, table, batch, statistics(batch, table.columns))
    return draft.id, start


def test_all_types_are_inlined_flushed_and_compared(lake: Writer, duck: Clients) -> None:
    client = duck()
    with lake.commit() as draft:
        table = create_table(draft, "main", "t", COLUMNS)
    assert can_inline(table)
    insert(lake, table, ROW, NULLS)
    shown = client.rows("SELECT * FROM t ORDER BY i NULLS LAST")
    expected = [(*ROW[:-2], uuid.UUID(int=7), "%s"), NULLS]
    assert shown == expected
    client.run("CREATE TABLE u AS SELECT * FROM t")
    assert client.rows("SELECT * FROM t WHERE ts = TIMESTAMP '2020-01-01 01:01:01.5' AND v > 'a'") == expected[:1]
    assert client.rows("SELECT min(ts), max(d), count(v), count(*) FROM t") == [(ROW[8], ROW[5], 1, 2)]
    insert(lake, table, NULLS)
    report = maintain(lake.conn, lake.observer, lake.lake)
    assert (report.flushed_rows, report.skipped) == (5, {})
    assert client.rows("SELECT * FROM t ORDER BY i NULLS LAST") == [*expected, NULLS]
    client.run("CALL ducklake_flush_inlined_data('lake')")
    assert client.rows("SELECT * FROM u ORDER BY i NULLS LAST") == expected


def test_rows_come_go_and_are_found_in_history(lake: Writer, duck: Clients) -> None:
    client = duck()
    with lake.commit() as draft:
        table = create_table(draft, "main", "t", [column("a", "int32"), column("b", "varchar")])
    one, start = insert(lake, table, (1, "x"), (2, "y"), (3, "z"))
    client.run("INSERT INTO t VALUES (4, 'theirs')")
    two, later = insert(lake, table, (5, "v"))
    assert (start, later) == (0, 4)
    with lake.commit() as draft:
        end_inlined_rows(draft, table, [start + 1, later])
    three = draft.id
    assert client.rows("SELECT a FROM t ORDER BY a") == [(1,), (3,), (4,)]
    assert sorted(client.at("t", two, "a")) == [(1,), (2,), (3,), (4,), (5,)]
    assert sorted(client.changes("t", three, three, "a, change_type, rowid")) == [(2, "delete", 1), (5, "delete", 4)]
    with pytest.raises(LakeConflict, match="1 inlined rows"), lake.commit() as draft:
        end_inlined_rows(draft, table, [start, start + 1])
    with lake.commit() as draft:
        table = add_column(draft, table, column("c", "float64"))
    insert(lake, table, (6, "w", 0.5))
    client.run("INSERT INTO t VALUES (7, 'they', 1.5)").run("DELETE FROM t WHERE a = 1")
    assert client.rows("SELECT a, c FROM t ORDER BY a") == [(3, None), (4, None), (6, 0.5), (7, 1.5)]
    client.run("CALL ducklake_flush_inlined_data('lake')")
    assert client.rows("SELECT a, c FROM t ORDER BY a") == [(3, None), (4, None), (6, 0.5), (7, 1.5)]
    assert sorted(client.at("t", one, "a")) == [(1,), (2,), (3,)]
    insert(lake, table, (8, "v", 2.5))
    assert client.rows("SELECT count(*), max(a) FROM t") == [(5, 8)]


def test_positions_of_files_are_deleted_inline(lake: Writer, duck: Clients) -> None:
    client = duck()
    with lake.commit() as draft:
        table = create_table(draft, "main", "t", [column("a", "int64")])
    one = append(lake, table, pa.table({"a": list(range(100))}))
    (file,) = data_files(lake.observer, lake.lake, table, one)
    with lake.commit() as draft:
        inline_deletes(draft, table, {file.id: [3, 97]})
    two = draft.id
    assert client.rows("SELECT count(*), count(a) FROM t") == [(98, 98)]
    assert sorted(client.changes("t", two, two, "a, change_type")) == [(3, "delete"), (97, "delete")]
    client.run("DELETE FROM t WHERE a BETWEEN 10 AND 40").run("DELETE FROM t WHERE a = 50")
    assert client.rows("SELECT count(*), count(a) FROM t WHERE a >= 0") == [(66, 66)]
    client.run("CALL ducklake_flush_inlined_data('lake')").run("CALL ducklake_rewrite_data_files('lake')")
    assert client.rows("SELECT count(*), count(a), min(rowid), max(rowid) FROM t") == [(66, 66, 0, 99)]
    assert len(client.at("t", two)) == 98


def test_an_old_transaction_meets_rows_that_others_deleted(lake: Writer, duck: Clients) -> None:
    client = duck()
    with lake.commit() as draft:
        table = create_table(draft, "main", "t", [column("a", "int32")])
    _, start = insert(lake, table, (1,), (2,))
    with pytest.raises(LakeConflict, match="concurrent update"), lake.conn.transaction():
        lake.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        lake.conn.execute("SELECT 1 FROM ducklake.ducklake_snapshot")
        client.run("DELETE FROM t WHERE a = 1")
        with snapshot(lake.conn, lake.observer, lake.lake) as draft:
            end_inlined_rows(draft, table, [start])
    assert client.rows("SELECT a FROM t") == [(2,)]
