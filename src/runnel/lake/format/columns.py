"""From what a file or a catalog table holds to a column as the reader wants it.

A column is found by its id at every level: renamed, widened, added and dropped columns and struct fields all come out
as the table is at the snapshot that is read.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runnel.errors import UserError
from runnel.lake.format.encrypted import connection
from runnel.lake.format.model import LakeColumn, MappedName
from runnel.lake.format.types import FLOATS, HUGE, NESTED, TEXTS, TIMESTAMPS, arrow_type, duck_type

_FIELD_ID = b"PARQUET:field_id"
_ESCAPED_BYTE = re.compile(rb"\\x([0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Found:
    """A node of what is stored: which column it is, and what lies below it, in the order of the Arrow type."""

    id: int | None
    name: str
    children: tuple[Found, ...] = ()


def found_in_file(field: pa.Field, *, trust_names: Sequence[LakeColumn] | None = None) -> Found:
    """A Parquet field by its field ids; `trust_names` gives the ids where the file has none."""
    raw = (field.metadata or {}).get(_FIELD_ID)
    column = None
    if trust_names is not None:
        column = next((c for c in trust_names if c.name.lower() == field.name.lower()), None)
    id = column.id if column is not None else int(raw) if raw is not None else None
    below = column.children if column is not None else None
    return Found(id, field.name, tuple(found_in_file(f, trust_names=below) for f in _fields_below(field.type, below)))


def found_by_mapping(field: pa.Field, names: Sequence[MappedName]) -> Found:
    """A Parquet field by the names that the catalog keeps for a file that was not written for the lake."""
    mapped = next((m for m in names if not m.is_partition and m.source == field.name), None)
    if mapped is None:
        return Found(None, field.name)
    children = _fields_below(field.type, None)
    return Found(mapped.column_id, field.name, tuple(found_by_mapping(f, mapped.children) for f in children))


def found_as(column: LakeColumn) -> Found:
    """A stored column that has exactly the shape of `column`."""
    return Found(column.id, column.name, tuple(found_as(child) for child in column.children))


def _fields_below(type: pa.DataType, below: Sequence[LakeColumn] | None) -> list[pa.Field]:
    if pa.types.is_struct(type):
        return [type.field(i) for i in range(type.num_fields)]
    if pa.types.is_map(type):
        fields = [type.key_field, type.item_field]
        # The names of a map's parts and of a list's element differ between writers; their places do not.
        return [f.with_name(n) for f, n in zip(fields, ("key", "value"), strict=True)]
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return [type.value_field.with_name("element")]
    return []


def conform(array: pa.Array, found: Found, column: LakeColumn) -> pa.Array:
    """Stored values as the wanted column: nested fields by id, types widened."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if column.type not in NESTED:
        return _conform_leaf(array, column)
    wanted = arrow_type(column)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    match column.type:
        case "struct":
            stored = {child.id: (i, child) for i, child in enumerate(found.children)}
            parts = array.flatten()
            children = [
                conform(parts[stored[child.id][0]], stored[child.id][1], child)
                if child.id in stored
                else default_array(child, len(array))
                for child in column.children
            ]
            return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
        case "list":
            if pa.types.is_large_list(array.type):
                array = array.cast(pa.list_(array.type.value_type))
            values = conform(array.values, found.children[0], column.children[0])
            return _with_children(array, wanted, values)
        case _:
            key, value = column.children
            keys = conform(array.keys, found.children[0], key)
            items = conform(array.items, found.children[1], value)
            entries = pa.StructArray.from_arrays([keys, items], fields=[wanted.key_field, wanted.item_field])
            return _with_children(array, wanted, entries)


def _with_children(array: pa.Array, wanted: pa.DataType, values: pa.Array) -> pa.Array:
    """The same lists over other values."""
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(wanted, len(array), buffers, array.null_count, array.offset, [values])


def _conform_leaf(array: pa.Array, column: LakeColumn) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    wanted = arrow_type(column)
    if array.type == wanted:
        return array
    stored = array.type
    if column.type == "uuid" and pa.types.is_fixed_size_binary(stored):
        return _uuid_text(array)
    if column.type == "interval":
        return _interval_text(array)
    if column.type == "timetz" and pa.types.is_time(stored):
        text = pc.replace_substring_regex(array.cast(pa.time64("us")).cast(pa.string()), r"\.?0+$", "")
        return pc.binary_join_element_wise(text, "+00", "")
    if column.type in HUGE and not pa.types.is_integer(stored):
        return pa.array([None if v is None else Decimal(int(v)) for v in array.to_pylist()], wanted)
    # Rounding is part of widening to a float, and digits below a second of widening to a coarser timestamp's file.
    return array.cast(wanted, safe=column.type not in FLOATS and not pa.types.is_timestamp(wanted))


def default_array(column: LakeColumn, length: int) -> pa.Array:
    """What rows have in a column that is younger than they are."""
    if column.initial_default is None:
        return pa.nulls(length, arrow_type(column))
    one = from_text([column.initial_default], column)
    return pa.repeat(one[0], length)


def from_text(texts: Sequence[str | None], column: LakeColumn) -> pa.Array:
    """Values from DuckDB's text, in which the catalog keeps defaults and most inlined values."""
    wanted = arrow_type(column)
    if column.type in TEXTS:
        return pa.array(texts, wanted)
    if column.type == "blob":
        return pa.array([None if text is None else _bytes(text) for text in texts], wanted)
    if column.type in HUGE:
        return pa.array([None if text is None else Decimal(text) for text in texts], wanted)
    if column.type not in NESTED and column.type not in ("interval", "timetz", "uuid"):
        array = pa.array(texts, pa.string())
        if column.type == "timestamptz":
            array = pc.replace_substring_regex(array, r"\+00$", "")
        try:
            if column.type == "timestamptz" or column.type in TIMESTAMPS:
                unit = wanted.unit
                return array.cast(pa.timestamp(unit)).cast(wanted)
            return array.cast(wanted)
        except pa.ArrowInvalid:
            pass  # Infinity, years beyond 9999 and the like: DuckDB wrote it, DuckDB reads it.
    return _by_duckdb(texts, column)


def _by_duckdb(texts: Sequence[str | None], column: LakeColumn) -> pa.Array:
    with connection().cursor() as conn:
        conn.execute("SET TimeZone = 'UTC'")
        if column.type == "struct":
            # Only rows in the catalog, which the driver reads: tasks do without it.
            from runnel.lake.format.literals import readable_struct  # noqa: PLC0415

            texts = [None if text is None else readable_struct(text, column) for text in texts]
        try:
            parsed = _cast(conn, texts, column)
        except duckdb.Error:
            raise UserError(
                f"column {column.name}: a value that is kept in the catalog cannot be read as {duck_type(column)}",
                hint="DuckDB wrote it. Flush the rows there: CALL ducklake_flush_inlined_data(..).",
            ) from None
    return conform(parsed.column(0), found_as(column), column)


def _cast(conn: duckdb.DuckDBPyConnection, texts: Sequence[str | None], column: LakeColumn) -> pa.Table:
    conn.register("given", pa.table({"text": pa.array(texts, pa.string())}))
    return conn.execute(f"SELECT CAST(text AS {duck_type(column)}) AS value FROM given").to_arrow_table()


def _bytes(text: str) -> bytes:
    r"""A blob from DuckDB's text.

    >>> _bytes(r"a\xAAb")
    b'a\xaab'
    """
    return _ESCAPED_BYTE.sub(lambda m: binascii.unhexlify(m[1]), text.encode())


def _uuid_text(array: pa.Array) -> pa.Array:
    """The usual notation of 16-byte values, for all of them at once."""
    length = len(array)
    raw = array.buffers()[1]
    if raw is None:
        return pa.nulls(length, pa.string())
    start = array.offset * 16
    digits = np.frombuffer(binascii.hexlify(raw[start : start + length * 16].to_pybytes()), dtype=np.uint8)
    text = np.full((length, 36), ord("-"), dtype=np.uint8)
    digits = digits.reshape(length, 32)
    read = 0
    for begin, end in ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36)):
        text[:, begin:end] = digits[:, read : read + end - begin]
        read += end - begin
    offsets = pa.py_buffer(np.arange(0, (length + 1) * 36, 36, dtype=np.int32))
    plain = pa.StringArray.from_buffers(length, offsets, pa.py_buffer(text.tobytes()))
    return pc.if_else(array.is_valid(), plain, None) if array.null_count else plain


def _interval_text(array: pa.Array) -> pa.Array:
    return pa.array([None if value is None else interval_text(*_interval(value)) for value in array.to_pylist()])


def _interval(value: Any) -> tuple[int, int, int]:
    if isinstance(value, bytes):
        months, days, millis = np.frombuffer(value, dtype="<i4").tolist()
        return months, days, millis * 1000
    return value.months, value.days, value.nanoseconds // 1000


def interval_text(months: int, days: int, micros: int) -> str:
    """An interval as PostgreSQL and DuckDB both read it.

    >>> interval_text(14, -3, 4_500_000)
    '14 months -3 days 00:00:04.5'
    """
    sign = "-" if micros < 0 else ""
    seconds, fraction = divmod(abs(micros), 1_000_000)
    clock = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    tail = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{months} months {days} days {clock}{tail}"
