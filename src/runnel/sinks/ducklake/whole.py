"""Publish a stream table whole: the first time, in mode replace, and whenever the lake holds something else."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from runnel.lake.format.model import LakeTable, WrittenFile
from runnel.lake.write.commit import Draft
from runnel.lake.write.files import add_data_files, announce_deletes
from runnel.lake.write.tables import current
from runnel.model.names import quote
from runnel.ports.sink import Published
from runnel.sinks.ducklake import rowmap
from runnel.sinks.ducklake.job import Job, describes, fits, put_table, put_view, reason
from runnel.sinks.reading import Reading, logged


def publish_whole(job: Job, why: str) -> Published:
    """Replace whatever the lake's table holds by the stream table's rows, read in this very transaction."""
    if fits(job):
        assert job.standing.table is not None
        table = job.standing.table
        files, reading = _write(job, table)
        with job.snapshot() as draft:
            starts = replace_files(job, draft, table, files)
    else:
        # Files are written under the lake's lock: only the draft knows the columns' ids.
        with job.snapshot() as draft:
            table = put_table(job, draft)
            files, reading = _write(job, table)
            starts = replace_files(job, draft, table, files)
    count = sum(file.record_count for file in files)
    if job.mapped:
        rowmap.create_map(job.owner, job.sink.pgt_id)
        if starts:
            rowmap.add_rows(job.conn, job.sink.pgt_id, reading.hashes.all(), starts[0])
        rowmap.index_map(job.conn, job.sink.pgt_id)
    after = starts[-1] + files[-1].record_count if starts else job.standing.next_row_id
    job.record(table, draft.id, after, count, described=True, added=count)
    return Published(snapshot=draft.id, inserted=count, deleted=job.standing.rows, reason=reason(why))


def rows_sql(job: Job) -> str:
    """All rows of the stream table, as o<i>."""
    return f"SELECT {', '.join(f't.{quote(c.name)} AS o{i}' for i, c in enumerate(job.columns))}"


def empty_table(draft: Draft, table: LakeTable) -> None:
    """End everything that a lake's table holds."""
    live = "SELECT data_file_id, end_snapshot FROM {lake}.ducklake_data_file WHERE table_id = %s"
    files = [row[0] for row in current(draft, live, (table.id,))]
    draft.change(
        len(files),
        "UPDATE {lake}.ducklake_data_file SET end_snapshot = %s WHERE data_file_id = ANY(%s) AND end_snapshot IS NULL",
        (draft.id, files),
    )
    draft.run(
        "UPDATE {lake}.ducklake_delete_file SET end_snapshot = %s "
        "WHERE data_file_id = ANY(%s) AND end_snapshot IS NULL",
        (draft.id, files),
    )
    named = "SELECT table_name FROM {lake}.ducklake_inlined_data_tables WHERE table_id = %s"
    for (name,) in {*draft.committed(named, (table.id,)), *draft.run(named, (table.id,))}:
        escaped = quote(name).replace("%", "%%")
        draft.run(f"UPDATE {{lake}}.{escaped} SET end_snapshot = %s WHERE end_snapshot IS NULL", (draft.id,))
    announce_deletes(draft, table)


def replace_files(job: Job, draft: Draft, table: LakeTable, files: Sequence[WrittenFile]) -> list[int]:
    """Let these files be all that the table holds; the first row id of each."""
    if job.standing.table is not None:
        empty_table(draft, table)
    starts = add_data_files(draft, table, files) if files else []
    if describes(job) or not fits(job):
        put_view(job, draft)
    return starts


def _write(job: Job, table: LakeTable) -> tuple[list[WrittenFile], Reading]:
    reading = job.reading(table)
    job.files.uploads.begin()
    if job.logs:
        select = f"{rows_sql(job)}, 'insert' AS action FROM {job.result.name.sql()} t"
        batches = logged(reading.batches(select, [("action", pa.string())]), job.refreshed)
    else:
        batches = reading.batches(f"{rows_sql(job)} FROM {job.result.name.sql()} t")
    files, _ = job.files.send(table, job.form(table), batches)
    return files, reading
