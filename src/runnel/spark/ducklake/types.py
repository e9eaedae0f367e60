"""DuckLake's types in Spark: text where Spark has none (times, intervals, UUIDs, JSON)."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as st

from runnel.lake.format.model import LakeColumn
from runnel.lake.format.types import arrow_type, decimal_bounds

_TYPES: dict[str, st.DataType] = {
    "boolean": st.BooleanType(),
    "int8": st.ByteType(), "int16": st.ShortType(), "int32": st.IntegerType(), "int64": st.LongType(),
    "uint8": st.ShortType(), "uint16": st.IntegerType(), "uint32": st.LongType(), "uint64": st.DecimalType(20, 0),
    "int128": st.DecimalType(38, 0), "uint128": st.DecimalType(38, 0),
    "float32": st.FloatType(), "float64": st.DoubleType(), "date": st.DateType(),
    "timestamp": st.TimestampNTZType(), "timestamp_us": st.TimestampNTZType(), "timestamp_s": st.TimestampNTZType(),
    "timestamp_ms": st.TimestampNTZType(), "timestamp_ns": st.TimestampNTZType(), "timestamptz": st.TimestampType(),
    "blob": st.BinaryType(), "geometry": st.BinaryType(),
}  # fmt: skip

# Stored in Parquet in a way that Spark does not read, or reads as something else.
_NOT_NATIVE = frozenset(
    {"int128", "uint128", "uuid", "time", "time_ns", "timetz", "interval", "timestamp_ns", "geometry", "variant"}
)


def is_native(column: LakeColumn) -> bool:
    return column.type not in _NOT_NATIVE and all(is_native(child) for child in column.children)


def travel_type(column: LakeColumn) -> pa.DataType:
    """The Arrow type that travels to Spark."""
    match column.type:
        case "list":
            return pa.list_(pa.field("element", travel_type(column.children[0])))
        case "struct":
            return pa.struct([pa.field(child.name, travel_type(child)) for child in column.children])
        case "map":
            return pa.map_(travel_type(column.children[0]), travel_type(column.children[1]))
        case "uint8":
            return pa.int16()
        case "uint16":
            return pa.int32()
        case "uint32":
            return pa.int64()
        case "uint64":
            return pa.decimal128(20, 0)
        case "int128" | "uint128":
            return pa.decimal128(38, 0)
        case "time" | "time_ns":
            return pa.string()
        case "timestamp_s" | "timestamp_ms" | "timestamp_ns":
            return pa.timestamp("us")
    return arrow_type(column)


def spark_field(column: LakeColumn, *, by_id: bool = False) -> st.StructField:
    """A column's name and type; or, for Spark's Parquet reader, its field id under a name that no file has.

    Spark goes by the name where it does not find the id, and a dropped column's name may be in use again.
    """
    if by_id:
        return st.StructField(id_name(column), spark_type(column, by_id=True), True, {"parquet.field.id": column.id})
    return st.StructField(column.name, spark_type(column))


def id_name(column: LakeColumn) -> str:
    """The name under which a column is read by its id."""
    return f"lake column {column.id}"


def spark_type(column: LakeColumn, *, by_id: bool = False) -> st.DataType:
    """Spark's type of a column."""
    bounds = decimal_bounds(column.type)
    if bounds is not None:
        return st.DecimalType(*bounds)
    match column.type:
        case "list":
            return st.ArrayType(spark_type(column.children[0], by_id=by_id))
        case "struct":
            return st.StructType([spark_field(child, by_id=by_id) for child in column.children])
        case "map":
            key, value = (spark_type(child, by_id=by_id) for child in column.children)
            return st.MapType(key, value)
    return _TYPES.get(column.type, st.StringType())
