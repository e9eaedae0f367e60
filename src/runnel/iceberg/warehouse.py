"""Lakes behind the protocol: what a caller sees of them, and the metadata of their tables, made once per change."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg

from runnel.catalog.lost import first_line
from runnel.errors import RunnelError, TransientError
from runnel.iceberg import names
from runnel.iceberg.errors import ProtocolError, bad_request, no_namespace, no_table, no_warehouse, unavailable
from runnel.iceberg.history import History
from runnel.iceberg.metadata import metadata
from runnel.iceberg.names import Listed, Role
from runnel.iceberg.shelf import Shelf
from runnel.iceberg.standing import Standing
from runnel.lake.attached import default_lake_name, lake_names, load_lake
from runnel.lake.connection import connect_catalog
from runnel.lake.format.catalog import NEWEST, head, query, query_all, table_by_id
from runnel.lake.format.model import Lake

Connection = psycopg.Connection[Any]
Borrow = Callable[[], AbstractContextManager[Connection]]

V2 = "@v2"
PROPERTY = "iceberg."
"""Before the names of properties among a table's tags; the comment is a tag of its own."""
KEPT = 200
"""So many tables are remembered; what was made for others is made again, and found written."""
_STATE: LiteralString = (
    "SELECT max(snapshot_id), min(snapshot_id), count(*) FROM {lake}.ducklake_snapshot WHERE snapshot_id >= %(since)s"
)
# The partition of new files.
_PARTITION: LiteralString = (
    "SELECT max(partition_id) FROM {lake}.ducklake_partition_info WHERE table_id = %(table)s AND end_snapshot IS NULL"
)
# Properties that clients gave a table, its comment among them; and the comments of its columns.
_TAGS: LiteralString = (
    "SELECT key, value FROM {lake}.ducklake_tag WHERE object_id = %(table)s AND end_snapshot IS NULL"
    " AND value IS NOT NULL"
)
_COMMENTS: LiteralString = (
    "SELECT column_id, value FROM {lake}.ducklake_column_tag WHERE table_id = %(table)s AND key = 'comment'"
    " AND end_snapshot IS NULL AND value IS NOT NULL"
)


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A lake in a version of the format."""

    lake: str
    version: int

    @property
    def prefix(self) -> str:
        return self.lake if self.version >= 3 else self.lake + V2


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table's metadata, as JSON."""

    body: bytes
    head_only: bytes
    """With the newest snapshot alone."""
    etag: str


@dataclass
class _Table:
    """What is kept of a table."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    history: History | None = None
    state: object = None
    loaded: Loaded | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    partition: int | None = None


class Warehouses:
    """All attached lakes."""

    def __init__(self, borrow: Borrow) -> None:
        self._borrow = borrow
        self._tables: dict[tuple[Any, ...], _Table] = {}
        self._lock = threading.Lock()

    def find(self, name: str | None) -> Warehouse:
        """By the name of a lake, with `@v2` behind it for version 2; the default lake without a name."""
        with self._borrow() as conn:
            known = lake_names(conn)
            if not name:
                name = default_lake_name(conn) or ""
        if name in known:
            return Warehouse(name, 3)
        if name.endswith(V2) and name.removesuffix(V2) in known:
            return Warehouse(name.removesuffix(V2), 2)
        raise no_warehouse(name)

    def namespaces(self, warehouse: Warehouse, role: Role) -> list[str]:
        """The schemas in which a role may read a table; of an administrator all."""
        with self.open(warehouse) as (conn, catalog, lake):
            at = head(catalog, lake)
            if names.sees_all(conn, role):
                return names.namespaces(catalog, lake, at)
            return sorted({each.namespace for each in self._visible(conn, catalog, lake, at, role)})

    def tables(self, warehouse: Warehouse, role: Role, namespace: str) -> list[Listed]:
        """The tables of a schema that a role may read."""
        with self.open(warehouse) as (conn, catalog, lake):
            at = head(catalog, lake)
            found = [e for e in self._visible(conn, catalog, lake, at, role) if e.namespace == namespace]
            if not found and not (names.sees_all(conn, role) and namespace in names.namespaces(catalog, lake, at)):
                raise no_namespace(namespace)
            return found

    def require_namespace(self, warehouse: Warehouse, role: Role, namespace: str) -> None:
        if namespace not in self.namespaces(warehouse, role):
            raise no_namespace(namespace)

    def find_table(self, warehouse: Warehouse, role: Role, namespace: str, name: str) -> Listed:
        """A table by name. That it may not be read is no different from its not being there."""
        with self.open(warehouse) as (conn, catalog, lake):
            return self.listed(conn, catalog, lake, role, namespace, name)

    def load(self, warehouse: Warehouse, role: Role, namespace: str, name: str) -> tuple[Loaded, Lake]:
        """A table's metadata; generated if something has changed since it was last asked for."""
        with self.open(warehouse) as (conn, catalog, lake):
            found = self.listed(conn, catalog, lake, role, namespace, name)
            refuse_encrypted(lake)
            kept = self._keep(lake, found.table_id, warehouse.version)
            with kept.lock:
                return self._load(catalog, lake, found.table_id, warehouse.version, kept), lake

    def standing(self, catalog: Connection, lake: Lake, table_id: int, version: int) -> Standing:
        """The head of a table, for a commit that starts from it."""
        refuse_encrypted(lake)
        kept = self._keep(lake, table_id, version)
        with kept.lock:
            self._load(catalog, lake, table_id, version, kept)
            assert kept.history is not None
            return kept.history.standing(catalog, kept.metadata, kept.partition)

    def _keep(self, lake: Lake, table_id: int, version: int) -> _Table:
        key = (lake.name, lake.schema, lake.data_path, lake.dsn, table_id, version)
        with self._lock:
            # The one that was asked for last is the last to go.
            kept = self._tables[key] = self._tables.pop(key, _Table())
            while len(self._tables) > KEPT:
                del self._tables[next(iter(self._tables))]
            return kept

    def _load(self, catalog: Connection, lake: Lake, table_id: int, version: int, kept: _Table) -> Loaded:
        since = kept.history.facts.moments[0].id if kept.history and kept.history.facts else 0
        [state] = query(catalog, lake, _STATE, since=since)
        if kept.loaded is not None and kept.state == state:
            return kept.loaded
        # In a pipeline, what begins the transaction goes out with the first question.
        with catalog.pipeline(), catalog.transaction():
            catalog.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            table = table_by_id(catalog, lake, table_id, NEWEST)
            if table is None:
                raise no_table(str(table_id), "")
            history = kept.history
            if history is None or history.lake != lake:
                history = History(lake, table, version, Shelf(lake, table, version))
                history.shelf.prepare(table)
            kept.history, kept.loaded = None, None
            history.follow(catalog, table)
            assert history.facts is not None
            since = history.facts.moments[0].id
            [state], [(partition,)], tags, comments = query_all(
                catalog, lake, (_STATE, _PARTITION, _TAGS, _COMMENTS), since=since, table=table_id
            )
        told = {
            key.removeprefix(PROPERTY): value for key, value in tags if key.startswith(PROPERTY) or key == "comment"
        }
        kept.metadata, snapshots = metadata(history, partition, told, dict(comments))
        kept.partition = partition
        kept.history, kept.state = history, state
        kept.loaded = _loaded(kept.metadata, snapshots, history)
        return kept.loaded

    def listed(
        self, conn: Connection, catalog: Connection, lake: Lake, role: Role, namespace: str, name: str
    ) -> Listed:
        for each in self._visible(conn, catalog, lake, head(catalog, lake), role):
            if (each.namespace, each.name) == (namespace, name):
                return each
        raise no_table(namespace, name)

    def _visible(self, conn: Connection, catalog: Connection, lake: Lake, at: int, role: Role) -> list[Listed]:
        every = names.listed(catalog, lake, at)
        if role is None or names.sees_all(conn, role):
            return every
        allowed = names.readable(conn, lake, role)
        return [each for each in every if allowed.get(each.table_id, False)]

    @contextmanager
    def open(self, warehouse: Warehouse) -> Iterator[tuple[Connection, Connection, Lake]]:
        """A session on the engine's database, one on the lake's catalog, and the lake."""
        try:
            with self._borrow() as conn:
                lake = load_lake(conn, warehouse.lake)
                if lake.dsn is None:
                    yield conn, conn, lake
                else:
                    with connect_catalog(lake) as catalog:
                        yield conn, catalog, lake
        except ProtocolError:
            raise
        except psycopg.OperationalError as error:
            raise unavailable(f"The database cannot be reached: {first_line(error)}") from error
        except TransientError as error:
            raise unavailable(error.message) from error
        except RunnelError as error:
            raise bad_request(error.message) from error


def refuse_encrypted(lake: Lake) -> None:
    if lake.encrypted:
        raise bad_request(
            f"The files of lake {lake.name} are encrypted, which readers of Iceberg cannot open. Use DuckDB."
        )


def _loaded(whole: dict[str, Any], snapshots: str, history: History) -> Loaded:
    text = json.dumps(whole)
    etag = hashlib.sha256(f"{text}\n{snapshots}".encode()).hexdigest()[:32]
    location = json.dumps(f"{history.shelf.location}/metadata/{etag}.metadata.json")

    def body(rest: str, listed: str) -> bytes:
        return f'"metadata-location": {location}, "metadata": {rest[:-1]}, "snapshots": [{listed}]}}'.encode()

    newest = snapshots[snapshots.rindex('{"snapshot-id"') :]
    alone = json.dumps({**whole, "snapshot-log": whole["snapshot-log"][-1:]})
    return Loaded(body(text, snapshots), body(alone, newest), etag)
