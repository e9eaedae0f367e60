"""Files on their way: known to the database before they are written, so that none is left behind.

A transaction that fails takes its files with it at once. What a killed engine leaves is found by the next one. A file
is only removed when its transaction has ended and no row of the lake's catalog names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.catalog import sinks
from runnel.errors import RunnelError
from runnel.lake import catalog
from runnel.lake.model import Lake
from runnel.lake.storage import Store, open_store

log = logging.getLogger(__name__)

LATE_SECONDS = 120.0
"""How long after its start an upload may still reach the store."""

Connection = psycopg.Connection[Any]


@dataclass
class Uploads:
    """The files of one transaction."""

    observer: Callable[[], Connection]
    xid: Callable[[], str]
    _ids: dict[str, int] = field(default_factory=dict)

    def start(self, lake: str | None, paths: Sequence[str]) -> None:
        """Remember files before they are written."""
        ids = sinks.start_uploads(self.observer(), lake, self.xid(), paths)
        self._ids.update(zip(paths, ids, strict=True))

    def abandon(self, store: Store, paths: Sequence[str]) -> None:
        """Remove files that the transaction will not publish after all."""
        ids = [self._ids.pop(path) for path in paths]
        try:
            store.discard(paths)
        except RunnelError as error:
            log.info("left to the sweep: %s", error)
        else:
            sinks.end_uploads(self.observer(), ids)

    def done(self) -> None:
        """The transaction has committed: its files are published."""
        if self._ids:
            sinks.end_uploads(self.observer(), list(self._ids.values()))
            self._ids.clear()

    @property
    def any(self) -> bool:
        """Whether anything was, or was to be, written."""
        return bool(self._ids)


def sweep(observer: Connection, reach: Callable[[str], tuple[Lake, Connection]], lakes: Mapping[str, Lake]) -> int:
    """Remove what ended transactions left behind; how many files."""
    removed = 0
    finished: list[int] = []
    for upload in sinks.ended_uploads(observer):
        try:
            if upload.lake is None:
                # An exported delta: no catalog knows it, its transaction's fate decides.
                if upload.status == "aborted":
                    open_store(upload.path, store_options(upload.path, lakes.values())).discard([upload.path])
                    removed += 1
            elif upload.lake in lakes:
                lake, conn = reach(upload.lake)
                if not _is_known(conn, lake, upload.path):
                    open_store(upload.path, lake.options).discard([upload.path])
                    removed += 1
                    # An upload that was given up may still arrive: it is looked for once more when it must be over.
                    if upload.age < LATE_SECONDS and not open_store(upload.path).is_local:
                        continue
            finished.append(upload.id)
        except (RunnelError, psycopg.Error) as error:
            # The store or the server may be back at the next sweep.
            log.info("could not remove %s: %s", upload.path, error)
    if finished:
        sinks.end_uploads(observer, finished)
    return removed


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
