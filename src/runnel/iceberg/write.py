"""Writing through the protocol: commits, tables and namespaces, each in one transaction of PostgreSQL."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.catalog.lost import first_line
from runnel.errors import RunnelError, TransientError
from runnel.iceberg import names, requirements
from runnel.iceberg.commit import Plan, extra, only_rows_moved, plan
from runnel.iceberg.definitions import define, moved_spec, partition_keys, renumbered
from runnel.iceberg.errors import (
    ProtocolError,
    already_exists,
    bad_request,
    is_unknown,
    no_namespace,
    no_table,
    not_empty,
    unavailable,
    unknown,
)
from runnel.iceberg.metadata import LEFT_OUT
from runnel.iceberg.names import Role
from runnel.iceberg.rights import DEFINE, require, require_definer, require_free
from runnel.iceberg.schema import last_id
from runnel.iceberg.shelf import Shelf
from runnel.iceberg.standing import Standing
from runnel.iceberg.updates import OURS, read_updates
from runnel.iceberg.warehouse import PROPERTY, Connection, Warehouse, Warehouses, refuse_encrypted
from runnel.lake.format.catalog import head, query, table_by_id
from runnel.lake.format.model import Lake, LakeTable
from runnel.lake.store.beside import uri
from runnel.lake.write.alter import drop_schema, rename_table
from runnel.lake.write.commit import Draft, LakeConflict, begin_snapshot, finish, touched_since
from runnel.lake.write.tables import drop_table, ensure_schema, folder
from runnel.lake.write.views import set_tags

Json = Mapping[str, Any]

AT_ONCE = 4
"""So many commits are prepared side by side; others wait, so that readers find sessions."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants of one table."""

    namespace: str
    name: str
    requirements: Sequence[Json]
    updates: Sequence[Json]


class Writer:
    """Writes to all attached lakes."""

    def __init__(self, warehouses: Warehouses) -> None:
        self._warehouses = warehouses
        self._places = threading.BoundedSemaphore(AT_ONCE)

    # -- tables ----------------------------------------------------------------------------------------------

    def commit(self, warehouse: Warehouse, role: Role, wishes: Sequence[Wish]) -> None:
        """All of them, or none."""
        with self._places, self._warehouses.open(warehouse) as (conn, catalog, lake):
            refuse_encrypted(lake)
            plans: list[Plan] = []
            try:
                for wish in wishes:
                    plans.append(self._plan(conn, catalog, lake, role, warehouse, wish))
                due = [each for each in plans if not each.is_empty or each.creates]
                guess = head(catalog, lake) + 1
                for each in due:
                    each.take_files(guess)
                if due:
                    _write(catalog, lake, role, _message(due), lambda draft: _apply(draft, due), lambda: extra(due))
            except BaseException as error:
                # What may be in the catalog is not removed; what is not is found by maintenance.
                if not is_unknown(error):
                    for each in plans:
                        each.discard()
                raise

    def create(self, warehouse: Warehouse, role: Role, namespace: str, body: Json) -> dict[str, Any] | None:
        """Create a table; or, if it is only staged, say what it will be like."""
        name = _text(body, "name")
        with self._places, self._warehouses.open(warehouse) as (conn, catalog, lake):
            refuse_encrypted(lake)
            require_definer(conn, role, "Creating a table")
            self._require_namespace(catalog, lake, namespace)
            if any(
                (e.namespace, e.name) == (namespace, name) for e in names.listed(catalog, lake, head(catalog, lake))
            ):
                raise already_exists(f"Table {namespace}.{name}")
            id = str(uuid.uuid4())
            given = body.get("schema")
            if not isinstance(given, Mapping):
                raise bad_request("A table needs a schema.")
            schema = renumbered(given)
            spec = moved_spec(body.get("partition-spec"), given, schema)
            staged = _staged(catalog, lake, namespace, name, id, warehouse.version)
            described = _describe(staged, schema, spec, body.get("properties") or {})
            if body.get("stage-create"):
                return described
            updates: list[Json] = [
                {"action": "add-schema", "schema": schema},
                {"action": "set-current-schema", "schema-id": -1},
                {"action": "set-properties", "updates": _kept(body.get("properties") or {})},
            ]
            if spec and spec["fields"]:
                updates += [{"action": "add-spec", "spec": spec}, {"action": "set-default-spec", "spec-id": -1}]
            made = plan(catalog, staged, read_updates(updates, staged.metadata, warehouse.version))
            _write(catalog, lake, role, "create table", lambda draft: _apply(draft, [made]))
            return None

    def drop(self, warehouse: Warehouse, role: Role, namespace: str, name: str) -> None:
        """Drop a table; older snapshots of the lake still have it, and its files go with them."""
        with self._table(warehouse, role, namespace, name) as (catalog, lake, table):
            _write(catalog, lake, role, "drop table", lambda draft: drop_table(draft, table))

    def rename(self, warehouse: Warehouse, role: Role, source: tuple[str, str], target: tuple[str, str]) -> None:
        """Give a table another name in its namespace."""
        if source[0] != target[0]:
            raise bad_request("A table cannot move to another namespace: create it there with its rows.")
        with self._table(warehouse, role, *source) as (catalog, lake, table):
            if any((e.namespace, e.name) == target for e in names.listed(catalog, lake, head(catalog, lake))):
                raise already_exists(f"Table {'.'.join(target)}")
            _write(catalog, lake, role, "rename table", lambda draft: rename_table(draft, table, target[1]))

    # -- namespaces ------------------------------------------------------------------------------------------

    def create_namespace(self, warehouse: Warehouse, role: Role, name: str, properties: Mapping[str, str]) -> None:
        with self._schemas(warehouse, role, "Creating a namespace") as (catalog, lake, schemas):
            if name.lower() in (each.lower() for each in schemas):
                raise already_exists(f"Namespace {name}")

            def act(draft: Draft) -> None:
                id = ensure_schema(draft, name)
                said = list(draft.changes)
                if properties:
                    set_tags(draft, id, _tags(properties), kind="table")
                draft.changes[:] = said

            _write(catalog, lake, role, "create namespace", act)

    def drop_namespace(self, warehouse: Warehouse, role: Role, name: str) -> None:
        """Drop a namespace that is empty."""
        with self._schemas(warehouse, role, "Dropping a namespace") as (catalog, lake, schemas):
            if name not in schemas:
                raise no_namespace(name)

            def act(draft: Draft) -> None:
                for kind in ("table", "view"):
                    if draft.run(
                        f"SELECT 1 FROM {{lake}}.ducklake_{kind} WHERE schema_id = %s AND end_snapshot IS NULL LIMIT 1",
                        (schemas[name],),
                    ):
                        raise not_empty(name)
                drop_schema(draft, schemas[name])

            _write(catalog, lake, role, "drop namespace", act)

    def set_namespace(
        self, warehouse: Warehouse, role: Role, name: str, updates: Mapping[str, str], removals: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Change the properties of a namespace. Returns those that were removed, and those that were not there."""
        with self._schemas(warehouse, role, "Changing a namespace") as (catalog, lake, schemas):
            if name not in schemas:
                raise no_namespace(name)
            known = _properties(catalog, lake, schemas[name])
            gone = [key for key in removals if key in known]

            def act(draft: Draft) -> None:
                draft.run(
                    "UPDATE {lake}.ducklake_tag SET end_snapshot = %s WHERE object_id = %s AND key = ANY(%s) "
                    "AND end_snapshot IS NULL",
                    (draft.id, schemas[name], list(_tags(dict.fromkeys(gone, "")))),
                )
                if updates:
                    set_tags(draft, schemas[name], _tags(updates), kind="table")
                # It is no table that has changed.
                draft.changes[:] = []

            if updates or gone:
                _write(catalog, lake, role, "set namespace properties", act)
            return gone, [key for key in removals if key not in known]

    def namespace_properties(self, warehouse: Warehouse, name: str) -> dict[str, str]:
        with self._warehouses.open(warehouse) as (_, catalog, lake):
            id = _schemas(catalog, lake).get(name)
            return {} if id is None else _properties(catalog, lake, id)

    # -- parts -----------------------------------------------------------------------------------------------

    def _plan(
        self, conn: Connection, catalog: Connection, lake: Lake, role: Role, warehouse: Warehouse, wish: Wish
    ) -> Plan:
        if requirements.creates(wish.requirements):
            return self._plan_creation(conn, catalog, lake, role, warehouse, wish)
        found = self._warehouses.listed(conn, catalog, lake, role, wish.namespace, wish.name)
        table = table_by_id(catalog, lake, found.table_id, head(catalog, lake))
        if table is None:
            raise no_table(wish.namespace, wish.name)
        require_free(catalog, lake, table)
        standing = self._warehouses.standing(catalog, lake, found.table_id, warehouse.version)

        wanted = read_updates(wish.updates, standing.metadata, warehouse.version)
        is_late = False

        def is_like(snapshot: int) -> bool:
            nonlocal is_late
            if not query(catalog, lake, "SELECT FROM {lake}.ducklake_snapshot WHERE snapshot_id = %(id)s", id=snapshot):
                return False
            is_late = bool(touched_since(catalog, lake, found.table_id, snapshot))
            # What only adds rows would do the same if the client tried again: a fast writer must not starve others.
            late = wanted.only_appends and only_rows_moved(catalog, lake, found.table_id, snapshot)
            return not is_late or late

        requirements.check(wish.requirements, standing.metadata, is_like)
        hidden = standing.metadata["properties"].get(LEFT_OUT)
        if hidden and (wanted.moves or wanted.schema is not None or wanted.spec is not None):
            raise bad_request(
                f"Table {wish.name} has columns that are not shown here, so it is read-only ({LEFT_OUT}: {hidden})."
            )
        made = plan(catalog, standing, wanted, is_late=is_late)
        require(conn, lake, role, found.table_id, f"{wish.namespace}.{wish.name}", made.rights)
        return made

    def _plan_creation(
        self, conn: Connection, catalog: Connection, lake: Lake, role: Role, warehouse: Warehouse, wish: Wish
    ) -> Plan:
        require_definer(conn, role, "Creating a table")
        self._require_namespace(catalog, lake, wish.namespace)
        if any(
            (each.namespace, each.name) == (wish.namespace, wish.name)
            for each in names.listed(catalog, lake, head(catalog, lake))
        ):
            raise requirements.changed("table already exists")
        ids = [each["uuid"] for each in wish.updates if each.get("action") == "assign-uuid"]
        try:
            id = str(uuid.UUID(ids[-1])) if ids else str(uuid.uuid4())
        except (ValueError, TypeError, AttributeError):
            raise bad_request("The table's uuid is none.") from None
        if query(catalog, lake, "SELECT FROM {lake}.ducklake_table WHERE table_uuid = %(id)s::uuid LIMIT 1", id=id):
            raise bad_request("Another table has this uuid.")
        staged = _staged(catalog, lake, wish.namespace, wish.name, id, warehouse.version)
        return plan(catalog, staged, read_updates(wish.updates, staged.metadata, warehouse.version))

    def _require_namespace(self, catalog: Connection, lake: Lake, namespace: str) -> None:
        if namespace not in _schemas(catalog, lake):
            raise no_namespace(namespace)

    @contextmanager
    def _table(
        self, warehouse: Warehouse, role: Role, namespace: str, name: str
    ) -> Iterator[tuple[Connection, Lake, LakeTable]]:
        """A table whose definition is to be changed."""
        with self._places, self._warehouses.open(warehouse) as (conn, catalog, lake):
            found = self._warehouses.listed(conn, catalog, lake, role, namespace, name)
            table = table_by_id(catalog, lake, found.table_id, head(catalog, lake))
            if table is None:
                raise no_table(namespace, name)
            require_free(catalog, lake, table)
            require(conn, lake, role, table.id, f"{namespace}.{name}", {DEFINE})
            yield catalog, lake, table

    @contextmanager
    def _schemas(
        self, warehouse: Warehouse, role: Role, deed: str
    ) -> Iterator[tuple[Connection, Lake, dict[str, int]]]:
        with self._places, self._warehouses.open(warehouse) as (conn, catalog, lake):
            require_definer(conn, role, deed)
            yield catalog, lake, _schemas(catalog, lake)


def _apply(draft: Draft, plans: Sequence[Plan]) -> None:
    for each in plans:
        each.apply(draft)


def _write(
    catalog: Connection,
    lake: Lake,
    role: Role,
    message: str,
    act: Callable[[Draft], None],
    said: Callable[[], str | None] = lambda: None,
) -> None:
    """One snapshot in one transaction, which sees all that others have committed."""
    is_written = False
    try:
        with catalog.transaction():
            catalog.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            draft = begin_snapshot(catalog, catalog, lake)
            act(draft)
            finish(draft, author=role, message=f"Iceberg: {message}", extra=said())
            is_written = True
    except LakeConflict as error:
        raise requirements.changed(error.message) from error
    except ProtocolError:
        raise
    except TransientError as error:
        raise unavailable(error.message) from error
    except RunnelError as error:
        raise bad_request(error.message) from error
    except psycopg.OperationalError as error:
        if is_written:
            raise unknown(f"The database was lost while it committed: {first_line(error)}") from error
        raise
    except psycopg.errors.IntegrityError as error:
        raise requirements.changed(error.diag.message_primary or "another writer was faster") from error


def _message(plans: Sequence[Plan]) -> str:
    return ", ".join(dict.fromkeys(each.wanted.summary.get("operation") or "alter" for each in plans))


def _staged(catalog: Connection, lake: Lake, namespace: str, name: str, id: str, version: int) -> Standing:
    """A table that is not there yet, as a commit that creates it starts from it."""
    [(path, relative)] = query(
        catalog,
        lake,
        "SELECT path, path_is_relative FROM {lake}.ducklake_schema"
        " WHERE schema_name = %(name)s AND end_snapshot IS NULL",
        name=namespace,
    )
    base = f"{lake.data_path}{path}" if relative else str(path)
    table = LakeTable(-1, id, namespace, name, f"{base}{folder(name, id)}", ())
    shelf = Shelf(lake, table, version)
    shelf.prepare(table)
    location = shelf.location
    metadata = {
        "location": location,
        "schemas": [],
        "current-schema-id": -1,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "properties": {"gc.enabled": "false", "write.data.path": uri(table.path.rstrip("/"))},
    }
    return Standing(lake, table, version, location, -1, None, metadata, {}, None, {}, {}, {}, {})


def _describe(
    staged: Standing, schema: dict[str, Any], spec: Json | None, properties: Mapping[str, str]
) -> dict[str, Any]:
    """The metadata of a table that is staged: what a client needs to write files for it."""
    columns = define(schema, (), {"fields": []}, staged.version).columns
    specs: list[dict[str, Any]] = [{"spec-id": 0, "fields": []}]
    if spec and spec["fields"]:
        partition_keys(spec, columns)
        fields = [
            {**each, "field-id": 1000 + place}
            for place, each in enumerate(spec["fields"])
            if each["transform"] != "void"
        ]
        specs = [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": fields}]
    whole: dict[str, Any] = {
        "format-version": staged.version,
        "table-uuid": staged.table.uuid,
        "location": staged.location,
        "last-sequence-number": 0,
        "last-updated-ms": int(time.time() * 1000),
        "last-column-id": last_id(columns),
        "current-schema-id": 0,
        "schemas": [schema],
        "default-spec-id": specs[-1]["spec-id"],
        "partition-specs": specs,
        "last-partition-id": 999 + len(specs[-1]["fields"]),
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {**_kept(properties), **staged.metadata["properties"]},
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }
    if staged.version >= 3:
        whole["next-row-id"] = 0
    return whole


def _kept(properties: Mapping[str, Any]) -> dict[str, str]:
    """Without what the server decides."""
    return {key: str(value) for key, value in properties.items() if key not in OURS and not key.startswith("runnel.")}


def _tags(properties: Mapping[str, str]) -> dict[str, str]:
    return {"comment" if key == "comment" else PROPERTY + key: str(value) for key, value in properties.items()}


def _properties(catalog: Connection, lake: Lake, object_id: int) -> dict[str, str]:
    rows = query(
        catalog,
        lake,
        "SELECT key, value FROM {lake}.ducklake_tag WHERE object_id = %(id)s AND end_snapshot IS NULL",
        id=object_id,
    )
    return {key.removeprefix(PROPERTY): value for key, value in rows if key == "comment" or key.startswith(PROPERTY)}


def _schemas(catalog: Connection, lake: Lake) -> dict[str, int]:
    rows = query(catalog, lake, "SELECT schema_name, schema_id FROM {lake}.ducklake_schema WHERE end_snapshot IS NULL")
    return dict(rows)


def _text(body: Json, key: str) -> str:
    found = body.get(key)
    if not isinstance(found, str) or not found:
        raise bad_request(f"{key} is missing.")
    return found
