"""Objects of a lake and the commit protocol, with DuckDB on the other side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from runnel.errors import EngineBug, TransientError, UserError
from runnel.lake.write.commit import LakeConflict, begin_snapshot, finish, require_untouched, snapshot
from runnel.lake.write.create import create_lake
from runnel.lake.write.tables import (
    add_column,
    column,
    create_table,
    drop_column,
    drop_table,
    find_table,
    rename_column,
    widen_column,
)
from runnel.lake.write.views import create_view, drop_view, set_tags
from tests.lake.duck import Duck
from tests.lake.writing import Writer, new_lake, writer

Clients = Callable[..., Duck]


@pytest.fixture
def lake(dsn: str, data_path: str) -> Iterator[Writer]:
    with new_lake(dsn, data_path) as opened:
        yield opened


def test_duckdb_attaches_a_new_lake_and_works_in_it(lake: Writer, duck: Clients) -> None:
    client = duck()
    client.run("CREATE TABLE t AS SELECT range AS i FROM range(100)").run("DELETE FROM t WHERE i < 40")
    client.run("CREATE SCHEMA s").run("CREATE TABLE s.u (a int)").run("INSERT INTO s.u VALUES (1)")
    assert client.rows("SELECT count(*), min(i) FROM t") == [(60, 40)]
    assert client.rows("SELECT * FROM s.u") == [(1,)]


def test_a_schema_holds_one_lake(lake: Writer, dsn: str) -> None:
    with psycopg.connect(dsn) as conn, pytest.raises(UserError, match="already holds a lake"):
        create_lake(conn, "ducklake", "/elsewhere")


def test_tables_and_views_appear_in_an_open_client(lake: Writer, duck: Clients) -> None:
    client = duck()
    client.rows("SHOW TABLES")
    with lake.commit("made by hand") as draft:
        table = create_table(
            draft,
            "other",
            "we ird",
            [
                column("a", "int32", nulls_allowed=False),
                column("s", "struct", column("x", "int64"), column("y", "list", column("element", "varchar"))),
                column("d", "decimal(10,2)"),
            ],
        )
        create_view(
            draft, "main", "v", 'SELECT a, d FROM {DUCKLAKE_CATALOG}.other."we ird"', {"comment": "small", "k": "v"}
        )
    assert table.path.startswith(f"{lake.lake.data_path}other/")
    assert [child.id for child in table.columns[1].children] == [3, 4]
    client.run("""INSERT INTO other."we ird" VALUES (1, {'x': 5, 'y': ['p', NULL]}, 2.5)""")
    assert client.rows("SELECT a, d FROM v") == client.rows("""SELECT a, d FROM other."we ird" WHERE s.x = 5""")
    assert client.value("SELECT comment FROM duckdb_views() WHERE view_name = 'v'") == "small"
    assert client.value("SELECT max(commit_message) FROM ducklake_snapshots('lake')") == "made by hand"


def test_views_are_replaced_tagged_and_dropped(lake: Writer, duck: Clients) -> None:
    client = duck()
    with lake.commit() as draft:
        first = create_view(draft, "main", "v", "SELECT 1 AS x")
    assert client.rows("SELECT x FROM v") == [(1,)]
    with lake.commit() as draft:
        second = create_view(draft, "main", "v", "SELECT 2 AS x", {"comment": "two"}, replace=True)
    assert second != first
    assert client.rows("SELECT x FROM v") == [(2,)]
    with lake.commit() as draft:
        set_tags(draft, second, {"comment": "still two", "source": "here"})
    assert client.value("SELECT comment FROM duckdb_views() WHERE view_name = 'v'") == "still two"
    client.run("COMMENT ON VIEW v IS 'theirs'")
    with pytest.raises(UserError, match="already has a view main"), lake.commit() as draft:
        create_view(draft, "main", "V", "SELECT 3 AS x")
    with lake.commit() as draft:
        assert drop_view(draft, "main", "v")
        assert not drop_view(draft, "main", "v")
    assert client.rows("SHOW TABLES") == []


def test_columns_are_added_dropped_renamed_and_widened(lake: Writer, duck: Clients) -> None:
    client = duck()
    with lake.commit() as draft:
        create_table(draft, "main", "t", [column("a", "int32"), column("b", "varchar"), column("c", "int16")])
    # Two rows are inlined by DuckDB, thirty are in Parquet: both must survive every change.
    client.run("INSERT INTO t VALUES (1, 'one', 1), (2, NULL, 2)")
    client.run("INSERT INTO t SELECT range, 'r' || range, range FROM range(10, 40)")
    with lake.commit() as draft:
        table = find_table(draft, "main", "t")
        assert table is not None
        table = rename_column(draft, table, "a", "id")
        table = widen_column(draft, table, "c", "int64")
        table = add_column(draft, table, column("e", "float64"))
        table = drop_column(draft, table, "b")
    assert [(each.id, each.name, each.type) for each in table.columns] == [
        (1, "id", "int32"),
        (3, "c", "int64"),
        (4, "e", "float64"),
    ]
    assert client.rows("DESCRIBE t")[0][0] == "id"
    assert client.rows("SELECT * FROM t WHERE id < 11 ORDER BY id") == [(1, 1, None), (2, 2, None), (10, 10, None)]
    client.run("INSERT INTO t VALUES (3, 10000000000, 0.5)")
    client.run("INSERT INTO t SELECT range, range, 1.5 FROM range(100, 120)")
    assert client.rows("SELECT count(*), max(c), count(e) FROM t") == [(53, 10000000000, 21)]
    client.run("CALL ducklake_flush_inlined_data('lake')")
    assert client.rows("SELECT count(*), max(c), count(e) FROM t") == [(53, 10000000000, 21)]
    with lake.commit() as draft:
        found = find_table(draft, "main", "t")
        assert found == table
        drop_table(draft, table)
        create_table(draft, "main", "t", [column("z", "varchar")])
    assert client.rows("SELECT * FROM t") == []
    before = client.head() - 1
    assert client.rows(f"SELECT count(*) FROM t AT (VERSION => {before})") == [(53,)]


def test_names_that_duckdb_cannot_hold_are_refused(lake: Writer) -> None:
    for names in (("Row_Id",), ("_ducklake_internal_x",), ("a", "A")):
        with pytest.raises(UserError, match="lake table cannot have"), lake.commit() as draft:
            create_table(draft, "main", "t", [column(name, "int32") for name in names])


def test_a_failed_transaction_leaves_nothing(lake: Writer, duck: Clients) -> None:
    with pytest.raises(RuntimeError), lake.commit() as draft:
        create_table(draft, "main", "t", [column("a", "int32")])
        raise RuntimeError
    assert duck().snapshots() == [0]


def test_several_snapshots_in_one_old_transaction(lake: Writer, duck: Clients) -> None:
    """A transaction that began before others committed takes numbers after theirs."""
    client = duck()
    with lake.conn.transaction():
        lake.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        lake.conn.execute("SELECT 1 FROM ducklake.ducklake_snapshot")
        client.run("CREATE TABLE theirs (a int)").run("INSERT INTO theirs VALUES (1)")
        for name in ("one", "two"):
            with snapshot(lake.conn, lake.observer, lake.lake, author="us", extra=name) as draft:
                create_table(draft, "main", name, [column("a", "int32")])
                with pytest.raises(UserError, match="already has a table"):
                    create_table(draft, "main", "theirs", [column("a", "int32")])
    assert client.snapshots() == [0, 1, 2, 3, 4]
    assert client.rows("SHOW TABLES") == [("one",), ("theirs",), ("two",)]
    told = "SELECT author, commit_extra_info FROM ducklake_snapshots('lake') WHERE snapshot_id > 2 ORDER BY snapshot_id"
    assert client.rows(told) == [("us", "one"), ("us", "two")]


def test_others_wait_for_the_number_and_go_on(lake: Writer, dsn: str) -> None:
    with writer(dsn, lake.lake) as second:
        with lake.conn.transaction():
            draft = begin_snapshot(lake.conn, lake.observer, lake.lake)
            with second.conn.transaction():
                with pytest.raises(TransientError, match="kept the catalog busy"):
                    begin_snapshot(second.conn, second.observer, lake.lake, patience=0.2)
                # The transaction is still good, and so are its settings.
                assert second.conn.execute("SHOW lock_timeout").fetchone() == ("0",)
            finish(draft)
        with second.commit() as draft:
            assert draft.id == 2
    with pytest.raises(EngineBug, match="inside a transaction"):
        begin_snapshot(lake.conn, lake.observer, lake.lake)


def test_changes_of_others_are_noticed(lake: Writer, duck: Clients) -> None:
    client = duck()
    client.run("CREATE TABLE t (a int)").run("CREATE TABLE u (a int)")
    base = client.head()
    client.run("INSERT INTO u VALUES (1)")
    with lake.commit() as draft:
        table = find_table(draft, "main", "t")
        assert table is not None
        require_untouched(draft, table.id, base)
    client.run("INSERT INTO t VALUES (1)")
    with pytest.raises(LakeConflict, match="another writer's snapshot 5 changed table 1"), lake.commit() as draft:
        require_untouched(draft, table.id, base)
    with pytest.raises(LakeConflict, match="expired"), lake.commit() as draft:
        require_untouched(draft, table.id, 1000)
    with pytest.raises(LakeConflict, match="changed by another writer"), lake.conn.transaction():
        lake.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        lake.conn.execute("SELECT 1 FROM ducklake.ducklake_snapshot")
        client.run("DROP TABLE t").run("CREATE TABLE t (b int)")
        with snapshot(lake.conn, lake.observer, lake.lake) as draft:
            newer = find_table(draft, "main", "t")
            assert newer is not None
            assert newer.id != table.id
            drop_table(draft, newer)
