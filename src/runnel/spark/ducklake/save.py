"""DataFrames written to lake tables: tasks write the files, the driver commits them as one snapshot.

What a merge replaces is found by a join on the key: tasks read the key columns of the table with positions, and those
that match become delete files. So a merge reads keys alone, and the driver holds two numbers per replaced row.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as st

from runnel.errors import RunnelError, UserError
from runnel.lake.format.catalog import data_files, delete_files, find_table, head, query
from runnel.lake.format.model import Lake, LakeColumn, LakeTable, WrittenFile
from runnel.lake.read.inlined import inlined_rows
from runnel.lake.read.scan import plan_scan
from runnel.lake.store.storage import Store, open_store
from runnel.lake.write import tables as lake_tables
from runnel.lake.write.commit import Draft, LakeConflict, conflict, require_untouched, snapshot
from runnel.lake.write.files import add_data_files
from runnel.lake.write.parquet import Form, can_write
from runnel.lake.write.published import published_by
from runnel.lake.write.removal import Removal, formers
from runnel.spark.ducklake.save_task import file_writer, place_reader
from runnel.spark.ducklake.tables import _catalog, _named, split_name
from runnel.spark.ducklake.task import for_spark
from runnel.spark.ducklake.types import spark_type, travel_type
from runnel.spark.job import run

MODES = ("append", "overwrite", "merge")
ATTEMPTS = 5
_ANSWER = st.StructType([st.StructField("answer", st.BinaryType())])
_PLACE = [st.StructField("lake_file", st.LongType()), st.StructField("lake_place", st.LongType())]
_NEW_TYPES: dict[type[st.DataType], str] = {
    st.BooleanType: "boolean", st.ByteType: "int8", st.ShortType: "int16", st.IntegerType: "int32",
    st.LongType: "int64", st.FloatType: "float32", st.DoubleType: "float64", st.DateType: "date",
    st.TimestampType: "timestamptz", st.TimestampNTZType: "timestamp", st.StringType: "varchar",
    st.BinaryType: "blob",
}  # fmt: skip
_WIDER = {"tinyint": 0, "smallint": 1, "int": 2, "bigint": 3}


def write_ducklake(
    df: DataFrame,
    lake: Lake | str,
    table: str,
    mode: str = "append",
    *,
    on: Sequence[str] | None = None,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    compression: str = "zstd",
) -> int:
    """Write a DataFrame to a lake table as one snapshot. Returns the snapshot's number.

    `append` adds the rows, `overwrite` puts them in the place of all others, `merge` in the place of those with the
    same values in the columns `on`, and adds the rest. A table that is not there is created, unless rows are merged.
    `lake`, `schema` and `options` are those of `read_ducklake`. Columns are found by their names; all of them must be
    there, with the table's types or narrower ones.
    """
    if mode not in MODES:
        raise UserError(f"There is no mode {mode}.", hint=f"Choose one of {', '.join(MODES)}.")
    if (mode == "merge") != bool(on):
        raise UserError("Columns to merge by go with mode merge.", hint="write_ducklake(df, .., 'merge', on=['id'])")
    for attempt in range(ATTEMPTS):
        try:
            return _attempt(df, lake, table, mode, tuple(on or ()), schema, options, compression)
        except LakeConflict:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError


def _attempt(
    df: DataFrame,
    lake: Lake | str,
    name: str,
    mode: str,
    on: tuple[str, ...],
    schema: str | None,
    options: Mapping[str, str] | None,
    compression: str,
) -> int:
    namespace, bare = split_name(name)
    matched = None
    with _catalog(lake, schema, options) as (conn, opened):
        base = head(conn, opened)
        found = find_table(conn, opened, namespace, bare, base)
        if found is None and mode == "merge":
            raise UserError(f"The lake has no table {namespace}.{bare}.", hint="Write it once with mode append.")
        table = found or _new_table(conn, opened, namespace, bare, df)
        _refuse_published(conn, opened, table)
        aligned = _aligned(df, table.columns)
        if mode == "merge":
            matched = _matched(conn, aligned, opened, table, base, on)
    store = open_store(table.path, opened.options)
    uploaded: list[str] = []
    removal: Removal | None = None
    try:
        written = _write_rows(aligned, store, table.path, Form(table.columns, compression, opened.encrypted))
        uploaded = [table.path + file.path for file in written]
        assert opened.dsn is not None
        with psycopg.connect(opened.dsn, autocommit=True) as catalog:
            if found is not None and mode != "append":
                removal = _removal(catalog, opened, found, base, matched)
                removal.write(head(catalog, opened) + 1)
            with catalog.transaction():
                catalog.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                # It sees what others have committed: it is its own observer.
                with snapshot(catalog, catalog, opened, message=f"write_ducklake: {mode}") as draft:
                    _commit(draft, table, found, written, removal, base)
                return draft.id
    except BaseException:
        store.delete(uploaded)
        if removal is not None:
            removal.discard()
        raise


def _commit(
    draft: Draft,
    table: LakeTable,
    found: LakeTable | None,
    written: Sequence[WrittenFile],
    removal: Removal | None,
    base: int,
) -> None:
    if found is None:
        id = uuid.UUID(table.uuid)
        table = lake_tables.create_table(draft, table.schema, table.name, table.columns, id=id)
    elif removal is not None:
        require_untouched(draft, table.id, base)
        removal.apply(draft, table)
    elif lake_tables.find_table(draft, table.schema, table.name) != found:
        raise conflict(draft.lake, f"table {table.name} has changed meanwhile")
    if written:
        add_data_files(draft, table, written)


# --- the table


def _new_table(conn: psycopg.Connection[Any], lake: Lake, schema: str, name: str, df: DataFrame) -> LakeTable:
    """A table that does not exist yet: its files are written before it is created."""
    rows = query(
        conn,
        lake,
        "SELECT path, path_is_relative FROM {lake}.ducklake_schema"
        " WHERE schema_name = %(name)s AND end_snapshot IS NULL",
        name=schema,
    )
    if not rows:
        raise UserError(f"The lake has no schema {schema}.", hint="Create it with DuckDB.")
    [(path, relative)] = rows
    id = str(uuid.uuid4())
    columns, _ = lake_tables.number([_new_column(field.name, field.dataType) for field in df.schema], 1)
    base = f"{lake.data_path}{path}" if relative else str(path)
    return LakeTable(-1, id, schema, name, f"{base}{lake_tables.folder(name, id)}", columns)


def _new_column(name: str, type_: st.DataType) -> LakeColumn:
    match type_:
        case st.DecimalType():
            return lake_tables.column(name, f"decimal({type_.precision},{type_.scale})")
        case st.ArrayType():
            return lake_tables.column(name, "list", _new_column("element", type_.elementType))
        case st.MapType():
            key, value = _new_column("key", type_.keyType), _new_column("value", type_.valueType)
            return lake_tables.column(name, "map", key, value)
        case st.StructType():
            return lake_tables.column(name, "struct", *(_new_column(each.name, each.dataType) for each in type_))
    for known, lake_type in _NEW_TYPES.items():
        if isinstance(type_, known):
            return lake_tables.column(name, lake_type)
    raise UserError(f"Column {name}: a lake has no type for {type_.simpleString()}.", hint="Cast it.")


def _refuse_published(conn: psycopg.Connection[Any], lake: Lake, table: LakeTable) -> None:
    owner = published_by(conn, lake, table)
    if owner is not None:
        raise UserError(
            f"Table {table.schema}.{table.name} belongs to the stream table {owner}, whose refreshes write it.",
            hint="Write to a table of your own.",
        )


def _aligned(df: DataFrame, columns: Sequence[LakeColumn]) -> DataFrame:
    """The table's columns, in order and of their types."""
    given = {field.name.lower(): field for field in df.schema}
    names = {column.name.lower() for column in columns}
    missing, strange = sorted(names - given.keys()), sorted(given.keys() - names)
    if missing or strange or len(df.columns) != len(columns):
        said = [f"it lacks {', '.join(missing)}"] * bool(missing) + [f"it has {', '.join(strange)}"] * bool(strange)
        raise UserError(f"The DataFrame has other columns than the table: {'; '.join(said) or 'some twice'}.")
    if not can_write(columns):
        raise UserError("The table has columns of types that only DuckDB writes.", hint="Write it with DuckDB.")
    chosen = []
    for column in columns:
        field, wanted = given[column.name.lower()], spark_type(column)
        if not _fits(field.dataType, wanted):
            raise UserError(
                f"Column {column.name} is {wanted.simpleString()} in the lake, not {field.dataType.simpleString()}.",
                hint="Cast it in the DataFrame.",
            )
        chosen.append(_named(field.name).cast(wanted).alias(column.name))
    return df.select(*chosen)


def _fits(given: st.DataType, wanted: st.DataType) -> bool:
    """Whether a cast loses nothing."""
    one, other = given.simpleString(), wanted.simpleString()
    if one == other or (one, other) == ("float", "double") or isinstance(given, st.NullType):
        return True
    if one in _WIDER and other in _WIDER:
        return _WIDER[one] <= _WIDER[other]
    if isinstance(given, st.DecimalType) and isinstance(wanted, st.DecimalType):
        whole = given.precision - given.scale <= wanted.precision - wanted.scale
        return whole and given.scale <= wanted.scale
    return False


# --- rows


def _write_rows(rows: DataFrame, store: Store, folder: str, form: Form) -> list[WrittenFile]:
    """Tasks write the rows to files."""
    found: list[WrittenFile] = []
    for data in run(rows.mapInArrow(file_writer(store, folder, form), _ANSWER))["answer"].to_pylist():
        answer = pickle.loads(data)  # noqa: S301  (made by our own tasks)
        if isinstance(answer, RunnelError):
            raise answer
        found.append(answer)
    return found


# --- what goes


def _matched(
    conn: psycopg.Connection[Any], df: DataFrame, lake: Lake, table: LakeTable, at: int, on: Sequence[str]
) -> pa.Table:
    """The places of rows whose keys are in the DataFrame: file and position; of rows in the catalog -1 and row id."""
    by_name = {column.name.lower(): column for column in table.columns}
    unknown = [name for name in on if name.lower() not in by_name]
    if unknown:
        raise UserError(f"The table has no column {', '.join(unknown)}.")
    keys = [by_name[name.lower()] for name in on]
    names = [column.name for column in keys]
    given = df.select(*(_named(name) for name in names)).na.drop()
    if not given.groupBy(*(_named(name) for name in names)).count().where("count > 1").isEmpty():
        raise UserError("The DataFrame has several rows with the same key.", hint="Keep one of each, then merge.")
    scan = plan_scan(conn, lake, table, at, names, row_ids=True)
    fields = [st.StructField(f"key {place}", spark_type(column)) for place, column in enumerate(keys)]
    chosen = st.StructType([*fields, *_PLACE])
    wanted = pa.schema(
        [
            *(pa.field(f"key {place}", travel_type(column)) for place, column in enumerate(keys)),
            pa.field("lake_file", pa.int64()),
            pa.field("lake_place", pa.int64()),
        ]
    )
    spark = df.sparkSession
    files = list(scan.files)
    there = _inlined(spark, scan.inlined, wanted, chosen)
    if files:
        count = min(len(files), max(2, spark.sparkContext.defaultParallelism))
        shares = [files[number::count] for number in range(count)]
        there = there.union(spark.range(0, count, 1, count).mapInArrow(place_reader(shares, wanted), chosen))
    same = [_named(f"key {place}") == given[f"`{column.name}`"] for place, column in enumerate(keys)]
    return run(there.join(given, same, "left_semi").select("lake_file", "lake_place"))


def _inlined(spark: Any, rows: pa.Table, wanted: pa.Schema, chosen: st.StructType) -> DataFrame:
    """Keys of rows in the catalog, with their row ids."""
    *keys, ids = rows.columns
    columns = [*keys, pa.array([-1] * rows.num_rows, pa.int64()), ids]
    whole = pa.table(columns, names=wanted.names)
    batches = [for_spark(batch, wanted) for batch in whole.to_batches()] or [
        pa.RecordBatch.from_arrays([pa.array([], field.type) for field in wanted], schema=wanted)
    ]
    made: DataFrame = spark.createDataFrame(pa.Table.from_batches(batches, wanted), chosen)
    return made


def _removal(conn: psycopg.Connection[Any], lake: Lake, table: LakeTable, at: int, matched: pa.Table | None) -> Removal:
    """What goes: the matched rows, or all of them."""
    made = Removal(lake, table)
    files, deletes = data_files(conn, lake, table, at), delete_files(conn, lake, table, at)
    if matched is None:
        for each in formers(conn, lake, table, files, deletes):
            made.remove_all(each)
        kept = inlined_rows(conn, lake, table.id, (), at, row_ids=True)
        made.row_ids = kept.column("rowid").to_pylist()
        return made
    numbers = np.asarray(matched["lake_file"].to_numpy(), dtype=np.int64)
    places = np.asarray(matched["lake_place"].to_numpy(), dtype=np.int64)
    made.row_ids = places[numbers < 0].tolist()
    touched = set(np.unique(numbers[numbers >= 0]).tolist())
    for each in formers(conn, lake, table, [file for file in files if file.id in touched], deletes):
        made.remove(each, np.unique(places[numbers == each.file.id]))
    return made
