"""Files on their way: known to the database before they are written, so that none is left behind.

A transaction that fails takes the files that have arrived with it at once. What may still arrive, and what a killed
engine leaves, is looked for by `leftovers`. A file is only removed when its transaction has ended and no row of the
lake's catalog names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.errors import RunnelError
from runnel.lake.format import catalog
from runnel.lake.format.model import Lake
from runnel.lake.store.storage import Store, open_store
from runnel.sinks import catalog as sinks
from runnel.sinks.catalog import Upload
from runnel.sinks.session import Connections

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]


@dataclass
class Uploads:
    """The files of one transaction."""

    observer: Callable[[], Connection]
    xid: Callable[[], str]
    _transaction: str | None = None
    _ids: dict[str, int] = field(default_factory=dict)
    _arrived: set[int] = field(default_factory=set)

    def begin(self) -> str:
        """Be ready for files while rows are being read: the connection cannot be asked anything during a COPY.

        Returns the transaction's number.
        """
        if self._transaction is None:
            self._transaction = self.xid()
        return self._transaction

    def start(self, lake: str | None, paths: Sequence[str]) -> None:
        """Remember files before they are written."""
        ids = sinks.start_uploads(self.observer(), lake, self.begin(), paths)
        self._ids.update(zip(paths, ids, strict=True))

    def arrived(self, paths: Iterable[str]) -> None:
        """The store has said that it has the files: none of them will come later."""
        self._arrived.update(self._ids[path] for path in paths)

    def abandon(self, store: Store, paths: Sequence[str]) -> None:
        """Remove files that the transaction will not publish after all."""
        ids = [self._ids.pop(path) for path in paths]
        try:
            store.discard(paths)
        except RunnelError as error:
            log.info("left for later: %s", error)
        else:
            sinks.end_uploads(self.observer(), ids)

    def done(self) -> None:
        """The transaction has committed: its files are published."""
        if self._ids:
            sinks.end_uploads(self.observer(), list(self._ids.values()))
            self._ids.clear()

    def undo(self, connections: Connections, lakes: Mapping[str, Lake]) -> None:
        """The transaction has failed: remove what has arrived."""
        observer = self.observer()
        for upload in sinks.given_up_uploads(observer):
            if upload.id in self._arrived:
                store = store_of(upload, lakes)
                if store is not None and not is_published(upload, connections, lakes):
                    store.discard([upload.path])
                sinks.end_uploads(observer, [upload.id])

    @property
    def any(self) -> bool:
        """Whether anything was, or was to be, written."""
        return bool(self._ids)


def store_of(upload: Upload, lakes: Mapping[str, Lake]) -> Store | None:
    """Where the file of an ended transaction would lie; None if it is nobody's any more, or published for sure."""
    if upload.lake is None:
        # An exported delta: no catalog knows it, its transaction's fate decides.
        aborted = upload.status == "aborted"
        return open_store(upload.path, store_options(upload.path, lakes.values())) if aborted else None
    lake = lakes.get(upload.lake)
    return None if lake is None else open_store(upload.path, lake.options)


def is_published(upload: Upload, connections: Connections, lakes: Mapping[str, Lake]) -> bool:
    """Whether the catalog of its lake names a file."""
    if upload.lake is None:
        return False
    lake = lakes[upload.lake]
    return _is_known(connections.session(connections.observer(), lake).observer, lake, upload.path)


def store_options(path: str, lakes: Iterable[Lake]) -> Mapping[str, str]:
    """How to reach a store: as the lake that is in the same one, or as the environment says."""
    root = open_store(path).root
    return next((lake.options for lake in lakes if open_store(lake.data_path).root == root), {})


def _is_known(conn: Connection, lake: Lake, path: str) -> bool:
    """Whether a row of the catalog names a file; its last part is unique."""
    name = path.rsplit("/", 1)[-1]
    [(known,)] = catalog.query(
        conn,
        lake,
        "SELECT EXISTS (SELECT FROM {lake}.ducklake_data_file WHERE right(path, length(%(name)s)) = %(name)s)"
        " OR EXISTS (SELECT FROM {lake}.ducklake_delete_file WHERE right(path, length(%(name)s)) = %(name)s)"
        " OR EXISTS (SELECT FROM {lake}.ducklake_files_scheduled_for_deletion"
        "            WHERE right(path, length(%(name)s)) = %(name)s)",
        name=name,
    )
    return bool(known)
