"""What a reader must get right of a lake table, one thing at a time. DuckDB says what is right."""

from __future__ import annotations

import datetime as dt
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runnel.errors import TransientError, UserError
from runnel.lake.format.catalog import check_snapshot, find_table, head, oldest, open_lake, snapshot_at, tables
from runnel.lake.format.model import Lake
from runnel.lake.format.types import lake_type, stat_text, stat_value
from runnel.lake.read.scan import Scan, Tally, plan_scan, read_all, scan_file
from runnel.model.types import PgType
from runnel.ports.sink import Conflict
from tests.lake.duck import Duck
from tests.lake.rows import comparable, from_arrow
from tests.lake.s3 import S3

COLUMNS = """b boolean, i1 tinyint, i2 smallint, i4 int, i8 bigint, i16 hugeint, u1 utinyint, u2 usmallint,
u4 uinteger, u8 ubigint, u16 uhugeint, f4 float, f8 double, de decimal(10,2), small decimal(4,1), big decimal(38,10),
da date, ti time, ts timestamp, tss timestamp_s, tsm timestamp_ms, tstz timestamptz, v varchar, j json, bl blob, u uuid,
st struct(a int, "b c" varchar), l int[], m map(varchar, int), deep struct(x int, y decimal(5,2)[])[], "do.t" int"""
VALUES = """true, 1, 2, 3, 4, 5, 6, 7, 8, 18446744073709551615, 10, 1.5, 2.5, 3.14, 9.9, 1234567890.0123456789,
'2024-02-29', '01:02:03.5', '2020-01-01 01:02:03.123456', '2020-01-01 01:02:03', '2020-01-01 01:02:03.123',
'2020-01-01 01:02:03.5+02', 'it''s', '{"a": 1}', '\\xAA\\x00b', '12345678-1234-5678-1234-567812345678',
{'a': 1, 'b c': 'x {y}, "q"'}, [1, null, 3], map {'k': 1, 'k2': null}, [{'x': 1, 'y': [1.25, null]}], 7"""


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


def plan(conn: psycopg.Connection[Any], lake: Lake, name: str = "t", at: int | None = None, **how: Any) -> Scan:
    at = head(conn, lake) if at is None else at
    table = find_table(conn, lake, "main", name, at)
    assert table is not None
    return plan_scan(conn, lake, table, at, **how)


def bag(table: pa.Table) -> Counter[Any]:
    return Counter(from_arrow(table))


def test_every_type_in_files_inlined_and_encrypted(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], tmp_path: Path
) -> None:
    for schema, encrypted in (("plain", False), ("secret", True)):
        client = duck(f"{tmp_path}/{schema}/", schema=schema, encrypted=encrypted, alias=schema)
        client.run(f"CREATE TABLE t({COLUMNS})").run(f"INSERT INTO t VALUES ({VALUES})")
        client.run("INSERT INTO t DEFAULT VALUES").run(f"INSERT INTO t SELECT {VALUES} FROM range(12)")
        client.run("INSERT INTO t SELECT * FROM t WHERE false")
        lake = open_lake(conn, "lake", schema)
        found = read_all(plan(conn, lake))
        assert found.num_rows == 14
        assert bag(found) == Counter(comparable(row) for row in client.rows("SELECT * FROM t"))


def test_intervals_and_times_with_zones_are_text_that_both_servers_read(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(iv interval, tz timetz)")
    row = "INTERVAL '14 months 3 days 04:05:06.5', TIMETZ '01:02:03+02'"
    client.run(f"INSERT INTO t VALUES ({row})").run(f"INSERT INTO t SELECT {row} FROM range(11)")
    found = set(from_arrow(read_all(plan(conn, open_lake(conn, "lake", "ducklake")))))
    assert found == {("14 months 3 days 04:05:06.5", "23:02:03+00")}
    ((interval, zoned),) = found
    assert client.value("SELECT ?::interval = (SELECT iv FROM t LIMIT 1)", [interval])
    assert conn.execute("SELECT %s::interval = '1 year 2 mons 3 days 04:05:06.5'", [interval]).fetchone() == (True,)
    assert client.value("SELECT ?::timetz = (SELECT tz FROM t LIMIT 1)", [zoned])


def test_columns_come_by_id_through_renames_drops_defaults_and_nested_changes(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], tmp_path: Path
) -> None:
    for schema, encrypted in (("plain", False), ("secret", True)):
        client = duck(f"{tmp_path}/{schema}/", schema=schema, encrypted=encrypted, alias=schema)
        client.run("CREATE TABLE t(a int, b varchar, s struct(x int, y varchar), ls struct(p int)[])")
        row = "i, 'b' || i, {'x': i, 'y': 'y' || i}, [{'p': i}]"
        client.run(f"INSERT INTO t SELECT {row} FROM range(3) r(i)")
        client.run(f"INSERT INTO t SELECT {row} FROM range(20) r(i)")
        client.run("ALTER TABLE t RENAME b TO c").run("ALTER TABLE t ADD COLUMN b int DEFAULT 42")
        client.run("ALTER TABLE t ALTER a TYPE bigint").run("ALTER TABLE t ADD COLUMN s.z int")
        client.run("ALTER TABLE t RENAME COLUMN s.x TO xx").run("ALTER TABLE t DROP COLUMN s.y")
        client.run("INSERT INTO t VALUES (100, 'c', {'xx': 1, 'z': 2}, [{'p': 1}], 7)")
        lake = open_lake(conn, "lake", schema)
        assert bag(read_all(plan(conn, lake))) == Counter(comparable(row) for row in client.rows("SELECT * FROM t"))
        chosen = read_all(plan(conn, lake, columns=["b", "s"]))
        assert chosen.column_names == ["b", "s"]
        assert bag(chosen) == Counter(comparable(row) for row in client.rows("SELECT b, s FROM t"))


def test_time_travel_by_snapshot_and_by_moment(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(a int)").run("INSERT INTO t SELECT * FROM range(20)")
    lake = open_lake(conn, "lake", "ducklake")
    before = head(conn, lake)
    client.run("DELETE FROM t WHERE a < 15").run("ALTER TABLE t RENAME a TO b")
    assert read_all(plan(conn, lake, at=before)).num_rows == 20
    assert read_all(plan(conn, lake)).to_pydict() == {"b": [15, 16, 17, 18, 19]}
    moment = conn.execute(
        "SELECT snapshot_time FROM ducklake.ducklake_snapshot WHERE snapshot_id = %s", [before]
    ).fetchone()
    assert moment is not None and snapshot_at(conn, lake, moment[0]) == before
    assert snapshot_at(conn, lake, dt.datetime(2999, 1, 1, tzinfo=dt.UTC)) == head(conn, lake)
    with pytest.raises(UserError, match="no snapshot at 1999"):
        snapshot_at(conn, lake, "1999-01-01")
    client.run(f"CALL ducklake_expire_snapshots('lake', versions => [{before}])")
    with pytest.raises(UserError, match=f"Snapshot {before} of lake lake does not exist"):
        check_snapshot(conn, lake, before)
    assert oldest(conn, lake) == 0
    assert [table.name for table in tables(conn, lake, head(conn, lake))] == ["t"]


def test_statistics_keep_files_and_row_groups_closed(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(id bigint, name varchar, at_date date, amount decimal(10,2), f double)")
    for part in range(5):
        client.run(
            f"INSERT INTO t SELECT i, 'n' || (i // 1000), DATE '2020-01-01' + (i // 1000)::int, i / 100, "
            f"CASE WHEN i % 7 = 0 THEN 'nan'::double ELSE i END FROM range({part * 1000}, {part * 1000 + 1000}) r(i)"
        )
    client.run("INSERT INTO t VALUES (7, NULL, NULL, NULL, NULL)")
    lake = open_lake(conn, "lake", "ducklake")
    for how, files, where in (
        ({"keys": {"id": [7, 4500, 10**12]}}, 2, "id IN (7, 4500)"),
        ({"keys": {"name": ["n3", "zzz"]}}, 1, "name = 'n3'"),
        ({"keys": {"name": ["n3", None]}}, 1, "name = 'n3' OR name IS NULL"),
        ({"bounds": {"at_date": (dt.date(2020, 1, 4), None)}}, 2, "at_date >= '2020-01-04'"),
        ({"bounds": {"at_date": ("2020-01-04", None)}}, 2, "at_date >= '2020-01-04'"),
        ({"bounds": {"amount": (Decimal("10.01"), Decimal(20))}}, 2, "amount BETWEEN 10.01 AND 20"),
        ({"keys": {"id": []}}, 0, "false"),
    ):
        scan = plan(conn, lake, **how)
        assert (len(scan.files), scan.pruned) == (files, 5 - files), how
        # The key of the few rows in the catalog is not in statistics, but is read with the rest.
        assert bag(read_all(scan)) == Counter(comparable(r) for r in client.rows(f"SELECT * FROM t WHERE {where}")), how
    # NaN and -0 compare differently in Arrow: such conditions are left to the caller.
    assert len(plan(conn, lake, bounds={"f": (10**9, None)}).files) == 5
    with pytest.raises(UserError, match="no column nope"):
        plan(conn, lake, keys={"nope": [1]})
    with pytest.raises(UserError, match="no column nope"):
        plan(conn, lake, columns=["nope"])
    assert read_all(plan(conn, lake, columns=[])).num_rows == 5001
    narrow, wide = Tally(), Tally()
    read_all(plan(conn, lake, columns=["id"]), narrow)
    read_all(plan(conn, lake), wide)
    assert narrow.files == wide.files == 5 and narrow.bytes < wide.bytes


@pytest.mark.parametrize(
    ("type_name", "value", "key"),
    [
        ("ubigint", "9223372036854775808 + i", 2**63 + 7),
        ("uuid", "('00000000-0000-0000-0000-' || lpad(to_hex(i + 160), 12, '0'))::uuid", "A7".rjust(12, "0")),
        ("boolean", "i < 20", True),
        (
            "timestamptz",
            "TIMESTAMPTZ '2020-01-01 00:00:00+00' + INTERVAL (i) DAY",
            dt.datetime(2020, 1, 8, tzinfo=dt.UTC),
        ),
        ("decimal(20,3)", "i + 0.125", Decimal("7.125")),
        ("blob", "encode('b' || lpad(i::varchar, 3, '0'))", b"b007"),
        ("time", "TIME '00:00:00' + INTERVAL (i) MINUTE", dt.time(0, 7)),
        ("json", "('{\"a\": ' || i || '}')::json", '{"a": 7}'),
        ("double", "i / 4.0", 1.75),
        ("hugeint", "i", 7),
    ],
)
def test_keys_of_every_type_find_their_rows(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str, type_name: str, value: str, key: Any
) -> None:
    key = f"00000000-0000-0000-0000-{key}" if type_name == "uuid" else key
    client = duck(data_path)
    client.run(f"CREATE TABLE t(id int, k {type_name})")
    client.run(f"INSERT INTO t SELECT i, ({value})::{type_name} FROM range(20) r(i)")
    client.run(f"INSERT INTO t SELECT i, ({value})::{type_name} FROM range(40, 60) r(i)")
    scan = plan(conn, open_lake(conn, "lake", "ducklake"), keys={"k": [key]})
    found = [row["id"] for row in read_all(scan).to_pylist()]
    assert 7 in found
    # Statistics rule out the second file wherever the type has any.
    assert len(scan.files) == (2 if type_name == "hugeint" else 1), scan.files
    assert len(found) == 1 or type_name in ("boolean", "double", "hugeint")


def test_row_groups_are_skipped_by_their_own_statistics(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(id bigint, name varchar)")
    client.run("INSERT INTO t SELECT i, 'name ' || i FROM range(400000) r(i) ORDER BY i")
    lake = open_lake(conn, "lake", "ducklake")
    some, every = Tally(), Tally()
    assert read_all(plan(conn, lake, keys={"id": [5]}), some).to_pydict() == {"id": [5], "name": ["name 5"]}
    assert read_all(plan(conn, lake), every).num_rows == 400000
    assert some.bytes * 2 < every.bytes
    # Where statistics do not help, the key's own column does.
    client.run("CREATE TABLE u(k bigint, name varchar)")
    client.run("INSERT INTO u SELECT i * 7919 % 400009, md5(i::varchar) FROM range(400000) r(i)")
    some, every = Tally(), Tally()
    found = read_all(plan(conn, lake, "u", keys={"k": [7919 * 3]}), some)
    assert found["name"].to_pylist() == [client.value("SELECT md5('3')")]
    assert read_all(plan(conn, lake, "u"), every).num_rows == 400000
    assert some.files == 1 and some.bytes < every.bytes * 0.7
    assert read_all(plan(conn, lake, "u", keys={"k": [400005 * 7919 % 400009, -1]})).num_rows == 0


def test_files_that_were_added_as_they_were(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str, tmp_path: Path
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(p varchar, q int, v int, st struct(a int, b int), w int DEFAULT 5)")
    client.run(
        "COPY (SELECT 'x y/' || (i % 2) AS p, (i % 2)::int AS q, i::int AS V, {'b': i::int, 'a': -i::int} AS st "
        f"FROM range(30) r(i)) TO '{tmp_path}/hive' (FORMAT parquet, PARTITION_BY (p, q))"
    )
    client.run(
        f"CALL ducklake_add_data_files('lake', 't', '{tmp_path}/hive/**/*.parquet', "
        "hive_partitioning => true, allow_missing => true)"
    )
    client.run("ALTER TABLE t RENAME v TO vv").run("DELETE FROM t WHERE vv = 3")
    lake = open_lake(conn, "lake", "ducklake")
    assert bag(read_all(plan(conn, lake))) == Counter(comparable(row) for row in client.rows("SELECT * FROM t"))
    assert len(plan(conn, lake, keys={"q": [1]}).files) <= 2


def test_a_file_without_field_ids_goes_by_names(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str
) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(a int, s struct(x int, y int))").run(
        "INSERT INTO t SELECT i, {'x': i, 'y': i} FROM range(20) r(i)"
    )
    lake = open_lake(conn, "lake", "ducklake")
    (spec,) = plan(conn, lake).files
    bare = pa.table({"s": [{"y": 2, "x": 1}], "A": pa.array([7], pa.int32())})
    pq.write_table(bare, spec.file.path, store_schema=False)
    assert [batch.to_pylist() for batch in scan_file(spec)] == [[{"a": 7, "s": {"x": 1, "y": 2}}]]


@pytest.mark.parametrize("encrypted", [False, True])
def test_object_stores_are_read_by_range(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], s3: S3, bucket: str, encrypted: bool
) -> None:
    client = duck(f"{bucket}lake/", s3=s3, encrypted=encrypted)
    client.run("CREATE TABLE t(id bigint, pad varchar)")
    client.run("INSERT INTO t SELECT i, repeat(md5(i::varchar), 4) FROM range(60000) r(i)")
    client.run("DELETE FROM t WHERE id BETWEEN 100 AND 200")
    lake = open_lake(conn, "lake", "ducklake", options=s3.options)
    tally = Tally()
    scan = plan(conn, lake, columns=["id"])
    # A spec travels to tasks, and shows no secret on its way.
    (spec,) = pickle.loads(pickle.dumps(scan.files))  # noqa: S301
    assert s3.options["secret_access_key"] not in repr(spec)
    rows = [row["id"] for batch in scan_file(spec, tally) for row in batch.to_pylist()]
    assert rows == [*range(100), *range(201, 60000)]
    assert tally.files == 2
    assert (tally.bytes < spec.file.size / 2) or encrypted


def test_many_remote_files_come_in_order_and_are_counted(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], s3: S3, bucket: str
) -> None:
    client = duck(f"{bucket}lake/", s3=s3)
    client.run("CREATE TABLE t(id bigint)")
    for part in range(11):
        client.run(f"INSERT INTO t SELECT * FROM range({part * 20}, {part * 20 + 20})")
    tally = Tally()
    scan = plan(conn, open_lake(conn, "lake", "ducklake", options=s3.options))
    assert read_all(scan, tally)["id"].to_pylist() == list(range(220))
    assert tally == Tally(11, sum(spec.file.size for spec in scan.files))


def test_a_file_that_is_gone_says_so(duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str) -> None:
    client = duck(data_path)
    client.run("CREATE TABLE t(a int)").run("INSERT INTO t SELECT * FROM range(20)")
    (spec,) = plan(conn, open_lake(conn, "lake", "ducklake")).files
    Path(spec.file.path).unlink()
    with pytest.raises(TransientError, match="there is no such file"):
        list(scan_file(spec))


def test_what_is_no_lake_is_refused(dsn: str, conn: psycopg.Connection[Any]) -> None:
    with pytest.raises(UserError, match="no DuckLake catalog in schema public"):
        open_lake(conn, "lake", "public")
    conn.execute(
        "CREATE SCHEMA old; CREATE TABLE old.ducklake_metadata(key text, value text, scope text, scope_id int8)"
    )
    conn.execute("INSERT INTO old.ducklake_metadata VALUES ('version', '0.3')")
    with pytest.raises(UserError, match="catalog version 0.3") as caught:
        open_lake(conn, "lake", "old")
    assert "AUTOMATIC_MIGRATION" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("oid", "typmod", "sql", "expected"),
    [
        (23, -1, "integer", "int32"),
        (1700, ((10 << 16) | 2) + 4, "numeric(10,2)", "decimal(10,2)"),
        (1700, ((50 << 16) | 2) + 4, "numeric(50,2)", "varchar"),
        (1700, -1, "numeric", "decimal(38,20)"),
        (1007, -1, "integer[]", "json"),
        (3802, -1, "jsonb", "json"),
        (1186, -1, "interval", "varchar"),
        (1184, -1, "timestamp with time zone", "timestamptz"),
    ],
)
def test_postgresql_types_have_a_lake_type(oid: int, typmod: int, sql: str, expected: str) -> None:
    assert lake_type(PgType(oid, typmod, sql)) == expected


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        (7, "int32"),
        (Decimal("1.50"), "decimal(10,2)"),
        (dt.date(2024, 2, 29), "date"),
        (dt.datetime(2024, 2, 29, 1, 2, 3, 400), "timestamp"),
        (dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=dt.UTC), "timestamptz"),
        (dt.time(1, 2, 3, 500000), "time"),
        (True, "boolean"),
        (-1.5e300, "float64"),
        ("it's", "varchar"),
        (b"\x00\xaa", "blob"),
    ],
)
def test_statistics_text_reads_back(value: Any, type_name: str) -> None:
    assert stat_value(stat_text(value, type_name), type_name) == value


def test_long_text_is_cut_to_something_beyond() -> None:
    long = "x" * 300
    low, high = stat_text(long, "varchar"), stat_text(long, "varchar", upper=True)
    assert low is not None and high is not None and low < long < high and len(high) == 256
    assert stat_text("a\0b", "varchar", upper=True) == "b"


def test_rows_that_leave_the_catalog_meanwhile_are_a_conflict(
    dsn: str, duck: Callable[..., Duck], data_path: str
) -> None:
    """A snapshot keeps rows, but no table that is dropped: whoever reads must begin anew."""
    client = (
        duck(data_path).run("CALL lake.set_option('data_inlining_row_limit', 10)").run("CREATE TABLE t (i INTEGER)")
    )
    client.run("INSERT INTO t VALUES (1), (2)").run("ALTER TABLE t ADD COLUMN j INTEGER")
    with psycopg.connect(dsn) as conn:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        lake = open_lake(conn, "lake", "ducklake")
        at = head(conn, lake)
        table = find_table(conn, lake, "main", "t", at)
        assert table is not None
        client.run("CALL ducklake_flush_inlined_data('lake')")
        with pytest.raises(Conflict, match="written to files meanwhile"):
            plan_scan(conn, lake, table, at)
    with psycopg.connect(dsn) as conn:
        assert read_all(plan_scan(conn, lake, table, head(conn, lake), ["i"])).column("i").to_pylist() == [1, 2]
