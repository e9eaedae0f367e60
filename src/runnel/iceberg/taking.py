"""Data files of clients, taken into the lake: as they are, or written anew where DuckLake would read something else.

DuckLake's statistics must be exact, and those of manifests are rounded. So every file is read once. It stays as it is
if it lies in the table's folder, has just the table's columns as DuckLake writes them, and all of its rows are new. It
only gets a name of the lake's own: a client that does not hear of its commit may remove what it has written (DuckDB's
iceberg extension does), although the commit is there. Otherwise its rows go to a file of our own: with row ids that the
client kept (it leaves those of new rows empty), without rows that the same commit deletes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from runnel.iceberg.arrivals import Entry, local_form
from runnel.iceberg.errors import bad_request
from runnel.iceberg.masks import Ints
from runnel.iceberg.standing import Standing
from runnel.lake.format.columns import Found, conform, default_array, found_in_file
from runnel.lake.format.model import ColumnStats, DataFile, LakeColumn, LakeTable, WrittenFile
from runnel.lake.format.types import NESTED
from runnel.lake.read.input import ParquetInput, Tally, open_parquet
from runnel.lake.read.reader import ROW_ID_FIELD, SNAPSHOT_ID_FIELD
from runnel.lake.store.storage import MissingFile, open_store
from runnel.lake.write.measure import Collector
from runnel.lake.write.parquet import ROW_ID, Form, file_name, storage_type, write_file

_COPIED = 5 * 10**9
"""Bytes that object stores copy by one request."""

_LINEAGE = {ROW_ID_FIELD: "_row_id", SNAPSHOT_ID_FIELD: "_last_updated_sequence_number"}


@dataclass(frozen=True, slots=True)
class Taken:
    """A file that can be committed."""

    written: WrittenFile
    has_row_ids: bool
    """Its rows carry their ids."""
    replaces: str
    """The client's file."""
    entry: Entry


@dataclass(frozen=True, slots=True)
class _Stored:
    """The columns of a file."""

    names: dict[int, tuple[str, Found]]
    row_ids: str | None
    is_exact: bool


def take(standing: Standing, table: LakeTable, entry: Entry, dead: Ints, first_row_id: int) -> Taken:
    """Read a client's file, and write its rows anew if need be. New rows have ids from `first_row_id` on."""
    path = local_form(standing, entry.path)
    store = open_store(path.rpartition("/")[0], standing.lake.options)
    try:
        size = store.size(path)
        stored = DataFile(-1, path, 0, None, entry.rows, size, None, None)
        with open_parquet(stored, standing.lake.options, Tally()) as opened:
            found = _stored(opened.parquet.schema_arrow, table.columns)
            metadata = opened.parquet.metadata
            if metadata.num_rows != entry.rows:
                raise bad_request(f"The file {entry.path} has {metadata.num_rows} rows, not {entry.rows}.")
            ids = _row_ids(opened, found, first_row_id, standing.next_row_id)
            rows = _rows(opened, found, table.columns, ids, dead)
            is_whole = found.is_exact and ids is None and not len(dead)
            if is_whole and path.startswith(table.path) and (store.is_local or size <= _COPIED):
                collector = Collector(table.columns)
                for batch in rows:
                    collector.add(batch)
                own = file_name()
                store.duplicate(path, table.path + own)
                made = WrittenFile(own, collector.rows, size, metadata.serialized_size, collector.result())
                taken = Taken(made, has_row_ids=False, replaces=path, entry=entry)
            else:
                target = open_store(table.path, standing.lake.options)
                written = write_file(target, table.path, Form(table.columns), rows)
                taken = Taken(written, has_row_ids=ids is not None, replaces=path, entry=entry)
    except MissingFile as error:
        raise bad_request(f"The file {entry.path} is not there.") from error
    except pa.ArrowException as error:
        raise bad_request(f"The file {entry.path} does not fit the table: {str(error).splitlines()[0]}") from error
    try:
        _check_nulls(table.columns, taken.written.stats)
    except BaseException:
        open_store(table.path, standing.lake.options).delete([table.path + taken.written.path])
        raise
    return taken


def _stored(schema: pa.Schema, columns: Sequence[LakeColumn]) -> _Stored:
    fields = list(schema)
    numbered = any(b"PARQUET:field_id" in (field.metadata or {}) for field in fields)
    found = {}
    lineage = {}
    for field in fields:
        each = found_in_file(field, trust_names=None if numbered else columns)
        if each.id in _LINEAGE or (not numbered and field.name in _LINEAGE.values()):
            lineage[field.name if each.id is None else _LINEAGE[each.id]] = field.name
        elif each.id is not None:
            found[each.id] = field.name, each
    types = {field.name: field.type for field in fields}
    exact = numbered and not lineage and len(fields) == len(columns)
    exact = exact and all(c.id in found and _is_like(types[found[c.id][0]], storage_type(c)) for c in columns)
    return _Stored(found, lineage.get("_row_id"), exact)


def _is_like(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether files of both types are alike: field ids inside as well, but not how Arrow counts or what is NULL."""
    if pa.types.is_struct(wanted):
        if not pa.types.is_struct(given) or given.num_fields != wanted.num_fields:
            return False
        return all(_same_id(a, b) and a.name == b.name and _is_like(a.type, b.type) for a, b in zip(given, wanted))  # noqa: B905
    if pa.types.is_map(wanted):
        return (
            pa.types.is_map(given)
            and _same_id(given.key_field, wanted.key_field)
            and _same_id(given.item_field, wanted.item_field)
            and _is_like(given.key_type, wanted.key_type)
            and _is_like(given.item_type, wanted.item_type)
        )
    if pa.types.is_list(wanted):
        is_list = pa.types.is_list(given) or pa.types.is_large_list(given)
        return (
            is_list
            and _same_id(given.value_field, wanted.value_field)
            and _is_like(given.value_type, wanted.value_type)
        )
    if pa.types.is_large_string(given):
        given = pa.string()
    if pa.types.is_large_binary(given):
        given = pa.binary()
    return bool(given == wanted)


def _same_id(given: pa.Field, wanted: pa.Field) -> bool:
    key = b"PARQUET:field_id"
    return (given.metadata or {}).get(key) == (wanted.metadata or {}).get(key)


def _row_ids(opened: ParquetInput, found: _Stored, first: int, next_id: int) -> Ints | None:
    """The ids of all rows, if the client kept any."""
    if found.row_ids is None:
        return None
    given = opened.read([found.row_ids]).column(0).combine_chunks().cast(pa.int64())
    if given.null_count == len(given):
        return None
    kept = np.asarray(given.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
    if (kept < -1).any() or (kept >= next_id).any():
        raise bad_request("A row has an id that no row of the table has had.")
    return np.where(kept < 0, np.arange(first, first + len(kept), dtype=np.int64), kept)


def _rows(
    opened: ParquetInput, found: _Stored, columns: Sequence[LakeColumn], ids: Ints | None, dead: Ints
) -> Iterator[pa.RecordBatch]:
    """The rows in the table's columns, with ids if there are any, without those at dead positions."""
    names = [found.names[column.id][0] for column in columns if column.id in found.names]
    groups = list(range(opened.parquet.metadata.num_row_groups))
    at = 0
    # A file without any of the columns still has rows.
    for _, batch in opened.batches(names or [opened.parquet.schema_arrow.names[0]], groups):
        arrays = []
        for column in columns:
            if column.id in found.names:
                name, each = found.names[column.id]
                arrays.append(conform(batch.column(name), each, column))
            else:
                arrays.append(default_array(column, batch.num_rows))
        labels = [str(place) for place in range(len(columns))]
        if ids is not None:
            arrays.append(pa.array(ids[at : at + batch.num_rows], pa.int64()))
            labels.append(ROW_ID)
        made = pa.RecordBatch.from_arrays(arrays, names=labels)
        inside = dead[(dead >= at) & (dead < at + batch.num_rows)]
        if len(inside):
            keep = np.ones(batch.num_rows, dtype=np.bool_)
            keep[inside - at] = False
            made = made.filter(pa.array(keep))
        at += batch.num_rows
        yield made


def _check_nulls(columns: Sequence[LakeColumn], stats: Mapping[int, ColumnStats]) -> None:
    for column in columns:
        if (
            not column.nulls_allowed
            and column.type not in NESTED
            and column.id in stats
            and stats[column.id].null_count
        ):
            raise bad_request(f"Column {column.name} is required, but some rows have no value for it.")
