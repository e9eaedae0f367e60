"""Publish a refresh's changes: rows added and removed (merge), or the changes themselves (append)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from runnel.lake.format.model import LakeTable, WrittenFile
from runnel.lake.write.commit import Draft, require_untouched
from runnel.lake.write.deletions import Deletions
from runnel.lake.write.files import add_data_files, end_data_file, replace_delete_file
from runnel.lake.write.inline import can_inline, end_inlined_rows, inline_deletes, inline_rows
from runnel.lake.write.measure import statistics
from runnel.ports.sink import Published
from runnel.sinks.ducklake import held, rowmap
from runnel.sinks.ducklake.job import Job, describes, put_view
from runnel.sinks.ducklake.places import FileDeletes, Places, locate
from runnel.sinks.reading import changes_sql, logged

_REMEMBERED = 100_000
"""Positions of a delete file that the next publication need not read again."""

INLINE_ROWS = 100
"""Changes up to this many rows may be kept in the catalog instead of in files."""


def publish_changes(job: Job, table: LakeTable, *, resync: bool) -> Published | str:
    """Bring a merged table in step; or say why it must be published whole.

    `resync` compares the stream table with what was published instead of trusting the delta.
    """
    if resync:
        gone_sql, new_sql = rowmap.difference_sql(job.sink.pgt_id, job.columns, job.result.name.sql())
        gone = rowmap.take_difference(job.owner, gone_sql)
    else:
        gone, expected = rowmap.take_deleted(job.owner, job.sink.pgt_id, job.columns, job.result.delta)
        if len(gone) != expected:
            return f"{expected - len(gone)} of {expected} rows to remove were never published"
        new_sql = delta_sql(job)
    session = job.session
    places = locate(
        session.observer, session.lake, table, job.standing.head, gone, lambda f: job.stored.row_ids(session.lake, f)
    )
    if places.missing:
        return f"{places.missing} published rows are not in the lake any more"
    reading = job.reading(table)
    _expect_files(job, table, None if resync else job.refreshed.inserted)
    rows, batches = _small(job, table, reading.batches(new_sql))
    whole, inlined, listed = _divide(job, places)
    form = job.form(table)
    files, delete_files = job.files.send(table, form, batches, _delete_files(job, listed, job.next_snapshot))
    with job.snapshot() as draft:
        require_untouched(draft, table.id, job.standing.head)
        if draft.id != job.next_snapshot and listed:
            job.files.abandon(table, delete_files)
            _, delete_files = job.files.send(table, form, (), _delete_files(job, listed, draft.id))
        starts = _add(draft, table, files, rows)
        if starts:
            rowmap.add_rows(job.conn, job.sink.pgt_id, reading.hashes.all(), starts[0])
        for deletes, written in zip(listed, delete_files, strict=True):
            replace_delete_file(draft, table, deletes.file.id, deletes.old, written)
            if written.record_count <= _REMEMBERED:
                job.stored.remember(table.path + written.path, _deletions(job, deletes, draft.id))
        for deletes in whole:
            end_data_file(draft, table, deletes.file.id)
        if inlined:
            inline_deletes(draft, table, {d.file.id: d.positions.tolist() for d in inlined})
        if places.inlined:
            end_inlined_rows(draft, table, places.inlined)
        described = describes(job)
        if described:
            put_view(job, draft)
    inserted = reading.hashes.count if starts else 0
    job.record(
        table,
        draft.id,
        job.standing.next_row_id + inserted,
        job.standing.rows + inserted - len(gone),
        described=described,
    )
    return Published(snapshot=draft.id, inserted=inserted, deleted=len(gone))


def publish_log(job: Job, table: LakeTable) -> Published:
    """Append a refresh's changes, each row with what happened to it."""
    batches: Iterator[pa.RecordBatch] = iter(())
    inserted, deleted, delta = job.refreshed.inserted, job.refreshed.deleted, job.result.delta
    if job.sink.held_since is not None:
        inserted, deleted, delta = held.netted(job.owner, job.result, changed=job.refreshed.changed)
    if inserted or deleted:
        _expect_files(job, table, inserted + deleted)
        # Otherwise the delta table may still hold an older refresh's rows.
        select = changes_sql(len(job.columns), delta)
        batches = logged(job.reading(table).batches(select, [("action", pa.string())]), job.refreshed)
    rows, batches = _small(job, table, batches)
    files, _ = job.files.send(table, job.form(table), batches)
    with job.snapshot() as draft:
        require_untouched(draft, table.id, job.standing.head)
        _add(draft, table, files, rows)
        described = describes(job)
        if described:
            put_view(job, draft)
    count = sum(f.record_count for f in files) + (rows.num_rows if rows is not None else 0)
    job.record(table, draft.id, job.standing.next_row_id + count, job.standing.rows + count, described=described)
    return Published(snapshot=draft.id, inserted=inserted, deleted=deleted)


def delta_sql(job: Job) -> str:
    """The rows that a refresh added, each as often as its weight says."""
    names = ", ".join(f"o{i}" for i in range(len(job.columns)))
    return f"SELECT {names} FROM {job.result.delta}, generate_series(1, w) WHERE w > 0"


def _expect_files(job: Job, table: LakeTable, rows: int | None) -> None:
    """Before so many rows are read (None: nobody knows how many): they may go to files while the rest is read."""
    if rows is None or rows > (INLINE_ROWS if _inlines(job, table) else 0):
        job.files.uploads.begin()


def _inlines(job: Job, table: LakeTable) -> bool:
    return job.sink.inline_small_changes and can_inline(table)


def _small(
    job: Job, table: LakeTable, batches: Iterator[pa.RecordBatch]
) -> tuple[pa.Table | None, Iterator[pa.RecordBatch]]:
    """Few rows, to be kept in the catalog, if the sink wants that; or all of them for files."""
    if not _inlines(job, table):
        return None, batches
    first: list[pa.RecordBatch] = []
    for batch in batches:
        first.append(batch)
        if sum(b.num_rows for b in first) > INLINE_ROWS:
            return None, itertools.chain(first, batches)
    if not any(b.num_rows for b in first):
        return None, iter(())
    names = [name for name, _ in job.wanted]
    rows = pa.Table.from_batches(first).rename_columns(names)
    return rows.select([c.name for c in table.columns]), iter(())


def _add(draft: Draft, table: LakeTable, files: Sequence[WrittenFile], rows: pa.Table | None) -> list[int]:
    if rows is not None:
        return [inline_rows(draft, table, rows, statistics(rows, table.columns))]
    return add_data_files(draft, table, files) if files else []


def _divide(job: Job, places: Places) -> tuple[list[FileDeletes], list[FileDeletes], list[FileDeletes]]:
    """Files that go as a whole, files whose deletes are kept in the catalog, files that get a delete file."""
    whole = [d for d in places.files if d.all_gone]
    rest = [d for d in places.files if not d.all_gone]
    if job.sink.inline_small_changes and sum(len(d.positions) for d in rest) <= INLINE_ROWS:
        return whole, rest, []
    return whole, [], rest


def _delete_files(job: Job, listed: Sequence[FileDeletes], snapshot: int) -> list[tuple[str, Callable[[], Deletions]]]:
    """Per data file (by its path) all that is deleted in it, to be put together when it is written."""
    return [(d.file.path, partial(_deletions, job, d, snapshot)) for d in listed]


def _deletions(job: Job, deletes: FileDeletes, snapshot: int) -> Deletions:
    """All positions deleted in a file so far, with the snapshot of each."""
    new = Deletions.at(deletes.positions, snapshot)
    return new if deletes.old is None else new | job.stored.deletions(job.session.lake, deletes.old)
