"""Messages into a lake, exactly once: rows, snapshot and offset are committed in one transaction.

The outbox of a stream table becomes a log with the table's own columns, `<table>__log`, and a view `<table>` of the
rows that are current. A message that says that everything begins anew (the stream table has other columns) ends the
log and begins another; older snapshots still show the old one. Messages of an application become rows with the payload
as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.catalog.owner import AsOwner, literal
from runnel.errors import UserError
from runnel.lake.attached import load_lake, load_lakes, named_lake
from runnel.lake.format import catalog
from runnel.lake.format.model import Lake, LakeColumn, LakeTable
from runnel.lake.format.types import decimal_bounds, pg_type
from runnel.lake.write.commit import Draft, begin_snapshot, finish
from runnel.lake.write.files import add_data_files
from runnel.lake.write.parquet import Form
from runnel.lake.write.tables import column, create_table, drop_table, find_table
from runnel.lake.write.views import create_view
from runnel.model.names import quote
from runnel.model.types import PgType
from runnel.relay.config import Options, Pipeline
from runnel.relay.message import Message
from runnel.sinks.columns import SETTINGS, PublishedColumn
from runnel.sinks.ducklake.catalog import LakeSink, record_provenance
from runnel.sinks.ducklake.views import view_sql
from runnel.sinks.ducklake.write import FileWriter
from runnel.sinks.reading import ACTION, REFRESH_ID, REFRESHED_AT, Reading
from runnel.sinks.session import Connections
from runnel.sinks.uploads import Uploads

Connection = psycopg.Connection[Any]

OPTIONS = ("lake", "schema", "namespace", "table", "compression", "data_path", "catalog_db", "catalog_url",
           "storage_options", "s3_region", "s3_access_key", "s3_secret_key")  # fmt: skip
OFFSET = "__offset"
_TEXT, _INT8, _TIMESTAMPTZ = PgType(25, -1, "text"), PgType(20, -1, "bigint"), PgType(1184, -1, "timestamptz")
_JSONB = PgType(3802, -1, "jsonb")
LOG = (
    PublishedColumn(ACTION, _TEXT, "varchar"),
    PublishedColumn(REFRESH_ID, _INT8, "int64"),
    PublishedColumn(REFRESHED_AT, _TIMESTAMPTZ, "timestamptz"),
    PublishedColumn(OFFSET, _INT8, "int64"),
)
PLAIN = (
    PublishedColumn("offset", _INT8, "int64"),
    PublishedColumn("payload", _JSONB, "json"),
    PublishedColumn("headers", _JSONB, "json"),
    PublishedColumn("created_at", _TIMESTAMPTZ, "timestamptz"),
)
_TYPES = {"json": "jsonb", "blob": "bytea", "uuid": "uuid"}


@dataclass
class DuckLakeSink:
    """Appends to a table of a lake whose catalog is in this database."""

    options: Options
    dsn: str = field(repr=False)
    _connections: Connections = field(init=False)
    _uploads: Uploads | None = None

    def __post_init__(self) -> None:
        self.options.refuse_unknown(OPTIONS)
        self._connections = Connections(self.dsn)

    @property
    def pipeline(self) -> Pipeline:
        return self.options.pipeline

    def write(self, conn: Connection, messages: Sequence[Message], state: Any) -> tuple[int, Any]:
        """Messages of one shape become one snapshot; the state is [columns, table id] of the log that is written."""
        lake = self._lake(conn)
        portion = _same_shape(messages)
        columns = _columns(portion[0])
        shape = None if columns is None else [c.as_json for c in columns]
        if columns is not None and state is None and not _is_reset(portion[0]):
            raise UserError(
                f"outbox {self.pipeline.place} no longer has the rows that its changes begin with",
                hint="Begin anew: pgtrickle.detach_outbox(), then pgtrickle.attach_outbox().",
                sqlstate="55000",
            )
        anew = columns is not None and (state is None or state[0] != shape or _is_reset(portion[0]))
        name = self.options.text("table", self.pipeline.place.rpartition(".")[2])
        view = LakeSink(
            pgt_id=0, sink="ducklake", lake=lake.name, mode="append", view_name=name, lake_schema=self._schema()
        )
        table_name = name if columns is None else view.table_name
        wanted = PLAIN if columns is None else (*columns, *LOG)
        session = self._connections.session(conn, lake)
        last = portion[-1]
        self._uploads = Uploads(self._connections.observer, lambda: _transaction_id(conn))
        self._uploads.begin()
        table = None if anew or state is None else _known_table(session.observer, lake, state[1])
        made = None
        if table is None:
            # The folder must be known before files are written. Others wait from here on, so it is done once.
            made = begin_snapshot(session.conn, session.observer, lake)
            table = _put_table(made, view, table_name, wanted, ours=None if state is None else state[1], log=columns)
        reading = Reading(_engine(conn), wanted, _in_order(table, wanted), hashed=False)
        form = Form(tuple(_in_order(table, wanted)), self.options.text("compression", "zstd"), lake.encrypted)
        writer = FileWriter(lake, self._uploads)
        offsets = (portion[0].offset, last.offset)
        outbox = self.pipeline.place
        select = _plain_sql(outbox, offsets) if columns is None else _log_sql(outbox, offsets, columns)
        files, _ = writer.send(table, form, reading.batches(select))
        if files or made is not None:
            draft = made or begin_snapshot(session.conn, session.observer, lake)
            if files:
                add_data_files(draft, table, files)
            extra = {"pipeline": self.pipeline.name, "outbox": self.pipeline.place, "offset": last.offset}
            message = f"relay {self.pipeline.name}: offsets {offsets[0]} to {offsets[1]}"
            snapshot = finish(draft, author="pg_tide", message=message, extra=json.dumps(extra))
            if columns is not None:
                self._provenance(conn, lake, snapshot, last, sum(file.record_count for file in files))
        return len(portion), [shape, table.id]

    def committed(self) -> None:
        """The files are published."""
        if self._uploads is not None:
            self._uploads.done()
            self._uploads = None

    def undo(self, error: BaseException) -> None:
        """Remove what was uploaded; what is out of reach now, the engine's search for leftovers finds."""
        uploads, self._uploads = self._uploads, None
        if uploads is not None and uploads.any:
            uploads.undo(self._connections, load_lakes(self._connections.observer()))

    def close(self) -> None:
        """End the sessions."""
        self._connections.close()

    def _schema(self) -> str:
        outbox = self.pipeline.place
        own = outbox.rpartition(".")[0] or "main"
        return self.options.text("schema", self.options.text("namespace", own))

    def _lake(self, conn: Connection) -> Lake:
        path = self.options.maybe("data_path")
        if path is None or self.options.maybe("lake") is not None:
            lake = named_lake(conn, self.options.maybe("lake"))
        else:
            found = [name for name, each in load_lakes(conn).items() if path.startswith(each.data_path)]
            if not found:
                raise UserError(f"no attached lake has its files at {path}", sqlstate="42704")
            lake = load_lake(conn, found[0])
        if lake.dsn is not None:
            raise UserError(
                f"the catalog of lake {lake.name} is in another database: it cannot be committed with the offset",
                hint="Relay to a lake of this database, or publish directly: sink => 'ducklake'.",
                sqlstate="0A000",
            )
        return lake

    def _provenance(self, conn: Connection, lake: Lake, snapshot: int, last: Message, rows: int) -> None:
        row = conn.execute(
            "SELECT coalesce(relid, 0)::int8 FROM tide.tide_outbox_config WHERE outbox_name = %s", (last.outbox,)
        ).fetchone()
        record_provenance(
            conn, lake.name, snapshot, relid=int(row[0]) if row else 0, name=last.outbox,
            refresh_id=int(last.headers.get("refresh_id") or 0), rows=rows, frontier={"outbox": last.offset},
        )  # fmt: skip


def _same_shape(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages from the first on that go into the same table."""
    shape = messages[0].headers.get("columns")
    for index, message in enumerate(messages):
        if index and (message.headers.get("columns") != shape or _is_reset(message)):
            return messages[:index]
    return messages


def _is_reset(message: Message) -> bool:
    return message.headers.get("event_type") == "stream_table.reset" and bool(json.loads(message.payload).get("reset"))


def _columns(message: Message) -> tuple[PublishedColumn, ...] | None:
    """The columns of a stream table's rows; None for messages of an application."""
    said = message.headers.get("columns")
    if not isinstance(said, list) or message.headers.get("x-source") != "runnel":
        return None
    return tuple(PublishedColumn(name, _built_in(lake), lake) for name, _, lake in said)


def _built_in(lake: str) -> PgType:
    """A type of PostgreSQL's own in which a value is read again: no code of a user's type runs here."""
    return _JSONB if lake == "json" else _TEXT


def _log_sql(outbox: str, offsets: tuple[int, int], columns: Sequence[PublishedColumn]) -> str:
    shape = ", ".join(f"{quote(c.name)} {_record_type(c.lake)}" for c in columns)
    values = ", ".join(f"r.{quote(c.name)} AS o{i}" for i, c in enumerate(columns))
    n = len(columns)
    parts = [
        f"SELECT {values}, '{action}' AS o{n}, (m.payload ->> 'refresh_id')::int8 AS o{n + 1}, "
        f"(m.payload ->> 'at')::timestamptz AS o{n + 2}, m.\"offset\" AS o{n + 3} "
        f"FROM tide.tide_outbox_messages m, jsonb_to_recordset(m.payload -> '{list_}') AS r ({shape}) "
        f'WHERE m.outbox_name = {literal(outbox)} AND m."offset" BETWEEN {offsets[0]} AND {offsets[1]}'
        for action, list_ in (("delete", "deleted"), ("insert", "inserted"))
    ]
    return f"SELECT * FROM ({' UNION ALL '.join(parts)}) AS l ORDER BY o{n + 3}, o{n}"


def _plain_sql(outbox: str, offsets: tuple[int, int]) -> str:
    return (
        'SELECT "offset" AS o0, payload AS o1, headers AS o2, created_at AS o3 FROM tide.tide_outbox_messages '
        f'WHERE outbox_name = {literal(outbox)} AND "offset" BETWEEN {offsets[0]} AND {offsets[1]} ORDER BY "offset"'
    )


def _record_type(lake: str) -> str:
    if decimal_bounds(lake) is not None:
        return "numeric"
    return _TYPES.get(lake) or pg_type(LakeColumn(0, "c", lake))


def _put_table(
    draft: Draft,
    view: LakeSink,
    name: str,
    wanted: Sequence[PublishedColumn],
    *,
    ours: int | None,
    log: Sequence[PublishedColumn] | None,
) -> LakeTable:
    """A new table, in place of the one that this pipeline has written so far; and for a log the view over it."""
    old = find_table(draft, view.lake_schema, name)
    if old is not None and old.id != ours:
        raise UserError(
            f"lake {draft.lake.name} already has a table {view.lake_schema}.{name}, which another has made",
            hint='Name another one in the config: {"table": "..."}.',
            sqlstate="42P07",
        )
    if old is not None:
        drop_table(draft, old)
    table = create_table(draft, view.lake_schema, name, [column(c.name, c.lake) for c in wanted])
    if log is not None:
        sql = view_sql(view, [c.name for c in log])
        create_view(draft, view.lake_schema, view.view_name, sql, replace=old is not None)
    return table


def _known_table(observer: Connection, lake: Lake, table_id: int) -> LakeTable | None:
    return catalog.table_by_id(observer, lake, table_id, catalog.head(observer, lake))


def _in_order(table: LakeTable, wanted: Sequence[PublishedColumn]) -> list[LakeColumn]:
    by_name = {c.name: c for c in table.columns}
    return [by_name[c.name] for c in wanted]


def _engine(conn: Connection) -> AsOwner:
    return AsOwner(conn, None, SETTINGS)


def _transaction_id(conn: Connection) -> str:
    row = conn.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return str(row[0])
