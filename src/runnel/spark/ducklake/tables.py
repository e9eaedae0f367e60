"""Lake tables as DataFrames, at any version, and their change feed; for Spark users with or without an engine.

Spark scans plain files itself where it can open them: columns by field id, deleted rows removed by an anti join on the
position. Everything else (encrypted files, stores that Spark has no connector for, columns whose type changed, types
that Spark lacks) is read in tasks through `runnel.lake`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn
from pyspark.sql import types as st

from runnel.errors import UserError
from runnel.lake.format.catalog import (
    ColumnHistory,
    check_snapshot,
    column_history,
    find_table,
    head,
    open_lake,
    snapshot_at,
    tables,
)
from runnel.lake.format.model import Lake, LakeColumn, LakeTable
from runnel.lake.read.changes import ChangeSet, plan_changes, read_changes
from runnel.lake.read.input import Tally, local_path
from runnel.lake.read.reader import FileScan, deletions
from runnel.lake.read.scan import Scan, plan_scan
from runnel.spark.ducklake.task import file_reader, for_spark
from runnel.spark.ducklake.types import id_name, is_native, spark_field, spark_type, travel_type
from runnel.spark.ducklake.where import columns_in, hints
from runnel.spark.meter import Meter
from runnel.spark.session import SMALL_ROWS

_TASK_BYTES = 64 << 20
"""About so much of a table is one task's work."""


def read_ducklake(
    spark: SparkSession,
    lake: Lake | str,
    table: str,
    snapshot: int | None = None,
    timestamp: dt.datetime | str | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    *,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    native: bool = True,
) -> DataFrame:
    """A lake table as it was at a snapshot or a moment; as it is now, without either.

    `lake` is a Lake, or where its catalog is: 'ducklake:postgres:dbname=...' or a connection string; `schema` is the
    catalog's schema there and found if there is only one. `columns` and `where` (Spark SQL) say what is read at all:
    files whose statistics rule them out are not opened. `options` are settings of the object store. With
    `native=False` all files are read in Python tasks.
    """
    with _catalog(lake, schema, options) as (conn, opened):
        at = _version(conn, opened, snapshot, timestamp)
        found = _table(conn, opened, table, at)
        chosen = [column.name for column in found.columns] if columns is None else list(columns)
        keys, bounds = hints(where, found.columns) if where else ({}, {})
        needed = list(dict.fromkeys([*chosen, *(columns_in(where, found.columns) if where else ())]))
        # Rows without columns are counted by some column.
        needed = needed or [found.columns[0].name]
        scan = plan_scan(conn, opened, found, at, needed, keys, bounds)
        history = column_history(conn, opened, found.id)
    frame = scan_frame(spark, scan, history, native=native)
    if where:
        frame = frame.where(where)
    return frame if needed == chosen else frame.select(*(_named(name) for name in chosen))


def read_ducklake_changes(
    spark: SparkSession,
    lake: Lake | str,
    table: str,
    from_snapshot: int,
    to_snapshot: int,
    columns: Sequence[str] | None = None,
    *,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """What changed in a lake table between two snapshots, both included, with its columns as of the second.

    Columns: snapshot_id, rowid, change_type (insert, delete, update_preimage, update_postimage), then the table's.
    Unlike DuckDB's own feed it shows neither what compaction moved nor what one transaction made and removed again.
    """
    with _catalog(lake, schema, options) as (conn, opened):
        check_snapshot(conn, opened, from_snapshot)
        check_snapshot(conn, opened, to_snapshot)
        found = _table(conn, opened, table, to_snapshot)
        changes = plan_changes(conn, opened, found.id, from_snapshot - 1, to_snapshot, columns, net=False)
    return _changes_frame(spark, changes)


# --- a table at a version


def scan_frame(
    spark: SparkSession, scan: Scan, history: ColumnHistory, *, native: bool = True, meter: Meter | None = None
) -> DataFrame:
    """The rows of a scan that was planned elsewhere, in the lake's own column names; `meter` counts them."""
    meter = meter or Meter()
    chosen = st.StructType([spark_field(column) for column in scan.columns])
    readable = native and bool(scan.columns) and all(is_native(column) for column in scan.columns)
    scanned = [spec for spec in scan.files if readable and _is_scannable(spark, spec, history)]
    theirs = {id(spec) for spec in scanned}
    rest = [spec for spec in scan.files if id(spec) not in theirs]
    # The first part belongs to the caller's session, so the result does, too.
    frame = local_frame(spark, scan.inlined, scan.columns, chosen)
    if rest:
        frame = frame.union(task_frame(spark, rest, scan.columns, chosen, meter))
    meter.driver(scan.inlined.num_rows)
    meter.scanned(sum(spec.file.record_count for spec in scanned), sum(spec.file.size for spec in scanned))
    whole = [spec for spec in scanned if not spec.deletes and not spec.inlined_deletes]
    holed = [spec for spec in scanned if spec.deletes or spec.inlined_deletes]
    if whole:
        frame = frame.union(_native_frame(spark, whole).select(*(_by_id(column) for column in scan.columns)))
    if holed:
        located = _native_frame(spark, holed).select("*", "_metadata.file_path", "_metadata.row_index")
        gone = fn.broadcast(_deleted_frame(spark, holed))
        same = (located.file_path == gone.gone_path) & (located.row_index == gone.gone_index)
        rows = located.join(gone, same, "left_anti")
        frame = frame.union(rows.select(*(_by_id(column) for column in scan.columns)))
    return frame


def _by_id(column: LakeColumn) -> Column:
    """A column that was read by its id. A cast of a struct goes by position and so gives fields their names."""
    found = _named(id_name(column))
    return (found.cast(spark_type(column)) if column.children else found).alias(column.name)


def _native_frame(spark: SparkSession, specs: Sequence[FileScan]) -> DataFrame:
    """Spark's own Parquet scan. Columns are found by id, which is a setting of a session: it gets one of its own."""
    session = spark.newSession()
    session.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    session.conf.set("spark.sql.parquet.fieldId.read.ignoreMissing", "true")
    fields = [spark_field(column, by_id=True) for column in specs[0].columns]
    reader = session.read.schema(st.StructType(fields)).option("datetimeRebaseMode", "CORRECTED")
    # Folder names are decoration, and names of files are no patterns.
    reader = reader.option("recursiveFileLookup", "true").option("__globPaths__", "false")
    return reader.parquet(*(local_path(spec.file.path) or spec.file.path for spec in specs))


def _deleted_frame(spark: SparkSession, specs: Sequence[FileScan]) -> DataFrame:
    """The deleted positions, by path as Spark writes it."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda spec: deletions(spec, Tally()), specs))
    parts = []
    for spec, (positions, snapshots) in zip(specs, found, strict=True):
        gone = pa.array(positions[snapshots <= spec.at], pa.int64())
        parts.append(
            pa.table({"gone_path": pa.repeat(_spark_path(spark, spec.file.path), len(gone)), "gone_index": gone})
        )
    return spark.createDataFrame(pa.concat_tables(parts))


def _spark_path(spark: SparkSession, path: str) -> str:
    local = local_path(path)
    jvm: Any = spark._jvm
    return str(jvm.org.apache.hadoop.fs.Path(path if local is None else f"file:{local}").toUri().toString())


def _is_scannable(spark: SparkSession, spec: FileScan, history: ColumnHistory) -> bool:
    """Whether Spark can open the file and would find in it what the columns are now."""
    file = spec.file
    if file.encryption_key is not None or spec.mapping is not None or not _is_reachable(spark, file.path):
        return False
    if file.partial_max is not None and file.partial_max > spec.at:
        return False
    written = {column.id: column for column in history.at(file.begin)}
    return all(
        _shape(written[column.id]) == _shape(column) if column.id in written else column.initial_default is None
        for column in spec.columns
    )


def _shape(column: LakeColumn) -> Any:
    return column.id, column.type, tuple(_shape(child) for child in column.children)


def _is_reachable(spark: SparkSession, path: str) -> bool:
    """Whether Spark itself can open files there; executors elsewhere need the folder, too."""
    if not hasattr(spark, "_jvm"):
        return False
    if local_path(path) is not None:
        return True
    scheme = path.partition("://")[0]
    jvm, context = spark._jvm, spark.sparkContext
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, context._jsc.hadoopConfiguration())  # type: ignore[union-attr]
    except Exception:  # noqa: BLE001  (py4j wraps whatever Java throws: there is no connector)
        return False
    return True


# --- rows that tasks read


def task_frame(
    spark: SparkSession,
    specs: Sequence[FileScan],
    columns: tuple[LakeColumn, ...],
    chosen: st.StructType,
    meter: Meter | None = None,
) -> DataFrame:
    """Files that Python tasks read, largest first, so that no task waits for another's last file."""
    total = sum(spec.file.size for spec in specs)
    count = min(len(specs), max(spark.sparkContext.defaultParallelism, -(-total // _TASK_BYTES)))
    shares: list[list[FileScan]] = [[] for _ in range(count)]
    loads = [0] * count
    for spec in sorted(specs, key=lambda spec: -spec.file.size):
        least = loads.index(min(loads))
        shares[least].append(spec)
        loads[least] += spec.file.size
    extra = len(specs[0].schema) - len(columns)
    wanted = _arrow_schema(columns, specs[0].schema, extra)
    read = file_reader(shares, wanted)
    return spark.range(0, count, 1, count).mapInArrow(read if meter is None else meter.reading(read), chosen)


def local_frame(
    spark: SparkSession, table: pa.Table, columns: tuple[LakeColumn, ...], chosen: st.StructType
) -> DataFrame:
    """Rows that are here already."""
    wanted = _arrow_schema(columns, table.schema, table.num_columns - len(columns))
    if not wanted.names:
        # Arrow has no rows without columns.
        return spark.createDataFrame([()] * table.num_rows, chosen)
    batches = [for_spark(batch, wanted) for batch in table.to_batches()]
    return _arrow_frame(spark, pa.Table.from_batches(batches, wanted), chosen)


def _arrow_frame(spark: SparkSession, table: pa.Table, chosen: st.StructType) -> DataFrame:
    if not table.num_rows:
        # Spark wants at least one chunk, even if nothing is in it.
        empty = [pa.array([], field.type) for field in table.schema]
        table = pa.Table.from_batches([pa.RecordBatch.from_arrays(empty, schema=table.schema)])
    return spark.createDataFrame(table, chosen)


def _arrow_schema(columns: Sequence[LakeColumn], schema: pa.Schema, extra: int) -> pa.Schema:
    fields = [pa.field(column.name, travel_type(column)) for column in columns]
    return pa.schema([*fields, *list(schema)[len(fields) : len(fields) + extra]])


# --- the change feed

_FEED = [
    st.StructField("snapshot_id", st.LongType(), False),
    st.StructField("rowid", st.LongType(), False),
    st.StructField("change_type", st.StringType(), False),
]


def change_schema(columns: Sequence[LakeColumn]) -> st.StructType:
    """Changed rows as tasks give them."""
    numbers = (st.StructField(name, st.LongType()) for name in ("rowid", "snapshot_id", "weight"))
    return st.StructType([*(spark_field(column) for column in columns), *numbers])


def _changes_frame(spark: SparkSession, changes: ChangeSet) -> DataFrame:
    chosen = [spark_field(column) for column in changes.columns]
    feed = st.StructType([*_FEED, *chosen])
    if changes.most_rows <= SMALL_ROWS:
        return _small_feed(spark, read_changes(changes), changes.columns, feed)
    raw = change_schema(changes.columns)
    frame = local_frame(spark, changes.inlined, changes.columns, raw)
    if changes.files:
        frame = frame.union(task_frame(spark, changes.files, changes.columns, raw))
    names = [f"c{place}" for place in range(len(chosen))]
    frame = frame.toDF(*names, "rowid", "snapshot_id", "weight")
    pair = Window.partitionBy("snapshot_id", "rowid")
    both = (fn.min("weight").over(pair) < 0) & (fn.max("weight").over(pair) > 0)
    inserted = fn.col("weight") > 0
    kind = (
        fn.when(both & inserted, "update_postimage")
        .when(both, "update_preimage")
        .when(inserted, "insert")
        .otherwise("delete")
    )
    shown = frame.select("snapshot_id", "rowid", kind.alias("change_type"), *names)
    return shown.toDF(*(field.name for field in feed))


def _small_feed(
    spark: SparkSession, table: pa.Table, columns: tuple[LakeColumn, ...], feed: st.StructType
) -> DataFrame:
    """The feed of changes that were read here."""
    *data, row_ids, snapshots, _ = table.combine_chunks().columns
    fields = [pa.field(column.name, travel_type(column)) for column in columns]
    named = pa.schema([("snapshot_id", pa.int64()), ("rowid", pa.int64()), ("change_type", pa.string()), *fields])
    values = [column.cast(field.type, safe=False) for column, field in zip(data, fields, strict=True)]
    shown = pa.Table.from_arrays([snapshots, row_ids, _change_types(table), *values], schema=named)
    return _arrow_frame(spark, shown, feed)


def _change_types(table: pa.Table) -> pa.Array:
    """An insertion and a deletion of one row in one snapshot are an update."""
    rows = list(zip(*(table.columns[-3 + i].to_pylist() for i in range(2)), strict=True))
    weights = table.columns[-1].to_pylist()
    came = {row for row, weight in zip(rows, weights, strict=True) if weight > 0}
    went = {row for row, weight in zip(rows, weights, strict=True) if weight < 0}
    both = came & went
    names = {
        (1, True): "update_postimage", (-1, True): "update_preimage", (1, False): "insert", (-1, False): "delete",
    }  # fmt: skip
    return pa.array([names[weight, row in both] for row, weight in zip(rows, weights, strict=True)], pa.string())


# --- the catalog


class _catalog:  # noqa: N801  (used like a function)
    """One REPEATABLE READ transaction on the lake's catalog: all answers fit together."""

    def __init__(self, lake: Lake | str, schema: str | None, options: Mapping[str, str] | None) -> None:
        self._lake, self._schema, self._options = lake, schema, options

    def __enter__(self) -> tuple[psycopg.Connection[Any], Lake]:
        dsn = self._lake.dsn if isinstance(self._lake, Lake) else _conninfo(self._lake)
        if dsn is None:
            raise UserError(
                "The lake does not say where its catalog is.",
                hint="Give its connection string: 'ducklake:postgres:dbname=... host=...'.",
            )
        self._conn = psycopg.connect(dsn)
        try:
            self._conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._conn.read_only = True
            if isinstance(self._lake, Lake):
                return self._conn, self._lake
            name = self._schema or _only_schema(self._conn)
            return self._conn, open_lake(self._conn, "lake", name, dsn=dsn, options=self._options)
        except BaseException:
            self._conn.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._conn.close()


def _conninfo(text: str) -> str:
    return re.sub(r"^ducklake:(postgres:)?", "", text)


def _only_schema(conn: psycopg.Connection[Any]) -> str:
    found = conn.execute(
        "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relname = 'ducklake_metadata' AND c.relkind = 'r' ORDER BY 1"
    ).fetchall()
    if len(found) == 1:
        return str(found[0][0])
    names = ", ".join(row[0] for row in found)
    raise UserError(
        f"The database has {'several lakes' if found else 'no lake'}{': ' + names if names else ''}.",
        hint="Give the catalog's schema: schema=..." if found else "Give a database in which a DuckLake catalog is.",
    )


def _version(
    conn: psycopg.Connection[Any], lake: Lake, snapshot: int | None, timestamp: dt.datetime | str | None
) -> int:
    if snapshot is not None and timestamp is not None:
        raise UserError("Both a snapshot and a timestamp are given.", hint="Give one of them.")
    if timestamp is not None:
        return snapshot_at(conn, lake, timestamp)
    if snapshot is None:
        return head(conn, lake)
    check_snapshot(conn, lake, snapshot)
    return snapshot


_NAME = re.compile(r'(?:"((?:[^"]|"")*)"|([^".]+))')


def split_name(text: str) -> tuple[str, str]:
    """Schema and name of a table.

    >>> split_name("t"), split_name('s."a.b"')
    (('main', 't'), ('s', 'a.b'))
    """
    parts = [(quoted or plain).replace('""', '"') for quoted, plain in _NAME.findall(text)]
    return ("main", parts[0]) if len(parts) == 1 else (parts[0], ".".join(parts[1:]))


def _table(conn: psycopg.Connection[Any], lake: Lake, text: str, at: int) -> LakeTable:
    schema, name = split_name(text)
    found = find_table(conn, lake, schema, name, at)
    if found is None:
        known = ", ".join(f"{table.schema}.{table.name}" for table in tables(conn, lake, at))
        raise UserError(
            f"The lake has no table {schema}.{name} at snapshot {at}.", hint=f"It has: {known or 'no tables'}."
        )
    return found


def _named(name: str) -> Column:
    return fn.col("`" + name.replace("`", "``") + "`")
