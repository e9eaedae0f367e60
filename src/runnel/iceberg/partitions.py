"""DuckLake's partitions as Iceberg's, where both mean the same.

Identity of plain values, years and buckets do. Months, days and hours are parts of the calendar in DuckLake and counted
since 1970 in Iceberg: files are not told apart by them, and their bounds say the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.lake.format.catalog import query
from runnel.lake.format.model import Lake, LakeColumn

_FIRST_FIELD = 1000
_BUCKET = re.compile(r"bucket\((\d+)\)")
_INTEGERS = frozenset({"int8", "int16", "int32", "int64"})
_DATED = frozenset({"date", "timestamp", "timestamp_us", "timestamp_s", "timestamp_ms", "timestamptz"})

Value = int | str | bool | None


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a spec."""

    id: int
    index: int
    """Its place among the catalog's keys."""
    source: int
    name: str
    transform: str
    avro: str
    read: Callable[[str], Value]


@dataclass(frozen=True, slots=True)
class Spec:
    """How files are partitioned; without fields not at all."""

    id: int
    fields: tuple[PartitionField, ...] = ()

    def as_json(self) -> dict[str, Any]:
        fields = [
            {"field-id": each.id, "source-id": each.source, "name": each.name, "transform": each.transform}
            for each in self.fields
        ]
        return {"spec-id": self.id, "fields": fields}

    def values(self, texts: Mapping[int, str | None]) -> dict[str, Value]:
        """A file's values, from the catalog's texts by place."""
        found = {}
        for each in self.fields:
            text = texts.get(each.index)
            found[each.name] = None if text is None else each.read(text)
        return found


NONE = Spec(0)


def specs(
    conn: psycopg.Connection[Any],
    lake: Lake,
    table_id: int,
    columns: Sequence[LakeColumn],
    shown: Callable[[], set[int]],
) -> dict[int, Spec]:
    """By DuckLake's partition id. Only columns that are shown now can be told to readers; `shown` says which."""
    keys: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for partition, index, column, transform in query(
        conn,
        lake,
        "SELECT partition_id, partition_key_index, column_id, transform FROM {lake}.ducklake_partition_column"
        " WHERE table_id = %(table)s ORDER BY 1, 2",
        table=table_id,
    ):
        keys[partition].append((index, column, transform))
    visible = shown() if keys else set()
    by_id = {column.id: column for column in columns if column.id in visible}
    found: dict[int, Spec] = {}
    numbers: dict[tuple[int, str], int] = {}
    for partition, parts in keys.items():
        fields = []
        for index, column_id, transform in parts:
            column = by_id.get(column_id)
            known = None if column is None else transform_of(column, transform)
            if column is None or known is None:
                continue
            # The same transform of the same column is the same field in all specs.
            id = numbers.setdefault((column_id, known[1]), _FIRST_FIELD + len(numbers))
            fields.append(PartitionField(id, index, column_id, f"p{id}", known[1], known[2], known[0]))
        found[partition] = Spec(len(found) + 1, tuple(fields)) if fields else NONE
    return found


def transform_of(column: LakeColumn, transform: str) -> tuple[Callable[[str], Value], str, str] | None:
    """How a value's text is read, Iceberg's name of the transform, and the Avro type of its values."""
    bucket = _BUCKET.fullmatch(transform)
    if bucket and (column.type in _INTEGERS or column.type == "varchar"):
        return int, f"bucket[{bucket[1]}]", "int"
    if transform == "year" and column.type in _DATED:
        return (lambda text: int(text) - 1970), "year", "int"
    if transform == "identity":
        if column.type in _INTEGERS:
            return int, "identity", "long" if column.type == "int64" else "int"
        if column.type == "varchar":
            return str, "identity", "string"
        if column.type == "boolean":
            return (lambda text: text in ("true", "1")), "identity", "boolean"
    return None
