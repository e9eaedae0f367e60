"""One publication: what all modes share while they write one snapshot of the lake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg

from runnel.catalog.migrate import package_version
from runnel.catalog.owner import AsOwner
from runnel.lake.format.model import LakeColumn, LakeTable
from runnel.lake.write.commit import Draft, begin_snapshot, finish
from runnel.lake.write.parquet import Form
from runnel.lake.write.tables import add_column, column, create_table, drop_column, widen_column
from runnel.lake.write.views import create_view
from runnel.model.names import Name
from runnel.ports.sink import Refreshed, Result
from runnel.sinks.columns import PublishedColumn
from runnel.sinks.ducklake import catalog as sinks
from runnel.sinks.ducklake.catalog import LakeSink
from runnel.sinks.ducklake.places import Standing
from runnel.sinks.ducklake.stored import StoredFiles
from runnel.sinks.ducklake.views import view_sql, view_tags
from runnel.sinks.ducklake.write import FileWriter
from runnel.sinks.reading import LOG_COLUMNS, Reading
from runnel.sinks.session import LakeSession

SOURCES = "SELECT source_name, source_relid::int8 FROM pgtrickle.pgt_dependencies WHERE pgt_id = %s ORDER BY 1"

FIRST, REPLACED = "first publication", "mode replace"
ROUTINE = (FIRST, REPLACED)
"""Why a table is published whole without anybody wondering."""

# Types that DuckLake can read as wider ones without touching files.
_WIDER = {
    "int16": ("int32", "int64", "float64"),
    "int32": ("int64", "float64"),
    "float32": ("float64",),
    "date": ("timestamp", "timestamptz"),
    "timestamp": ("timestamptz",),
}


@dataclass
class Job:
    """What is published, where, and by which refresh."""

    conn: psycopg.Connection[Any]
    """The refresh's own transaction; also the lake's, unless that is on another server."""
    owner: AsOwner
    """The way to read the stream table's rows in it."""
    session: LakeSession
    files: FileWriter
    stored: StoredFiles
    sink: LakeSink
    result: Result
    refreshed: Refreshed
    columns: tuple[PublishedColumn, ...]
    standing: Standing
    next_snapshot: int
    """The number the snapshot will probably get."""

    @property
    def logs(self) -> bool:
        """Whether the lake's table is a log."""
        return self.sink.mode == "append"

    @property
    def mapped(self) -> bool:
        """Whether it is known where each row is."""
        return self.sink.mode == "merge"

    @property
    def wanted(self) -> list[tuple[str, str]]:
        """(name, type) of the lake table's columns as they should be."""
        return [*((c.name, c.lake) for c in self.columns), *(LOG_COLUMNS if self.logs else ())]

    def lake_columns(self, table: LakeTable) -> list[LakeColumn]:
        """The lake table's columns in the order of `wanted`."""
        by_name = {c.name: c for c in table.columns}
        return [by_name[name] for name, _ in self.wanted]

    def form(self, table: LakeTable) -> Form:
        """What the lake table's files are like."""
        return Form(tuple(self.lake_columns(table)), self.sink.compression, self.session.lake.encrypted)

    def reading(self, table: LakeTable) -> Reading:
        """A way to read rows for the table."""
        own = self.lake_columns(table)[: len(self.columns)]
        return Reading(self.owner, self.columns, own, hashed=self.mapped)

    @contextmanager
    def snapshot(self) -> Iterator[Draft]:
        """The lake's next snapshot, which says where it comes from."""
        draft = begin_snapshot(self.session.conn, self.session.observer, self.session.lake)
        yield draft
        finish(draft, **provenance(self.result.name, self.refreshed))

    def record(
        self,
        table: LakeTable,
        snapshot: int,
        next_row_id: int,
        row_count: int,
        *,
        described: bool,
        added: int = 0,
        unmapped: tuple[int, int] | None = None,
    ) -> None:
        """Remember in the catalog what the lake holds now; `described`: the view is up to date, too.

        `added` rows were published that no refresh has just added: those of a table that was there before its sink.
        `unmapped`: the row map is still to be built, from this row id on, for rows in this file node.
        """
        if described or table.id != self.sink.table_id:
            version = self.result.definition_version if described else self.sink.definition_version
            shape = [c.as_json for c in self.columns]
            values = {**_fields(self.sink), "table_id": table.id, "columns": shape, "snapshot_id": snapshot,
                      "next_row_id": next_row_id, "row_count": row_count, "definition_version": version}  # fmt: skip
            values["map_start"], values["map_storage"] = unmapped or (None, None)
            values["held_since"] = None
            sinks.save_sink(self.conn, LakeSink(**values))
        else:
            sinks.mark_published(self.conn, self.sink.pgt_id, snapshot, next_row_id, row_count)
        sinks.record_provenance(
            self.conn,
            self.session.lake.name,
            snapshot,
            relid=self.result.relid,
            name=shown(self.result.name),
            refresh_id=self.refreshed.id,
            rows=self.refreshed.inserted + self.refreshed.deleted or added,
            frontier=self.refreshed.frontier,
            at=self.refreshed.at,
        )


def provenance(name: Name, refreshed: Refreshed) -> dict[str, str]:
    """What a snapshot says about its origin."""
    extra = {"refresh_id": refreshed.id, "stream_table": shown(name), "frontier": dict(refreshed.frontier)}
    return {
        "author": f"pg_trickle/{_version()}/stream_table/{shown(name)}/{refreshed.id}",
        "message": f"{refreshed.action} refresh {refreshed.id} of {shown(name)}: "
        f"{refreshed.inserted} rows added, {refreshed.deleted} removed",
        "extra": json.dumps(extra),
    }


@cache
def _version() -> str:
    return package_version()


def shown(name: Name) -> str:
    """A stream table's name as the lake's users know it."""
    return name.name if name.schema == "public" else f"{name.schema}.{name.name}"


def reason(why: str) -> str | None:
    """What the history says of a table that was published whole, unless nobody would wonder."""
    return None if why in ROUTINE else f"published whole: {why}"


def describes(job: Job) -> bool:
    """Whether the view in the lake is missing or describes an older definition."""
    return not job.standing.has_view or job.sink.definition_version != job.result.definition_version


def put_view(job: Job, draft: Draft) -> None:
    """Create or replace the view that shows the current rows."""
    sources = [(str(name), int(oid)) for name, oid in job.conn.execute(SOURCES, (job.result.id,))]
    sql = view_sql(job.sink, [c.name for c in job.columns])
    tags = view_tags(job.sink, job.result, sources)
    create_view(draft, job.sink.lake_schema, job.sink.view_name, sql, tags, replace=job.sink.table_id is not None)


def put_table(job: Job, draft: Draft) -> LakeTable:
    """The lake's table with the columns it should have: made, or evolved."""
    table = job.standing.table
    if table is None:
        columns = [column(name, type) for name, type in job.wanted]
        return create_table(draft, job.sink.lake_schema, job.sink.table_name, columns)
    wanted = dict(job.wanted)
    for known in table.columns:
        if known.name not in wanted or not (
            known.type == wanted[known.name] or wanted[known.name] in _WIDER.get(known.type, ())
        ):
            table = drop_column(draft, table, known.name)
        elif known.type != wanted[known.name]:
            table = widen_column(draft, table, known.name, wanted[known.name])
    present = {known.name for known in table.columns}
    for name, type in job.wanted:
        if name not in present:
            table = add_column(draft, table, column(name, type))
    return table


def fits(job: Job) -> bool:
    """Whether the lake's table has the columns it should have."""
    table = job.standing.table
    return table is not None and {c.name: c.type for c in table.columns} == dict(job.wanted)


def _fields(sink: LakeSink) -> dict[str, Any]:
    return {name: getattr(sink, name) for name in LakeSink.__slots__}
