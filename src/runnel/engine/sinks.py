"""Sinks as users ask for them: options of create and alter, and tidying up after what is gone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from runnel.catalog.lost import is_lost
from runnel.engine.definitions import Caller
from runnel.engine.refreshes import Refresher
from runnel.errors import RunnelError, UserError
from runnel.lake.attached import DEFAULT_LAKE, default_lake_name, load_lake
from runnel.lake.store.storage import open_store
from runnel.model.names import Name
from runnel.sinks import catalog as sinks
from runnel.sinks.catalog import Sink
from runnel.sinks.ducklake.options import OPTIONS, named, sink_of
from runnel.sinks.ducklake.publisher import Publication

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]


def wanted_sink(
    conn: Connection, args: Mapping[str, Any], current: Sink | None, pgt_id: int, name: Name, caller: Caller
) -> Sink | None:
    """The sink a request asks for; checked, nothing is changed."""
    if not named(args):
        return current
    sink = sink_of(args, current, pgt_id, name, default_lake_name(conn) or DEFAULT_LAKE)
    if sink is None:
        return None
    if sink.publishes and sink.lake is not None:
        load_lake(conn, sink.lake)
    if sink.delta_export_path and (current is None or current.delta_export_path != sink.delta_export_path):
        _require_engine_rights(conn, caller)
        open_store(sink.delta_export_path)
    return sink


def changed_options(args: Mapping[str, Any], current: Sink | None, wanted: Sink | None) -> dict[str, Any]:
    """The options of a request about sinks, if they would change anything."""
    return {} if wanted == current else {option: args[option] for option in OPTIONS if args.get(option) is not None}


def put_sink(conn: Connection, publication: Publication, current: Sink | None, wanted: Sink | None) -> None:
    """Store a sink in place of another; what the other has published goes, unless the new one goes on with it."""
    if current is not None and (wanted is None or wanted.table_id is None) and current.table_id is not None:
        publication.drop(current, why=f"{current.view_name} is no longer published in mode {current.mode}")
    if wanted is not None:
        sinks.save_sink(conn, wanted)
    elif current is not None:
        sinks.delete_sink(conn, current.pgt_id)


def remove_sink(publication: Publication, sink: Sink) -> None:
    """Drop what a stream table has published, with the stream table."""
    try:
        publication.drop(sink, why=f"stream table {sink.view_name} was dropped")
    except UserError as error:
        # The lake was detached: what is in it is out of reach, and nobody's any more.
        log.warning("%s stays in lake %s: %s", sink.view_name, sink.lake, error)
        sinks.delete_sink(publication.conn, sink.pgt_id)


def tidy(refresher: Refresher) -> None:
    """Finish row maps; remove what stream tables dropped by plain DROP TABLE have published; look for leftovers."""
    conn = refresher.conn
    for sink in sinks.abandoned_sinks(conn):
        with _later(conn), refresher.publisher.publication(conn) as publication, conn.transaction():
            remove_sink(publication, sink)
            publication.commit_others()
    for sink in sinks.load_sinks(conn).values():
        if sink.map_start is not None:
            with _later(conn):
                refresher.complete_map(sink)
    refresher.publisher.leftovers.wake()


@contextmanager
def _later(conn: Connection) -> Iterator[None]:
    """What cannot be done now is left to the next turn, and keeps nothing else from being done."""
    try:
        yield
    except (RunnelError, psycopg.Error) as error:
        if is_lost(conn):
            raise
        log.info("lakes are tidied later: %s", error)


def _require_engine_rights(conn: Connection, caller: Caller) -> None:
    """Files are written with the engine's rights: only who could act as the engine may say where."""
    row = conn.execute("SELECT pg_has_role(%s, current_user, 'MEMBER')", (caller.role,)).fetchone()
    if not (row and row[0]):
        raise UserError(
            "delta_export_path may only be set by roles that are members of the engine's role",
            hint="Publish to an attached lake instead: sink => 'ducklake'.",
            sqlstate="42501",
        )
