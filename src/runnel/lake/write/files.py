"""Data and delete files entering and leaving a table, within a draft snapshot, with exact statistics.

DuckDB trusts statistics: it answers count, min and max from them and skips files by them. So the table's are merged
with those of every new file in the same snapshot, and never made smaller when rows go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.lake.format.model import ColumnStats, DeleteFile, Lake, LakeTable, WrittenFile
from runnel.lake.format.stats import TableColumnStats, leaves, merge
from runnel.lake.write.commit import Draft, conflict


def add_data_files(draft: Draft, table: LakeTable, files: Sequence[WrittenFile]) -> list[int]:
    """Add uploaded files to a table. Returns the row id of each file's first row; the others follow by position."""
    starts = add_rows(
        draft,
        table,
        [file.record_count for file in files],
        [file.stats for file in files],
        sum(file.size for file in files),
    )
    for file, start in zip(files, starts, strict=True):
        insert_data_file(draft, table, file, begin=draft.id, row_id_start=start)
    draft.announce(f"inserted_into_table:{table.id}")
    return starts


def insert_data_file(
    draft: Draft,
    table: LakeTable,
    file: WrittenFile,
    *,
    begin: int,
    row_id_start: int | None,
    end: int | None = None,
    partial_max: int | None = None,
    partition_id: int | None = None,
    partition_values: Mapping[int, str | None] | None = None,
) -> int:
    """Write a data file's own rows of the catalog and leave the table's statistics alone. Returns the file's id."""
    id = draft.new_file_id()
    draft.run(
        "INSERT INTO {lake}.ducklake_data_file (data_file_id, table_id, begin_snapshot, end_snapshot, path, "
        "path_is_relative, file_format, record_count, file_size_bytes, footer_size, row_id_start, encryption_key, "
        "partial_max, partition_id) VALUES (%s, %s, %s, %s, %s, true, 'parquet', %s, %s, %s, %s, %s, %s, %s)",
        (
            id,
            table.id,
            begin,
            end,
            file.path,
            file.record_count,
            file.size,
            file.footer_size,
            row_id_start,
            file.encryption_key,
            partial_max,
            partition_id,
        ),
    )
    draft.run_many(
        "INSERT INTO {lake}.ducklake_file_column_stats VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, NULL)",
        [
            (id, table.id, column, each.size, each.value_count, each.null_count, each.min, each.max, each.contains_nan)
            for column, each in file.stats.items()
        ],
    )
    draft.run_many(
        "INSERT INTO {lake}.ducklake_file_partition_value VALUES (%s, %s, %s, %s)",
        [(id, table.id, index, value) for index, value in (partition_values or {}).items()],
    )
    return id


def end_data_file(draft: Draft, table: LakeTable, data_file_id: int) -> None:
    """Take a file out of the table: all its rows are deleted. Not for files with inlined deletes."""
    draft.change(
        1,
        "UPDATE {lake}.ducklake_data_file SET end_snapshot = %s WHERE data_file_id = %s AND table_id = %s "
        "AND end_snapshot IS NULL",
        (draft.id, data_file_id, table.id),
    )
    draft.run(
        "UPDATE {lake}.ducklake_delete_file SET end_snapshot = %s WHERE data_file_id = %s AND end_snapshot IS NULL",
        (draft.id, data_file_id),
    )
    announce_deletes(draft, table)


def replace_delete_file(
    draft: Draft, table: LakeTable, data_file_id: int, old: DeleteFile | None, new: WrittenFile
) -> int:
    """Give a data file its one live delete file, which holds all positions deleted so far. Returns the new file's id.

    The new file replaces the old one also for older snapshots: it carries the snapshot of every deletion, and
    readers of those take the positions they should see.
    """
    begin = draft.id
    if old is not None:
        begin = old.begin
        draft.change(
            1,
            "DELETE FROM {lake}.ducklake_delete_file WHERE delete_file_id = %s AND data_file_id = %s "
            "AND end_snapshot IS NULL",
            (old.id, data_file_id),
        )
        schedule_deletion(draft, [(old.id, old.path)])
    id = insert_delete_file(
        draft, table, data_file_id, new, begin=begin, end=None, partial_max=None if old is None else draft.id
    )
    announce_deletes(draft, table)
    return id


def insert_delete_file(
    draft: Draft,
    table: LakeTable,
    data_file_id: int,
    file: WrittenFile,
    *,
    begin: int,
    end: int | None,
    partial_max: int | None,
) -> int:
    """Write a delete file's own row of the catalog. Returns its id."""
    id = draft.new_file_id()
    draft.run(
        "INSERT INTO {lake}.ducklake_delete_file (delete_file_id, table_id, begin_snapshot, end_snapshot, "
        "data_file_id, path, path_is_relative, format, delete_count, file_size_bytes, footer_size, encryption_key, "
        "partial_max) VALUES (%s, %s, %s, %s, %s, %s, true, 'parquet', %s, %s, %s, %s, %s)",
        (
            id,
            table.id,
            begin,
            end,
            data_file_id,
            file.path,
            file.record_count,
            file.size,
            file.footer_size,
            file.encryption_key,
            partial_max,
        ),
    )
    return id


def announce_deletes(draft: Draft, table: LakeTable) -> None:
    """Say that rows went. DuckDB lets deletes race with deletes, and loses some; with inserts it conflicts."""
    draft.announce(f"inserted_into_table:{table.id}", f"deleted_from_table:{table.id}")


def schedule_deletion(draft: Draft, files: Sequence[tuple[int, str]]) -> None:
    """Put files (id, absolute path) on the list of those that may be removed once no reader can need them."""
    draft.run_many(
        "INSERT INTO {lake}.ducklake_files_scheduled_for_deletion VALUES (%s, %s, %s, now())",
        [(id, *relative_path(draft.lake, path)) for id, path in files],
    )


def relative_path(lake: Lake, path: str) -> tuple[str, bool]:
    """A path below the lake's folder, and whether it is there."""
    inside = path.startswith(lake.data_path)
    return (path.removeprefix(lake.data_path), True) if inside else (path, False)


def add_rows(
    draft: Draft,
    table: LakeTable,
    counts: Sequence[int],
    stats: Sequence[Mapping[int, ColumnStats]],
    size: int = 0,
) -> list[int]:
    """Count new rows in the table's statistics, in as many portions as given. Returns each portion's first row id."""
    text = "SELECT record_count, next_row_id FROM {lake}.ducklake_table_stats WHERE table_id = %s"
    # A row that the transaction sees in an old version cannot be updated: PostgreSQL itself reports the conflict.
    known = draft.run(text, (table.id,))
    if not known and draft.committed(text, (table.id,)):
        raise conflict(draft.lake, f"another writer has put the first rows into table {table.name}")
    next_row = known[0][1] if known else 0
    starts = []
    for count in counts:
        starts.append(next_row)
        next_row += count
    total = sum(counts)
    if known:
        draft.change(
            1,
            "UPDATE {lake}.ducklake_table_stats SET record_count = record_count + %s, next_row_id = %s, "
            "file_size_bytes = file_size_bytes + %s WHERE table_id = %s",
            (total, next_row, size, table.id),
        )
    else:
        draft.run("INSERT INTO {lake}.ducklake_table_stats VALUES (%s, %s, %s, %s)", (table.id, total, next_row, size))
    _merge_columns(draft, table, stats, first=not known)
    draft.stats_changed()
    return starts


def _merge_columns(draft: Draft, table: LakeTable, stats: Sequence[Mapping[int, ColumnStats]], *, first: bool) -> None:
    known = {
        id: TableColumnStats(*rest)
        for id, *rest in draft.run(
            "SELECT column_id, contains_null, contains_nan, min_value, max_value "
            "FROM {lake}.ducklake_table_column_stats WHERE table_id = %s",
            (table.id,),
        )
    }
    rows = []
    for column in leaves(table.columns):
        before = known.get(column.id)
        # A column that was added to a table with rows has no statistics, and must not get any: they would describe
        # the new rows only.
        if before is None and not first:
            continue
        after = merge(before, [each[column.id] for each in stats if column.id in each], column.type)
        if after != before:
            rows.append((after.contains_null, after.contains_nan, after.min, after.max, table.id, column.id))
    if first:
        draft.run_many(
            "INSERT INTO {lake}.ducklake_table_column_stats "
            "(contains_null, contains_nan, min_value, max_value, table_id, column_id) VALUES (%s, %s, %s, %s, %s, %s)",
            rows,
        )
    else:
        draft.run_many(
            "UPDATE {lake}.ducklake_table_column_stats SET contains_null = %s, contains_nan = %s, min_value = %s, "
            "max_value = %s WHERE table_id = %s AND column_id = %s",
            rows,
        )
