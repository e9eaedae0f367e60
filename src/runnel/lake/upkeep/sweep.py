"""Removing files that nobody needs: those the catalog has given up, those it never knew, and generated ones."""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from runnel.lake.format.statements import execute
from runnel.lake.store.beside import KEPT, beside
from runnel.lake.store.storage import Store, Stored, open_store

if TYPE_CHECKING:
    from psycopg import Connection

    from runnel.lake.format.model import Lake


def remove_scheduled(conn: Connection[Any], lake: Lake, grace: dt.timedelta) -> int:
    """Remove files that were replaced, expired or dropped longer ago than the time of grace. Returns how many.

    First the file, then its row: after a failure in between, the file is removed once more.
    """
    rows = execute(
        conn,
        lake.schema,
        "SELECT data_file_id, path, path_is_relative FROM {lake}.ducklake_files_scheduled_for_deletion "
        "WHERE schedule_start <= now() - %s",
        (grace,),
    ).fetchall()
    for id, path, relative in rows:
        full = lake.data_path + path if relative else path
        open_store(full, lake.options).delete([full])
        execute(
            conn,
            lake.schema,
            "DELETE FROM {lake}.ducklake_files_scheduled_for_deletion WHERE data_file_id = %s AND path = %s",
            (id, path),
        )
    return len(rows)


def remove_orphans(
    conn: Connection[Any],
    lake: Lake,
    grace: dt.timedelta,
    pending: Collection[str] = (),
    *,
    left: str | None = None,
) -> int:
    """Remove files below the lake's folder that no catalog row knows. Returns how many.

    Only files older than the time of grace, and none of `pending`: their writers may be about to commit them. Files
    with `left` in their names are the caller's own kind, and go whatever their age. The store is listed before the
    catalog is read, so that a file which is committed meanwhile is known.
    """
    store = open_store(lake.data_path, lake.options)
    before = dt.datetime.now(dt.UTC) - grace
    old = [
        each.path
        for each in store.list(lake.data_path)
        if _ours(each.path) and (each.modified <= before or (left and f"-{left}" in each.path.rpartition("/")[2]))
    ]
    if not old:
        return 0
    known = known_paths(conn, lake) | set(pending)
    orphans = [path for path in old if path not in known]
    store.delete(orphans)
    return len(orphans)


def remove_generated(lake: Lake, tables: Collection[str], grace: dt.timedelta) -> int:
    """Remove generated files that the newest metadata of their table does not need. Returns how many.

    `tables` are the uuids of those that there are. Files younger than the time of grace stay: somebody may be reading
    older metadata, or making newer.
    """
    folder = beside(lake.data_path)
    store = open_store(folder, lake.options)
    before = dt.datetime.now(dt.UTC) - grace
    by_folder: dict[str, list[Stored]] = defaultdict(list)
    for each in store.list(folder):
        by_folder[each.path.rpartition("/")[0]].append(each)
    removed = 0
    for place, files in by_folder.items():
        table = place.removeprefix(folder).partition("/")[0]
        needed = _needed(store, f"{place}/{KEPT}", files) if table in tables else set()
        old = [e.path for e in files if e.modified <= before and e.path.rpartition("/")[2] not in needed]
        store.delete(old)
        removed += len(old)
    return removed


def _needed(store: Store, path: str, files: Collection[Stored]) -> set[str]:
    """The names that a table's own list has; without a list nothing is needed."""
    if all(each.path != path for each in files):
        return set()
    return {KEPT, *json.loads(store.get(path))}


def known_paths(conn: Connection[Any], lake: Lake) -> set[str]:
    """All files that the catalog knows, whatever their state, by absolute path."""
    paths: set[str] = set()
    for kind in ("data", "delete"):
        for row in execute(
            conn,
            lake.schema,
            "SELECT DISTINCT f.path, f.path_is_relative, t.path, t.path_is_relative, s.path, s.path_is_relative "
            f"FROM {{lake}}.ducklake_{kind}_file f JOIN {{lake}}.ducklake_table t USING (table_id) "
            "JOIN {lake}.ducklake_schema s USING (schema_id)",
        ):
            path = lake.data_path
            for part, relative in ((row[4], row[5]), (row[2], row[3]), (row[0], row[1])):
                path = path + part if relative else part
            paths.add(path)
    for path, relative in execute(
        conn, lake.schema, "SELECT path, path_is_relative FROM {lake}.ducklake_files_scheduled_for_deletion"
    ):
        paths.add(lake.data_path + path if relative else path)
    return paths


def _ours(path: str) -> bool:
    """Whether a file looks like one of a lake's: Parquet, or what an interrupted write left beside it."""
    return path.endswith((".parquet", ".parquet.part")) or (path.endswith(".part") and "/.ducklake-" in path)
