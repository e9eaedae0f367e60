"""Which columns a rewritten file has: DuckDB writes those of the files that it came from, not those of its snapshot.

Other files have the columns of the snapshot that they begin with. So only files whose rows carry their own ids are
looked into, in tables whose columns have ever changed, and each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa

from runnel.iceberg.facts import Facts
from runnel.lake.format.columns import Found, found_in_file
from runnel.lake.format.model import DataFile, Lake, LakeColumn
from runnel.lake.format.types import NESTED
from runnel.lake.read.input import Tally, open_parquet
from runnel.lake.read.reader import ROW_ID, SNAPSHOT_ID
from runnel.lake.write.parquet import can_write, storage_type


def with_shapes(lake: Lake, facts: Facts, known: dict[int, int], data_file: Callable[[int], DataFile]) -> Facts:
    """The facts with the true shapes of rewritten files; `known` keeps them."""
    if len(facts.columns.marks) < 2:
        return facts
    found = {}
    for id, file in facts.files.items():
        # All files of the first shape are of that shape, and a mapping tells the columns of a file by their names.
        if id < 0 or file.row_id_start is not None or file.mapping_id is not None:
            continue
        if file.begin < facts.columns.marks[1]:
            continue
        if id not in known:
            known[id] = _shape(lake, facts, data_file(id))
        if known[id] != file.shape:
            found[id] = replace(file, shape=known[id])
    return replace(facts, files={**facts.files, **found}) if found else facts


def _shape(lake: Lake, facts: Facts, file: DataFile) -> int:
    """The last snapshot up to the file's own whose columns are those in the file."""
    with open_parquet(file, lake.options, Tally()) as opened:
        schema = opened.parquet.schema_arrow
    fields = [field for field in schema if field.name not in (ROW_ID, SNAPSHOT_ID)]
    ids = _ids(found_in_file(field) for field in fields)
    types = {found_in_file(field).id: field.type for field in fields}
    for mark in [m for m in reversed(facts.columns.marks) if m <= file.begin]:
        columns = facts.columns.at(mark)
        if _column_ids(columns) == ids and all(_fits(column, types[column.id]) for column in columns):
            return mark
    return file.begin


def _ids(found: Iterable[Found]) -> set[int | None]:
    every: set[int | None] = set()
    for each in found:
        every |= {each.id} | _ids(each.children)
    return every


def _column_ids(columns: Iterable[LakeColumn]) -> set[int]:
    every: set[int] = set()
    for each in columns:
        every |= {each.id} | _column_ids(each.children)
    return every


def _fits(column: LakeColumn, stored: pa.DataType) -> bool:
    if column.type in NESTED or not can_write((column,)):
        return True
    wanted = storage_type(column)
    return bool(wanted == stored) or pa.types.is_string(wanted) or pa.types.is_binary(wanted)
