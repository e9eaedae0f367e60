"""Data files as entries of manifests: paths, counts and bounds, from the catalog's rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
import pyarrow as pa

from runnel.iceberg.avro import FileRecord, encode_partition
from runnel.iceberg.facts import Facts, File
from runnel.iceberg.partitions import NONE, Spec
from runnel.iceberg.shelf import Shelf
from runnel.iceberg.types import bound_bytes, plain_type
from runnel.lake.format.catalog import DATA_FILE, data_file, query, query_all
from runnel.lake.format.columns import conform, found_as
from runnel.lake.format.model import ColumnStats, DataFile, Lake, LakeColumn, LakeTable
from runnel.lake.format.types import FLOATS, NESTED
from runnel.lake.read.inlined import inlined_versions
from runnel.lake.store.beside import uri
from runnel.lake.write.parquet import ROW_ID, Form, can_write, encode_files

Stat = tuple[int, int | None, int | None, str | None, str | None, bool | None]
"""Column, values, NULLs, least, greatest, whether NaN occurs."""
_Convert = Callable[[str], bytes | None]

_STATS: LiteralString = (
    "SELECT data_file_id, column_id, value_count, null_count, min_value, max_value, contains_nan"
    " FROM {lake}.ducklake_file_column_stats WHERE table_id = %(table)s"
    " AND data_file_id >= %(first)s AND data_file_id <= %(last)s"
)
_PATHS: LiteralString = (
    "SELECT data_file_id, path, path_is_relative FROM {lake}.ducklake_data_file"
    " WHERE table_id = %(table)s AND data_file_id = ANY(%(ids)s)"
)


@dataclass(frozen=True, slots=True)
class Placed:
    """A file as manifests list it."""

    uri: str
    begin: int
    rows: int
    first_row_id: int
    spec: Spec
    partition: bytes
    record: bytes
    """What an entry says of it, encoded."""


def place_files(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table: LakeTable,
    facts: Facts,
    ids: Iterable[int],
    specs: Mapping[int, Spec],
    shelf: Shelf,
    version: int,
) -> dict[int, Placed]:
    """What manifests say of these files. Inlined rows become files of their own on the way."""
    wanted = list(ids)
    real = [id for id in wanted if id >= 0]
    found = _real(conn, lake, table, facts, real, specs, version)
    inlined = [id for id in wanted if id < 0]
    if inlined:
        found |= _inlined(conn, lake, table, facts, inlined, shelf, version)
    return found


def data_file_by_id(conn: psycopg.Connection[Any], lake: Lake, table: LakeTable, id: int) -> DataFile:
    [row] = query(conn, lake, f"SELECT {DATA_FILE} FROM {{lake}}.ducklake_data_file WHERE data_file_id = %(id)s", id=id)
    return data_file(table, row)


def _real(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table: LakeTable,
    facts: Facts,
    ids: Sequence[int],
    specs: Mapping[int, Spec],
    version: int,
) -> dict[int, Placed]:
    if not ids:
        return {}
    by_file: dict[int, list[Stat]] = defaultdict(list)
    stats, paths = query_all(conn, lake, (_STATS, _PATHS), table=table.id, first=min(ids), last=max(ids), ids=list(ids))
    for row in stats:
        by_file[row[0]].append(row[1:])
    values: dict[int, dict[int, str | None]] = defaultdict(dict)
    if any(facts.files[id].partition_id is not None for id in ids):
        for id, index, value in query(
            conn,
            lake,
            "SELECT data_file_id, partition_key_index, partition_value FROM {lake}.ducklake_file_partition_value"
            " WHERE table_id = %(table)s AND data_file_id = ANY(%(ids)s)",
            table=table.id,
            ids=list(ids),
        ):
            values[id][index] = value
    found = {}
    for id, path, relative in paths:
        file = facts.files[id]
        spec = spec_of(file, specs)
        address = uri(path if relative is False else table.path + path)
        values_here = encode_partition(spec, spec.values(values[id])) if spec.fields else b""
        found[id] = _placed(
            file, address, file.size, spec, values_here, by_file[id], facts.columns.at(file.shape), version
        )
    return found


def spec_of(file: File, specs: Mapping[int, Spec]) -> Spec:
    return NONE if file.partition_id is None else specs.get(file.partition_id, NONE)


def _inlined(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table: LakeTable,
    facts: Facts,
    ids: Sequence[int],
    shelf: Shelf,
    version: int,
) -> dict[int, Placed]:
    found = {}
    by_table = {each.name: each for each in inlined_versions(conn, lake, table.id, facts.moments[-1].id)}
    for id in ids:
        rows, versions = facts.inlined[id], by_table[facts.inlined[id].table]
        places = sorted(
            (number[0], place)
            for place, number in enumerate(versions.numbers)
            if number[1] == rows.begin and number[2] != rows.begin
        )
        chosen = pa.array([place for _, place in places], pa.int64())
        pairs = [
            (kept, conform(array, found_as(column), kept))
            for column, array in zip(versions.columns, versions.arrays, strict=True)
            if (kept := _writable(column)) is not None
        ]
        names = [str(place) for place in range(len(pairs))]
        batch = pa.RecordBatch.from_arrays(
            [*(array.take(chosen) for _, array in pairs), pa.array([row for row, _ in places], pa.int64())],
            names=[*names, ROW_ID],
        )
        columns = tuple(column for column, _ in pairs)
        (encoded,) = encode_files(Form(columns), [batch], target_size=None, empty=True)
        data = encoded.data.to_pybytes() if isinstance(encoded.data, pa.Buffer) else encoded.data.read()
        address, size = shelf.put("rows", data, "data")
        stats = [_stat(column, each) for column, each in encoded.file.stats.items()]
        found[id] = _placed(facts.files[id], address, size, NONE, b"", stats, columns, version)
    return found


def _writable(column: LakeColumn) -> LakeColumn | None:
    """A column without the parts that no file of ours can hold; clients are not told of these, either."""
    if can_write((column,)):
        return column
    # A uuid can be written where it stands alone, and nowhere else.
    below = (_writable(child) for child in column.children if child.type != "uuid")
    kept = tuple(part for part in below if part is not None)
    whole = len(kept) == len(column.children)
    return replace(column, children=kept) if kept and (whole or column.type == "struct") else None


def _placed(
    file: File,
    address: str,
    size: int,
    spec: Spec,
    partition: bytes,
    stats: Sequence[Stat],
    columns: tuple[LakeColumn, ...],
    version: int,
) -> Placed:
    # Rows of a file without a first id carry their ids; readers want a number all the same.
    first = file.row_id_start or 0
    counts, nulls, lower, upper = _metrics(stats, _converters(columns))
    record = FileRecord(
        path=address, partition=partition, rows=file.rows, size=size, counts=counts, nulls=nulls, lower=lower,
        upper=upper, first_row_id=first,
    )  # fmt: skip
    return Placed(address, file.begin, file.rows, first, spec, partition, record.encoded(version))


def _stat(column: int, stats: ColumnStats) -> Stat:
    return column, stats.value_count, stats.null_count, stats.min, stats.max, stats.contains_nan


_known: dict[int, tuple[tuple[LakeColumn, ...], dict[int, tuple[_Convert | None, bool]]]] = {}


def _converters(columns: tuple[LakeColumn, ...]) -> dict[int, tuple[_Convert | None, bool]]:
    """By column: how its bounds are read, and whether it is a float. Only of columns that stand alone."""
    known = _known.get(id(columns))
    if known is None or known[0] is not columns:
        if len(_known) > 100:
            _known.clear()
        made = {
            column.id: (bound_bytes(column.type), column.type in FLOATS)
            for column in columns
            if column.type not in NESTED and plain_type(column.type, 3) is not None
        }
        known = _known[id(columns)] = columns, made
    return known[1]


def _metrics(
    stats: Sequence[Stat], converters: Mapping[int, tuple[_Convert | None, bool]]
) -> tuple[dict[int, int], dict[int, int], dict[int, bytes], dict[int, bytes]]:
    counts, nulls, lower, upper = {}, {}, {}, {}
    for column, values, missing, least, greatest, nan in stats:
        known = converters.get(column)
        if known is None:
            continue
        if values is not None and missing is not None:
            counts[column] = values + missing
            nulls[column] = missing
        convert, is_float = known
        # NaN is outside of all bounds.
        if convert is None or least is None or greatest is None or (is_float and nan is not False):
            continue
        low, high = convert(least), convert(greatest)
        if low is not None and high is not None:
            lower[column] = low
            upper[column] = high
    return counts, nulls, lower, upper
