"""The sink that exports each refresh's changes as a file: definitions, and its part in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.errors import EngineBug, UserError
from runnel.lake.attached import load_lakes
from runnel.lake.store.storage import open_store
from runnel.model.names import Name
from runnel.plan.stage import Origin
from runnel.ports.sink import Later, Published, Refreshed, Result, Wish
from runnel.sinks.files import catalog
from runnel.sinks.files.catalog import Export
from runnel.sinks.files.export import export_changes
from runnel.sinks.options import COMPRESSIONS, choice, given, lake_schema
from runnel.sinks.reading import reader
from runnel.sinks.shared import Shared, postponed
from runnel.sinks.transaction import taking_part
from runnel.sinks.uploads import Uploads

Connection = psycopg.Connection[Any]

DEFAULT_COMPRESSION = "snappy"


@dataclass(frozen=True, slots=True)
class Wanted:
    """An export, and under which name its stream table is known."""

    export: Export
    name: Name = field(compare=False)


@dataclass
class FilesPublication:
    """What one transaction exports."""

    conn: Connection
    shared: Shared
    uploads: Uploads = field(init=False)
    _exports: dict[int, Export] | None = None
    """As the transaction sees them; read when first asked for."""

    def __post_init__(self) -> None:
        self.uploads = self.shared.uploads(self.conn)

    def put(self, pgt_id: int, wish: Wish) -> None:
        """Export to another folder, or no more. Files that are there stay: they are their readers'."""
        if isinstance(wish.after, Wanted):
            name = wish.after.name
            catalog.save_export(
                self.conn, pgt_id, wish.after.export, lake_schema=lake_schema(name), view_name=name.name
            )
        elif wish.before is not None:
            catalog.end_export(self.conn, pgt_id)
        self._exports = None

    def drop(self, pgt_id: int, why: str) -> None:
        """Export no more."""
        if pgt_id in self._loaded():
            catalog.end_export(self.conn, pgt_id)
            self._exports = None

    def prepare(self, result: Result) -> None:
        """Nothing: a delta is all that is needed."""

    def wants(self, pgt_id: int, *, changed: bool, definition_version: int) -> bool:
        """Only changes are exported."""
        return changed and pgt_id in self._loaded()

    def publish(self, result: Result, refreshed: Refreshed) -> Published | None:
        """Write the changes of a refresh."""
        if not self.wants(result.id, changed=refreshed.changed, definition_version=result.definition_version):
            return None
        owner = reader(self.conn, result.owner)
        lakes = load_lakes(self.conn).values()
        export_changes(owner, self.uploads, self._loaded()[result.id], result, refreshed, lakes)
        return Published(inserted=refreshed.inserted, deleted=refreshed.deleted)

    def later(self) -> Sequence[Later]:
        """Nothing has to wait."""
        return ()

    def publish_later(self, later: Later) -> Published:
        """Never asked for."""
        raise EngineBug("an exported delta does not wait")

    def before_commit(self) -> None:
        """Nothing: files have no transactions."""

    def committed(self) -> None:
        """The files are published."""
        self.uploads.done()

    def undo(self, error: BaseException) -> None:
        """Remove the files."""
        self.shared.undo(self.uploads, error)

    def _loaded(self) -> dict[int, Export]:
        if self._exports is None:
            self._exports = catalog.load_exports(self.conn)
        return self._exports


@dataclass
class FilesSink:
    """Exports the changes of each refresh as a Parquet file, in a folder or an object store."""

    shared: Shared
    name = "files"
    options = ("delta_export_path", "delta_export_compression")

    def publication(self, conn: Connection) -> FilesPublication:
        """What a transaction exports."""
        return FilesPublication(conn, self.shared)

    def wish(self, conn: Connection, args: Mapping[str, Any], pgt_id: int | None, name: Name, role: str) -> Wish:
        """The export a request asks for; an empty path ends it."""
        current = catalog.load_exports(conn).get(pgt_id) if pgt_id is not None else None
        before = None if current is None else Wanted(current, name)
        if not given(args, self.options):
            return Wish(before, before)
        known = catalog.last_compression(conn, pgt_id) or DEFAULT_COMPRESSION
        compression = choice(args, "delta_export_compression", COMPRESSIONS, known)
        path = args.get("delta_export_path")
        folder = _folder(path) if path is not None else None if current is None else current.path
        if folder is None:
            return Wish(before, None)
        if current is None or current.path != folder:
            _require_engine_rights(conn, role)
            open_store(folder)
        return Wish(before, Wanted(Export(folder, compression), name))

    def describe(self, conn: Connection, pgt_id: int) -> str | None:
        """The folder."""
        export = catalog.load_exports(conn).get(pgt_id)
        return None if export is None else f"deltas to {export.path} ({export.compression})"

    def upstream(self, conn: Connection, origin: Origin) -> int | None:
        """None: nobody reads a file of changes as a relation."""
        return None

    def tidy(self, conn: Connection, results: Callable[[int], Result]) -> None:
        """Forget exports of stream tables dropped by plain DROP TABLE; look for leftovers."""
        for pgt_id in catalog.abandoned_exports(conn):
            with postponed(conn), taking_part(self, conn) as publication, conn.transaction():
                publication.drop(pgt_id, "its stream table was dropped")
                publication.before_commit()
        self.shared.leftovers.wake()

    def close(self) -> None:
        """Nothing: connections are shared."""


def _folder(path: str) -> str | None:
    return None if not path else path if path.endswith("/") else f"{path}/"


def _require_engine_rights(conn: Connection, role: str) -> None:
    """Files are written with the engine's rights: only who could act as the engine may say where."""
    row = conn.execute("SELECT pg_has_role(%s, current_user, 'MEMBER')", (role,)).fetchone()
    if not (row and row[0]):
        raise UserError(
            "delta_export_path may only be set by roles that are members of the engine's role",
            hint="Publish to an attached lake instead: sink => 'ducklake'.",
            sqlstate="42501",
        )
