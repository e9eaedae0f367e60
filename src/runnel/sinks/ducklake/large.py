"""Publish a large table whole: Spark's tasks write its files.

Tasks have connections of their own and see only what is committed, so this happens in a transaction after the one
that filled the table. Until then the lake shows the table empty, or as it was. All read in one exported snapshot and
in physical order, so the map of the rows can be built afterwards, while the lake shows them already: by the engine
when it has nothing else to do, and at the latest by the next refresh, before it changes a row.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runnel.catalog.owner import AsOwner
from runnel.lake.store.storage import open_store
from runnel.model.names import Name, quote
from runnel.ports.sink import Published
from runnel.sinks.columns import SETTINGS, PublishedColumn
from runnel.sinks.ducklake import catalog as sinks
from runnel.sinks.ducklake import rowmap
from runnel.sinks.ducklake.catalog import LakeSink
from runnel.sinks.ducklake.job import Job, fits, put_table, put_view, reason
from runnel.sinks.ducklake.whole import empty_table, replace_files
from runnel.spark.ducklake.write import SliceWrite, write_slices
from runnel.spark.session import Sessions

_LEAST_PAGES, _MOST_PAGES = 2048, 32768
"""A task's slice: 16 MiB at least, 256 MiB at most."""


def is_large(job: Job, threshold: int) -> bool:
    """Whether tasks should write the table: it has more rows than the threshold."""
    limited = f"SELECT count(*) FROM (SELECT FROM {job.result.name.sql()} LIMIT {threshold + 1}) AS t"
    return bool(job.owner.value(limited, "int8") > threshold)


def prepare_large(job: Job) -> int | None:
    """See to the lake's table and view, and remember that the rows are still to come; the snapshot, if one was made."""
    table, snapshot = job.standing.table, None
    if not fits(job):
        with job.snapshot() as draft:
            table = put_table(job, draft)
            if job.standing.table is not None:
                empty_table(draft, table)
            put_view(job, draft)
        snapshot = draft.id
    assert table is not None
    version = job.result.definition_version if snapshot is not None else job.sink.definition_version
    shape = [c.as_json for c in job.columns]
    sinks.save_sink(
        job.conn,
        replace(job.sink, table_id=table.id, columns=shape, row_count=None, definition_version=version, map_start=None),
    )
    return snapshot


def publish_large(job: Job, sessions: Sessions, dsn: str, why: str) -> Published:
    """Publish the committed rows of a table, whose table in the lake exists."""
    table = job.standing.table
    assert table is not None
    queries = _queries(job, 2 * sessions.parallelism)
    names = job.files.reserve(table, len(queries))
    row = job.conn.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    lake = job.session.lake
    spec = SliceWrite(
        dsn=_with_settings(dsn),
        snapshot=str(row[0]),
        form=job.form(table),
        store=open_store(table.path, lake.options),
        folder=table.path,
    )
    first = job.standing.next_row_id
    began = time.perf_counter()
    files = [file for file in write_slices(sessions, spec, queries, names) if file is not None]
    job.files.arrived(table, names)
    job.files.milliseconds += (time.perf_counter() - began) * 1000
    with job.snapshot() as draft:
        starts = replace_files(job, draft, table, files)
    after = starts[-1] + files[-1].record_count if starts else first
    count = sum(file.record_count for file in files)
    unmapped = None
    if job.mapped:
        rowmap.drop_map(job.conn, job.sink.pgt_id)
        unmapped = starts[0] if starts else first, _file_node(job.conn, job.result.relid)
    job.record(table, draft.id, after, count, described=True, added=count, unmapped=unmapped)
    return Published(snapshot=draft.id, inserted=count, deleted=job.standing.rows, reason=reason(why))


def complete_map(
    owner: AsOwner, sink: LakeSink, name: Name, relid: int, columns: Sequence[PublishedColumn]
) -> LakeSink:
    """Build the map of a table that was published in physical order and has not changed since; the sink as it is then.

    If the table is not as it was (somebody has written to it, or CLUSTER has moved its rows), it is published anew.
    """
    assert sink.map_start is not None
    conn, mapped = owner.conn, None
    if sink.map_storage == _file_node(conn, relid):
        mapped = rowmap.fill_from(owner, sink.pgt_id, columns, name.sql(), sink.map_start)
    done = replace(sink, map_start=None, map_storage=None)
    if mapped != sink.row_count:
        rowmap.drop_map(conn, sink.pgt_id)
        done = replace(done, row_count=None)
    sinks.save_sink(conn, done)
    return done


def _file_node(conn: psycopg.Connection, relid: int) -> int:
    row = conn.execute("SELECT pg_relation_filenode(%s::oid)::int8", (relid,)).fetchone()
    assert row is not None
    return int(row[0])


def _with_settings(dsn: str) -> str:
    """Text forms must not depend on who connects."""
    given = conninfo_to_dict(dsn).get("options") or ""
    settings = " ".join(f"-c {key}={value.replace(' ', '')}" for key, value in SETTINGS.items())
    return make_conninfo(dsn, options=f"{given} {settings}".strip())


def _queries(job: Job, tasks: int) -> list[str]:
    """SELECTs of consecutive slices, in physical order."""
    conn: psycopg.Connection = job.conn
    row = conn.execute(
        "SELECT pg_relation_size(%s::oid) / current_setting('block_size')::int8", (job.result.relid,)
    ).fetchone()
    assert row is not None
    pages = max(1, int(row[0]))
    size = max(_LEAST_PAGES, min(_MOST_PAGES, -(-pages // tasks)))
    items = [column.native_sql(f"t.{quote(column.name)}") for column in job.columns]
    types = [column.native_type for column in job.columns]
    if job.logs:
        types += ["text", "int8", "timestamptz"]
        items += ["'insert'", f"{job.refreshed.id}::int8", f"'{job.refreshed.at}'::timestamptz"]
    listed = ", ".join(f"{item} AS o{i}" for i, item in enumerate(items))
    queries = []
    for start in range(0, pages, size):
        upper = "" if start + size >= pages else f" AND t.ctid < '({start + size},0)'::tid"
        text = f"SELECT {listed} FROM ONLY {job.result.name.sql()} t WHERE t.ctid >= '({start},0)'::tid{upper}"
        queries.append(job.owner.select_sql(text, types))
    return queries
